"""The four architectures of the paper, built on Merlin models."""
