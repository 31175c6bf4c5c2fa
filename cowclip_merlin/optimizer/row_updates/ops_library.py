"""Build the shared library of the GPU's operations from the sources in row_ops/."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.system.files import atomic_write

tf = compat.tensorflow()
_log = logging.getLogger("cowclip_merlin")

_SOURCE_FOLDER = Path(__file__).with_name("row_ops")
_REMEDY = 'install g++, or use backend="tensorflow"'
_FLAGS = ("-O2", "-w", "-shared", "-fPIC")


def build() -> Path:
    """Build the shared library of the operations in the user's cache folder, and return its path.

    If that folder is not writable, use a temporary folder that this process deletes at its end.
    The file's name depends on the sources and on TensorFlow's build, not on where it is installed.
    So a machine without a compiler can use a file from the cache of another machine.

    Raises:
        InputError: if no C++ compiler is found, or if it fails, or no folder can be written.
    """
    flags = [*tf.sysconfig.get_compile_flags(), *_FLAGS]
    links = tf.sysconfig.get_link_flags()
    name = _library_name(flags)
    try:
        return _build_in(_cache_folder(), name, flags, links)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder
        _log.info("no cache of the GPU's row operations: %s", error)
    try:
        return _build_in(_temporary_folder(), name, flags, links)
    except OSError as error:
        raise InputError(f"cannot store the GPU's row operations: {error}; {_REMEDY}") from error


def _library_name(flags: Sequence[str]) -> str:
    texts = [file.read_text(encoding="utf-8") for file in sorted(_SOURCE_FOLDER.rglob("*.*"))]
    others = [flag for flag in flags if not flag.startswith("-I")]
    what = "\n".join([tf.version.VERSION, tf.version.GIT_VERSION, *others, *texts])
    return f"row_ops-{hashlib.sha256(what.encode()).hexdigest()[:16]}.so"


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "cowclip_merlin")


@cache
def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="cowclip_merlin.")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _build_in(folder: Path, name: str, flags: list[str], links: list[str]) -> Path:
    file = folder / name
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as temporary:
            _compile(temporary, flags, links)
    return file


def _compile(file: Path, flags: list[str], links: list[str]) -> None:
    compiler, source = _compiler(), str(_SOURCE_FOLDER / "row_ops.cc")
    _log.info("compiling the GPU's row operations, once on this machine (half a minute)")
    command = [*compiler, *flags, source, "-o", str(file), *links]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        words = f"cannot run the C++ compiler {compiler[0]}: {error.strerror}; {_REMEDY}"
        raise InputError(words) from error
    if done.returncode:
        lines = [x for x in done.stderr.splitlines() if "error" in x] or [done.stderr[-200:]]
        words = " ".join(lines[0].split())
        raise InputError(f"{' '.join(compiler)} cannot compile {source}: {words}; {_REMEDY}")


def _compiler() -> list[str]:
    """Return the command of the C++ compiler: the variable CXX, else g++ or c++."""
    given = os.environ.get("CXX", "")
    try:
        command = shlex.split(given)
    except ValueError as error:
        raise InputError(f"CXX={given} is not a command: {error}; {_REMEDY}") from error
    found = shutil.which("g++") or shutil.which("c++")
    if not command and found is None:
        raise InputError(f"the GPU's row operations need a C++ compiler: {_REMEDY}")
    return command or [str(found)]
