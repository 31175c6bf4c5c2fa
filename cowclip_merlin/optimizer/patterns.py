"""Match variables by names and regular expressions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Variable

Pattern: TypeAlias = "str | Variable"
"""A regular expression of names, or a variable itself."""


def matches(variable: Variable, patterns: Sequence[Pattern]) -> bool:
    """Whether a pattern is this variable itself, or a regular expression found in its name."""
    return any(
        re.search(p, variable.name) is not None if isinstance(p, str) else p is variable
        for p in patterns
    )


def check_patterns(patterns: Iterable[Pattern] | None, argument: str) -> tuple[Pattern, ...] | None:
    """Check the patterns and return them as a tuple.

    Raises:
        InputError: if an entry is neither a regular expression nor a variable.
    """
    if patterns is None:
        return None
    patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for p in patterns:
        if isinstance(p, str):
            try:
                re.compile(p)
            except re.error as error:
                raise InputError(
                    f"{argument}: {p!r} is not a regular expression ({error})"
                ) from error
        elif not hasattr(p, "assign"):
            raise InputError(f"{argument}: {p!r} is neither a name, a regex nor a variable")
    return patterns


class Unmatched:
    """The regular expressions in arguments of `CowClip` that have matched no variable yet.

    Args:
        **patterns: patterns by argument, as `check_patterns` returns them.
    """

    def __init__(self, **patterns: tuple[Pattern, ...] | None) -> None:
        self._left = {
            argument: [p for p in some or () if isinstance(p, str)]
            for argument, some in patterns.items()
        }

    def __bool__(self) -> bool:
        """Whether any pattern is left."""
        return any(self._left.values())

    def look_at(self, argument: str, variables: Sequence[Variable]) -> None:
        """Remove the patterns of this argument that match one of the variables."""
        left = self._left[argument]
        left[:] = [p for p in left if not any(matches(v, (p,)) for v in variables)]

    def refuse(self, argument: str, variables: Sequence[Variable]) -> None:
        """Refuse a pattern that has matched no variable so far.

        Raises:
            InputError: if a pattern is left; the message names it and these variables.
        """
        for pattern in self._left[argument]:
            names = ", ".join(
                [repr(v.name) for v in variables[:4]] + ["..."] * (len(variables) > 4)
            )
            raise InputError(
                f"{argument}: {pattern!r} matches no table of this step (looked at "
                f"{names or 'none'}): correct or remove it; if its table gets gradients in another "
                "call of apply_gradients, call register_tables([table]) before"
            )
