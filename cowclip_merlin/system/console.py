"""How much a command tells: with `--quiet` results and errors, with `--verbose` more than usual.

The level is in the environment, so that processes which a command starts tell as much.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

LEVEL = "COWCLIP_OUTPUT"
"""Variable of the environment."""

QUIET, VERBOSE = "quiet", "verbose"
_TENSORFLOW = "TF_CPP_MIN_LOG_LEVEL"


def is_quiet() -> bool:
    """Whether only results and errors are told."""
    return os.environ.get(LEVEL) == QUIET


def is_verbose() -> bool:
    """Whether what is usually hidden is told, too."""
    return os.environ.get(LEVEL) == VERBOSE


@contextmanager
def output_level(level: str | None) -> Iterator[None]:
    """Tell as much within the block: `QUIET`, `VERBOSE`, or None for the usual."""
    if level is None:
        yield
        return
    before = {name: os.environ.get(name) for name in (LEVEL, _TENSORFLOW)}
    usual = logging.lastResort  # writes the warnings of the package
    os.environ[LEVEL] = level
    if level == VERBOSE:  # TensorFlow reads it when it is imported
        os.environ[_TENSORFLOW] = "0"
    else:
        logging.lastResort = logging.StreamHandler()
        logging.lastResort.setLevel(logging.ERROR)
    started = time.perf_counter()
    try:
        yield
    finally:
        _tell_seconds("in all", started)
        logging.lastResort = usual
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def note(text: str) -> None:
    """Print what is no result."""
    if not is_quiet():
        print(text, flush=True)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Tell how long the block takes, if `is_verbose`."""
    started = time.perf_counter()
    yield
    _tell_seconds(name, started)


def _tell_seconds(name: str, started: float) -> None:
    if is_verbose():
        print(f"cowclip: {name}: {time.perf_counter() - started:.2f} s", file=sys.stderr)


def progress(total: float | None = None, **given: Any) -> tqdm:
    """Return a bar on standard error with the time left; it shows only on a terminal.

    Args:
        total: what it counts to; None: unknown, and so is the time left.
        given: further arguments of `tqdm.tqdm`, such as `desc` and `unit`.

    >>> with progress(2, desc="read", unit="row") as bar:
    ...     bar.update(2)
    """
    from tqdm import tqdm

    return tqdm(**{"total": total, "leave": False, "disable": is_quiet() or None, **given})
