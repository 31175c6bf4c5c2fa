"""A stand-in for Horovod in NVIDIA's image: one process, which prints when Merlin starts it."""
