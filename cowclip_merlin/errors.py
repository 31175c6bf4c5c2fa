"""The one exception a user's mistake ends in, and the words for a path that cannot be used."""

from __future__ import annotations

import errno

_PATHS = (
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)
"""What is wrong with a path that was given, and no fault of ours."""


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


def words_of(error: OSError) -> str | None:
    """One line for what is wrong with a path or the disk; None for what may be a fault of ours.

    >>> words_of(FileExistsError(17, "File exists", "work"))
    'work: File exists; check the path and its rights'
    """
    if error.errno == errno.ENOSPC:
        return f"{error.filename or 'output'}: no space left on the disk; free some"
    if error.errno in _PATHS:
        return f"{error.filename}: {error.strerror}; check the path and its rights"
    return None
