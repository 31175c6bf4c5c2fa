"""What a join has counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class JoinCounts:
    """Numbers of messages and examples since the state was made.

    Attributes:
        impressions: messages of the impressions log, all of them.
        clicks: messages of the actions log, all of them.
        damaged_impressions: set aside.
        damaged_clicks: set aside.
        repeated_impressions: whose key was there before.
        repeated_clicks: on an impression that has its click already.
        early_clicks: whose time is before that of their impression.
        clicks_without_impression: which no impression came for.
        positives: examples of impressions with a click in the window.
        late_positives: examples of impressions with a click after the window only.
        negatives: examples of impressions without a click in the window.
        dropped_negatives: such impressions that the sampling left out.
    """

    impressions: int = 0
    clicks: int = 0
    damaged_impressions: int = 0
    damaged_clicks: int = 0
    repeated_impressions: int = 0
    repeated_clicks: int = 0
    early_clicks: int = 0
    clicks_without_impression: int = 0
    positives: int = 0
    late_positives: int = 0
    negatives: int = 0
    dropped_negatives: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the numbers by name."""
        return asdict(self)

    def summary(self) -> str:
        """Return all of them that are not 0, in words.

        >>> JoinCounts(impressions=1200, negatives=7).summary()
        '1,200 impressions, 7 negatives'
        """
        words = (f"{n:,} {name.replace('_', ' ')}" for name, n in self.as_dict().items() if n)
        return ", ".join(words) or "no messages"
