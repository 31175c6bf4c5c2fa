"""Build dataclasses from JSON files, which users may have edited."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TypeVar

from cowclip_merlin.types import Json

Made = TypeVar("Made")


def dataclass_from_json(dataclass: type[Made], values: Mapping[str, Json]) -> Made:
    """Build a dataclass; check each value against the annotation of its attribute.

    Args:
        dataclass: its attributes are plain values, tuples of them, mappings from text to them, or
            tuples that their caller has made.
        values: attribute -> value; a list becomes a tuple.

    Raises:
        TypeError: if an attribute is unknown or missing, or a value has the wrong type.
        ValueError: if the dataclass refuses a value.

    >>> from cowclip_merlin.workflows.nvtabular_graph import Recipe
    >>> dataclass_from_json(Recipe, {"freq_threshold": 2, "log": True, "fit_on": "all"}).log
    True
    >>> dataclass_from_json(Recipe, {"freq_threshold": 2, "fit_on": "all"})
    Traceback (most recent call last):
    ...
    TypeError: log is missing
    >>> dataclass_from_json(Recipe, {"freq_threshold": 2, "log": "yes", "fit_on": "all"})
    Traceback (most recent call last):
    ...
    TypeError: log is 'yes', not of type bool
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{values!r:.40} is not a mapping")
    annotations = {field.name: str(field.type) for field in fields(dataclass)}  # type: ignore[arg-type]
    for name in annotations:
        if name not in values:
            raise TypeError(f"{name} is missing")
    for name, value in values.items():
        if name in annotations and not _fits(value, annotations[name]):
            raise TypeError(f"{name} is {value!r:.40}, not of type {annotations[name]}")
    tuples = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
    return dataclass(**tuples)


_PLAIN: Mapping[str, Callable[[Json], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: type(value) is int,  # a bool is an int, too
    "float": lambda value: isinstance(value, float) or _fits_in_float(value),
    "bool": lambda value: isinstance(value, bool),
}


def _fits_in_float(value: Json) -> bool:
    return type(value) is int and abs(value) <= sys.float_info.max


def _fits(value: Json, annotation: str) -> bool:
    annotation, optional, _ = annotation.partition(" | None")
    if value is None:
        return bool(optional)
    if annotation in _PLAIN:
        return _PLAIN[annotation](value)
    outer, _, inner = annotation.rstrip("]").partition("[")
    if outer == "tuple":
        fits = _PLAIN.get(inner.removesuffix(", ..."))
        if fits is None:
            return isinstance(value, tuple)
        return isinstance(value, list | tuple) and all(map(fits, value))
    fits = _PLAIN[inner.removeprefix("str, ")]  # a dict or Mapping
    return isinstance(value, Mapping) and all(map(fits, value.values()))
