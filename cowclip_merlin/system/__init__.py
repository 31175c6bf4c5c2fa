"""Work with files, locks, signals, and the versions of hardware and software."""
