"""Handle errors of benchmarks: one line per error, exit codes, and checks of output files.

Exit codes: 0 success, 2 wrong input, 1 a bug of the benchmark, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from cowclip_merlin.checks import check_unique
from cowclip_merlin.errors import InputError, error_message, with_options
from cowclip_merlin.system.files import check_writable


@contextmanager
def one_line_errors(options: Collection[str] = ()) -> Iterator[None]:
    """Exit with one line on stderr if the input is wrong or after Ctrl-C.

    Args:
        options: those of the command.

    Raises:
        SystemExit: with code 2 for wrong input, 130 after an interrupt.

    >>> with one_line_errors():
    ...     raise SystemExit(3)
    Traceback (most recent call last):
    ...
    SystemExit: 3
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        exit_with(130, "interrupted; no result was written")
    except Exception as error:
        words = error_message(error)
        if words is None:
            raise
        exit_with(2, f"error: {with_options(words, options)}")


def exit_with(code: int, line: str) -> NoReturn:
    """End the process with a line on stderr."""
    print(" ".join(line.split()), file=sys.stderr)
    raise SystemExit(code) from None


def check_output_files(*files: Path | None, overwrite: bool = False) -> None:
    """Check before the measurement that output files can be written.

    Args:
        files: files to write; None for files that were not requested.
        overwrite: whether to replace existing files.

    Raises:
        InputError: if a file cannot be written, exists already, or is given twice, or if there is
            none to replace.
    """
    given = [file for file in files if file is not None]
    if overwrite and not given:
        raise InputError("--overwrite has no effect without a file to write; remove it")
    for file in given:
        check_writable(file, overwrite=overwrite)
    check_unique({"files to write": given})
