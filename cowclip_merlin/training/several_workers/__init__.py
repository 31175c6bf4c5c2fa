"""What a run does only with several workers."""
