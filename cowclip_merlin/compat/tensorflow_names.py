"""Make names that TensorFlow accepts for columns with any name."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Iterable

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
