"""Settings of the join of impressions and clicks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import LATE, SAMPLE_RATE
from cowclip_merlin.online.events.values import parse_duration
from cowclip_merlin.settings import Settings, option

_HASH_DIGITS = 8  # hexadecimal, of the hash that draws the negatives


def _seconds_of(option: str) -> Callable[[str], int]:
    """Return what makes whole seconds of the text of an option, such as 10min."""
    return lambda text: 0 if text == "0" else parse_duration(text, option)


@dataclass(frozen=True, kw_only=True)
class JoinSettings(Settings):
    """Settings of a join. All times but `idle` are whole seconds of event time.

    Raises:
        InputError: a value is out of range.
    """

    window: int = option(
        help="time in which a click makes its impression positive: seconds, or 10min, 2h",
        metavar="TIME",
        convert=_seconds_of("--window"),
        at_least=1,
    )
    negatives: float = option(
        1.0,
        "probability with which an impression without a click is kept",
        metavar="Q",
        above=0,
        at_most=1,
    )
    late: int = option(
        0,
        "time after the window in which a click still gives a positive, with `cowclip_late` 1",
        metavar="TIME",
        convert=_seconds_of("--late"),
        at_least=0,
    )
    lateness: int = option(
        10,
        "by how much messages of a log may be out of order",
        metavar="TIME",
        convert=_seconds_of("--lateness"),
        at_least=0,
    )
    idle: float = option(
        30.0,
        "seconds of real time after which a silent log is not waited for",
        metavar="S",
        above=0,
    )
    seed: int = option(0, "seed of the hash that chooses the negatives")

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self._limit == 0:
            raise InputError(f"negatives is {self.negatives}; it must be at least 2**-32")

    @property
    def clicks_until(self) -> int:
        """Seconds after an impression until which a click belongs to it."""
        return self.window + self.late

    @property
    def kept(self) -> int:
        """Seconds after an impression within which its key is remembered."""
        return self.clicks_until + self.lateness

    @cached_property
    def hash_limit(self) -> str | None:
        """A negative is kept if the start of its hash is below; None to keep all."""
        full = 16**_HASH_DIGITS
        return None if self._limit >= full else f"{self._limit:0{_HASH_DIGITS}x}"

    @property
    def _limit(self) -> int:
        return round(self.negatives * 16**_HASH_DIGITS)

    def keeps_negative(self, key: str) -> bool:
        """Whether the negative example of a key is kept: equal in each run.

        >>> settings = JoinSettings(window=600, negatives=0.1)
        >>> sum(settings.keeps_negative(str(key)) for key in range(10_000))
        975
        """
        return self.hash_limit is None or hash_start(self.seed, key) < self.hash_limit

    def example_end(self, name: str, label: int, *, late: bool = False) -> str:
        """Return what an example has in place of the last brace of its impression.

        Each example carries the rate of the negatives, so that nobody takes another column of the
        impression for it.

        Args:
            name: of the label column.
            label: of the example.
            late: whether the click came after the window.

        >>> JoinSettings(window=600, negatives=0.1).example_end("click", 1)
        ',"click":1,"cowclip_sample_rate":0.1}'
        """
        more = {name: label, SAMPLE_RATE: self.negatives} | ({LATE: 1} if late else {})
        return "," + json.dumps(more, separators=(",", ":"))[1:]


def hash_start(seed: int, key: str) -> str:
    """The first hexadecimal digits of the SHA-256 of "SEED:KEY"; SQL computes the same.

    >>> hash_start(0, "a")
    '9df3c5fa'
    """
    return hashlib.sha256(f"{seed}:{key}".encode()).hexdigest()[:_HASH_DIGITS]
