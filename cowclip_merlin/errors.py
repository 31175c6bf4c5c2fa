"""Exceptions for wrong input, and one-line messages for system errors."""

from __future__ import annotations

import errno
import importlib.util
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

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
"""Error numbers of wrong paths in the input."""

_FULL = {
    errno.ENOSPC: "no space left on the disk; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "too large a file for this disk or for the limit of `ulimit -f`; raise the limit",
}
"""What to say when a file cannot grow, by error number."""


MALFORMED = (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError)
"""What reading a value of another program raises if it is not what it should be."""

_TENSOR = re.compile(r"allocating tensor with (shape\[[\d,]*\])")
"""What matters in TensorFlow's messages of several lines."""


EXTRAS: Mapping[str, tuple[str, ...]] = {
    "tensorflow": ("tensorflow", "tf_keras"),
    "cpu": (
        *("merlin", "nvtabular", "dask", "distributed", "dask_cuda", "tensorflow_metadata"),
        *("pandas", "pyarrow", "yaml", "jinja2", "matplotlib", "tensorboard", "tqdm", "psutil"),
        "scipy",
    ),
    "gpu": ("cupy",),
    "online": (
        *("redis", "confluent_kafka"),
        *("fastapi", "uvicorn", "uvloop", "prometheus_client"),
    ),
    "tune": ("optuna",),
    "torch": ("torch",),
    "keras3": ("keras",),
    "flink": ("pyflink",),
}
"""Extra of pyproject.toml -> modules for which errors name it."""

_OF_OLDER_PYTHON = ("cpu", "gpu")
"""Extras that merlin-core, which needs pandas 1.5, keeps from Python 3.12."""


ERROR = "cowclip: error: "
"""What the line of an error begins with."""

WRONG_INPUT = 2
"""Exit code after wrong input."""

LOST_ANOTHER = 75
"""Exit code of a worker that stopped because another one was lost."""


class InputError(ValueError):
    """Wrong input: a one-line error that names the file, column or value, and the remedy.

    The command line prints it without a traceback and exits with code 2.

    >>> raise InputError("train.txt: no such file; check the path")
    Traceback (most recent call last):
    ...
    cowclip_merlin.errors.InputError: train.txt: no such file; check the path
    """

    # TensorFlow re-raises an exception from traced code with its original type only if the
    # exception uses the constructor of Exception.
    __init__ = Exception.__init__


class Diverged(InputError):
    """Training reached NaN or infinity with these settings."""


class WorkerLost(InputError):
    """Another worker of the same training was lost."""


class Unavailable(Exception):
    """Something outside does not answer now; the same call may succeed later.

    It is no `InputError`, so code that expects wrong input does not wait for ever.
    """


class StackError(InputError, ImportError):
    """A package is missing, or its version is incompatible with the others."""


def error_message(error: Exception, *, target: str | None = None) -> str | None:
    """Return a one-line message for wrong input or a system error; None for a possible bug.

    Args:
        error: the exception.
        target: the path to write, for errors of a full disk that name no path.

    >>> error_message(FileExistsError(17, "File exists", "work"))
    'work: File exists; check the path and its permissions'
    >>> error_message(ModuleNotFoundError("No module named 'redis'", name="redis"))
    "redis is not installed: pip install 'cowclip-merlin[online]'"
    """
    if isinstance(error, InputError | Unavailable):
        return str(error)
    # Compared by name, since the class itself needs an import of TensorFlow.
    if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
        tensor = _TENSOR.search(str(error))
        words = f"no room for {tensor[1]}" if tensor else f"{error!s:.80}"
        return f"not enough memory ({words}); use a smaller batch or `mlp`, fewer ids or fewer rows"
    if isinstance(error, ModuleNotFoundError) and not _is_own_module(error.name or ""):
        return str(not_installed(error.name or str(error)))
    return _path_error_message(error, target) if isinstance(error, OSError) else None


