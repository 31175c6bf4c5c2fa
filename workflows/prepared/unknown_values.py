"""Values that a vocabulary lacks, and values that may be written in two ways."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, NamedTuple

from cowclip_merlin.types import ArrowColumn
from cowclip_merlin.workflows.prepared.counts import SPECIAL, read_counts
from cowclip_merlin.workflows.prepared.folder import PreparedData

if TYPE_CHECKING:
    import pyarrow as pa

_MANY = 0.5  # share of unknown values that is worth a warning
_BOOLEANS = ("true", "false", "True", "False", "TRUE", "FALSE")
LOOKED_AT = 1000
"""Most frequent values whose form is that of all."""
_COMPARED = 100_000  # most frequent values of a vocabulary that unknown ones are compared with


def format_shares(shares: Mapping[str, float]) -> str:
    """Format the shares of unknown values by column, the largest first.

    >>> format_shares({"item": 0.001, "user": 0.25})
    'unknown values (id 2): user 25.0%, item 0.1%'
    """
    falling = sorted(shares, key=lambda name: -shares[name])
    return "unknown values (id 2): " + ", ".join(f"{c} {100 * shares[c]:.1f}%" for c in falling)


def warn_of_unknown(
    base: PreparedData, shares: Mapping[str, float], frequent: Callable[[str], Sequence[str]]
) -> None:
    """Log a warning for each column most of whose values are unknown.

    Args:
        base: the folder with the vocabulary.
        shares: column -> share of unknown values.
        frequent: returns some frequent unknown values of a column.
    """
    for name, share in shares.items():
        if share > _MANY:
            logging.getLogger(__name__).warning(
                "warning: column %r: %.0f%% of the values are unknown to %s; %s",
                name,
                100 * share,
                base.path,
                Remedy.of(frequent(name), base, name).text,
            )


def warn_of_two_texts(data: PreparedData) -> None:
    """Log a warning for each column with two ids for what may be one value: True and true."""
    for name in data.log_format.tables:
        if pair := _two_texts(_values(data, name)):
            logging.getLogger(__name__).warning(
                "warning: column %r: %r and %r have two ids; if they are one value, write it in "
                "one way in all files",
                name,
                *pair,
            )


def _values(data: PreparedData, name: str) -> pa.ChunkedArray:
    """Return the values of a vocabulary, the most frequent first: chunked Arrow text."""
    import pyarrow as pa

    return read_counts(data, name)["value"].slice(len(SPECIAL)).cast(pa.large_string())


class Remedy(NamedTuple):
    """What to do about unknown values.

    Attributes:
        text: names a value that both write in different ways, or one of each.
        same_value: whether one of them is a known value, written in another way.
    """

    text: str
    same_value: bool

    @classmethod
    def of(cls, unknown: Sequence[str], base: PreparedData, name: str) -> Remedy:
        """Compare unknown values of a column with the vocabulary of a folder."""
        known = _values(base, name).slice(0, _COMPARED).to_pylist()
        by_meaning = {_meaning(value): value for value in known}
        for value in unknown:
            if other := by_meaning.get(_meaning(value)):
                return cls(f"{value!r} is {other!r} there; write the column as there", True)
        if unknown and known:
            words = f"such as {unknown[0]!r}, but it has {known[0]!r}; check the column"
            return cls(words, False)
        return cls("check the column", False)


def _meaning(text: str) -> Decimal | str:
    """Return what two texts of one value have in common: the number, or the text without case.

    >>> _meaning("47.0") == _meaning("047") == _meaning("4.7e+01"), _meaning(" True")
    (True, 'true')
    """
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text.strip().casefold()
    return number if number.is_finite() else text.casefold()


def _two_texts(vocabulary: ArrowColumn) -> tuple[str, str] | None:
    """Return two texts of a boolean in a vocabulary, if there are two.

    >>> import pyarrow as pa
    >>> _two_texts(pa.array(["True", "x", "true"]))
    ('True', 'true')
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    words = vocabulary.filter(pc.is_in(vocabulary, pa.array(_BOOLEANS)))
    first: dict[str, str] = {}
    for word in words.to_pylist():
        if (other := first.setdefault(word.lower(), word)) != word:
            return other, word
    return None
