"""A stand-in, see `horovod`."""
