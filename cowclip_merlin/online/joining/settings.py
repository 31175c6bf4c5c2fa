"""Settings of the join of impressions and clicks."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

from cowclip_merlin.errors import InputError

_HASH_DIGITS = 8  # hexadecimal, of the hash that draws the negatives


@dataclass(frozen=True, kw_only=True)
class JoinSettings:
    """Settings of a join. All times but `idle` are whole seconds of event time.

    Attributes:
        window: time after an impression within which a click makes it positive.
        negatives: probability with which an impression without a click is kept, in (0, 1].
        late: time after the window within which a click still gives a late positive.
        lateness: by how much the messages of a log may be out of order, and by how much a click
            may carry an earlier time than its impression.
        idle: seconds of real time after which a silent log does not hold back the other one.
        seed: of the hash that draws the negatives.

    Raises:
        InputError: a value is out of range.
    """

    window: int
    negatives: float = 1.0
    late: int = 0
    lateness: int = 10
    idle: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        if self.window <= 0:
            raise InputError(f"window is {self.window}; give a number of seconds above 0")
        for name in ("late", "lateness"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; give seconds from 0 on")
        if not 0 < self.idle < math.inf:
            raise InputError(f"idle is {self.idle}; give a number of seconds above 0")
        if not 0 < self.negatives <= 1 or self._limit == 0:
            raise InputError(f"negatives is {self.negatives}; give a probability in (0, 1]")

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


def hash_start(seed: int, key: str) -> str:
    """The first hexadecimal digits of the SHA-256 of "SEED:KEY"; SQL computes the same.

    >>> hash_start(0, "a")
    '9df3c5fa'
    """
    return hashlib.sha256(f"{seed}:{key}".encode()).hexdigest()[:_HASH_DIGITS]
