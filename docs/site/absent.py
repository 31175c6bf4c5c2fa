"""Stands in for TensorFlow and Merlin while the site is built, which needs docstrings only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Absent:
    """Has every attribute, is the base of any class, and leaves what it decorates alone."""

    def __getattr__(self, name: str) -> Absent:
        """Itself, whatever is asked for; but nothing that Python itself asks for."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Callable[[Any], Any]:
        """A decorator that does nothing."""
        return lambda decorated: decorated

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[()]:
        """As a base class: none."""
        return ()
