"""The one exception a user's mistake ends in."""

from __future__ import annotations


class InputError(ValueError):
    """Wrong input: one line that names the file, column or value, and the remedy.

    The command line prints it without a traceback and exits with code 2.

    >>> raise InputError("train.txt: no such file; check the path")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: train.txt: no such file; check the path
    """

    # TensorFlow re-raises an exception from traced code under its own type only if its
    # constructor is that of Exception.
    __init__ = Exception.__init__
