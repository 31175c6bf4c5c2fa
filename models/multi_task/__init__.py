"""Models with several targets: layers before the outputs, and the outputs of Merlin."""
