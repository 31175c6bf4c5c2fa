"""Replace TensorFlow and Merlin while Sphinx builds the site, which only reads docstrings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Absent:
    """Dummy that has every attribute, can be a base class, and decorates without effect."""

    def __getattr__(self, name: str) -> Absent:
        """Return the dummy itself, except for Python's special names."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Callable[[Any], Any]:
        """Return a decorator that does nothing."""
        return lambda decorated: decorated

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[()]:
        """Return no base classes."""
        return ()
