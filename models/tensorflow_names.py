"""Names that TensorFlow takes, for columns that may have any name."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Iterable

_SAFE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9_.-])?")
# TensorFlow makes arguments of a Python function of them, whose first one is `self`.
_RESERVED = {"self", *map(str.lower, keyword.kwlist)}


def safe_names(columns: Iterable[str]) -> dict[str, str]:
    """A name of ASCII letters, digits, `_`, `.`, `-` and `/` for each column, in their order.

    A name that TensorFlow takes as it is stays. No two are alike in TensorFlow's eyes, which
    ignore case and punctuation.

    Args:
        columns: names, all different.

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
    """As `safe_names`, without dots and slashes: Keras takes these for paths when it loads.

    >>> variable_names(["a.b", "a_b"])
    {'a.b': 'a_b', 'a_b': 'a_b_2'}
    """
    return {c: re.sub(r"[./]", "_", name) for c, name in safe_names(columns).items()}


def _seen(name: str) -> str:
    """What TensorFlow compares names by."""
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _spelled(column: str) -> str:
    """The name in ASCII: accents are dropped, all other characters become `_`."""
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
