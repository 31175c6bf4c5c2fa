"""Make names and paths that TensorFlow accepts for columns and files with any name.

TensorFlow looks for the files of a checkpoint by a pattern, as a shell does. So it does not find
those in a folder `sweep[lr=1e-3]`, and Keras cannot save there.
"""

from __future__ import annotations

import functools
import keyword
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

_SAFE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9_.-])?")
# TensorFlow uses the names as arguments of a Python function with a first argument `self`.
_RESERVED = {"self", *map(str.lower, keyword.kwlist)}


def safe_names(columns: Iterable[str]) -> dict[str, str]:
    """Map each column, in order, to a name of ASCII letters, digits, `_`, `.`, `-` and `/`.

    Names that TensorFlow accepts do not change. All results differ even without case and
    punctuation, which TensorFlow ignores.

    Args:
        columns: distinct names.

    >>> safe_names(["C1", "user id", "user_id", "Größe", "self"])
    {'C1': 'C1', 'user id': 'user_id_2', 'user_id': 'user_id', 'Größe': 'Gro_e', 'self': 'self_2'}
    """
    columns = list(columns)
    found: dict[str, str] = {}
    taken = set(_RESERVED)
    for column in columns:
        if _SAFE.fullmatch(column) and _seen(column) not in taken:
            found[column] = column
            taken.add(_seen(column))
    for column in columns:
        if column not in found:
            found[column] = _free(_spelled(column), taken)
            taken.add(_seen(found[column]))
    return {column: found[column] for column in columns}


def variable_names(columns: Iterable[str]) -> dict[str, str]:
    """Like `safe_names`, without dots and slashes, which Keras reads as paths when it loads.

    >>> variable_names(["a.b", "a_b"])
    {'a.b': 'a_b', 'a_b': 'a_b_2'}
    """
    return {c: re.sub(r"[./]", "_", name) for c, name in safe_names(columns).items()}


def _seen(name: str) -> str:
    """Return the form of a name that TensorFlow compares."""
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _spelled(column: str) -> str:
    """Convert a name to ASCII: remove accents, and replace other characters by `_`."""
    plain = "".join(
        c for c in unicodedata.normalize("NFKD", column) if not unicodedata.combining(c)
    )
    return re.sub(r"[^A-Za-z0-9]+", "_", plain).strip("_") or "column"


def _free(name: str, taken: set[str]) -> str:
    if _seen(name) not in taken:
        return name
    number = 2
    while _seen(f"{name}_{number}") in taken:
        number += 1
    return f"{name}_{number}"


_WILD = re.compile(r"[*?\[\]\\]")


def literal_path(path: str | Path) -> Path:
    """Return a path without characters that have a meaning in patterns, for the same file.

    If the path has some, this is a path through a link to its folder, which exists as long as this
    process.

    Args:
        path: of a file or folder; the folder that it is in exists.

    >>> literal_path("runs/lr=1e-3")
    PosixPath('runs/lr=1e-3')
    >>> _WILD.search(str(literal_path("/tmp/[a]*?/b[1]/ckpt-1"))) is None
    True
    """
    path = Path(path)
    if not _WILD.search(str(path)):
        return path
    if _WILD.search(path.name):
        return _link_to(path.absolute())
    return _link_to(path.parent.absolute()) / path.name


@functools.cache
def _links() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="cowclip-links-")


@functools.cache
def _link_to(folder: Path) -> Path:
    links = Path(_links().name)
    link = links / str(len(list(links.iterdir())))
    link.symlink_to(folder)
    return link