def exit_code(script: str, run: Callable[[], object]) -> int:
    """Run a script; print a line for wrong input or a system error, with the name of the script.

    Returns:
        The exit code, 0 or `WRONG_INPUT`.
    """
    try:
        run()
    except Exception as error:
        words = error_message(error)
        if words is None:
            raise
        print(f"{script}: error: {words}", file=sys.stderr)
        return WRONG_INPUT
    return 0


def with_options(message: str, options: Collection[str], argv: Sequence[str] = ()) -> str:
    """Write the settings of a message as options: those in backquotes, and one at its beginning.

    Args:
        message: one line.
        options: those of the command; settings in backquotes become these.
        argv: what was typed; only such an option can be at the beginning.

    >>> with_options("x: already exists; use `overwrite`, not `force`", ["--overwrite"])
    'x: already exists; use --overwrite, not `force`'
    >>> with_options("sync_every is -1.0; give a number from 0 on", [], ["--sync-every", "-1"])
    '--sync-every is -1.0; give a number from 0 on'
    >>> with_options("r has no effect with the clip none; remove r", [], ["--r=2"])
    '--r has no effect with the clip none; remove --r'
    >>> with_options("seeds 1,1: give every value once", [], ["--seeds", "1,1"])
    '--seeds 1,1: give every value once'
    """

    def option(found: re.Match[str]) -> str:
        name = f"--{found[1].replace('_', '-')}"
        return name if name in options else found[0]

    message = re.sub("`([a-z][a-z0-9_]*)`", option, message)
    name = re.match("([a-z][a-z0-9_]*)(?= is | has no effect | [^ ]+: give every value)", message)
    typed = name and f"--{name[1].replace('_', '-')}"
    if not typed or all(word.partition("=")[0] != typed for word in argv):
        return message
    return re.sub(rf"(?<![\w-]){name[1]}\b", typed, message)


def _is_own_module(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


def _path_error_message(error: OSError, target: str | None) -> str | None:
    if error.errno in _FULL:
        return f"{_full_path(error.filename, target)}: {_FULL[error.errno]}"
    if error.errno in _PATHS:
        # Some libraries give no file name, but name the path in the text.
        name = "" if error.filename is None else f"{error.filename}: "
        return f"{name}{error.strerror}; check the path and its permissions"
    return None


def _full_path(filename: str | bytes | int | None, target: str | None) -> str:
    """Return the path to name for a full disk: the user's, unless another disk is full."""
    if filename is None or target is None:
        return target or str(filename or "output")
    if Path(target).resolve().parent in Path(str(filename)).resolve().parents:
        return target
    return str(filename)


def require(*modules: str, by: str) -> None:
    """Check that modules of other packages can be imported; import none.

    Args:
        modules: names of top-level modules.
        by: what needs them.

    Raises:
        StackError: if one is not installed; names what to install.

    >>> require("numpy", by="cc.roc_auc")
    """
    for module in modules:
        if sys.modules.get(module) is None and importlib.util.find_spec(module) is None:
            raise not_installed(module, by=by)


def not_installed(module: str, *, by: str = "") -> StackError:
    """Return the error for a missing module of another package; names the extra that has it.

    Args:
        module: such as "redis", or one within it.
        by: what needs it.

    >>> str(not_installed("s3fs", by="s3://bucket/a"))
    's3://bucket/a needs s3fs, which is not installed: pip install s3fs'
    """
    name = module.partition(".")[0]
    extra = next((extra for extra, names in EXTRAS.items() if name in names), None)
    install = f"pip install 'cowclip-merlin[{extra}]'" if extra else f"pip install {name}"
    if extra in _OF_OLDER_PYTHON and sys.version_info >= (3, 12):
        install += " with Python 3.10 or 3.11"
    needed = f"{by} needs {name}, which is not installed" if by else f"{name} is not installed"
    return StackError(f"{needed}: {install}")
