"""Online training by several workers, each of which has a part of the growing tables."""
