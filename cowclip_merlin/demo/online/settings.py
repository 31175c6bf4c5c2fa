"""Settings of the demo, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from cowclip_merlin.checks import check_positive
from cowclip_merlin.errors import InputError

OWN = "own"
"""Instead of a broker's address: the demo starts one."""

RATE, OWN_KAFKA_RATE = 2000.0, 50.0
"""Impressions per second; and those that the broker of `--kafka` without an address can take.

It is tansu 0.6.0. It needs a request for each message, which takes longer the more there are.
"""

LEAST_MINUTES = 1.0
"""Below, the trainer's start after the kill takes most of the time."""


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """Settings of the demo.

    Attributes:
        minutes: that events are produced.
        rate: impressions per second.
        redis: address of a Redis server for the logs, such as redis://HOST:6379, or `OWN`; None
            for none.
        kafka: address of a Kafka broker, such as kafka://HOST:9092, or `OWN`; None for none. With
            both, events are in Kafka and syncs in Redis; with none, all are in files. The broker
            that the demo starts takes events only.
        days: days of drift of the generated stream.
        sync_every: seconds between two syncs of the servers.
        batch_size: of the training.
        window: seconds in which a click counts, in event time.
        delay: mean seconds from an impression to its click.
        seed: of the stream and of the model.

    Raises:
        InputError: a number is out of range.
    """

    minutes: float = 3.0
    rate: float = RATE
    redis: str | None = None
    kafka: str | None = None
    days: int = 7
    sync_every: float = 1.0
    batch_size: int = 512
    window: int = 2
    delay: float = 0.5
    seed: int = 7

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.kafka == OWN and self.rate > OWN_KAFKA_RATE:
            raise InputError(
                f"--rate {self.rate:g}: the broker that --kafka starts here gets slow with many "
                f"messages; give --rate {OWN_KAFKA_RATE:g}, or --kafka kafka://HOST:9092"
            )
        check_positive({"--rate": self.rate, "--sync-every": self.sync_every})
        if not LEAST_MINUTES <= self.minutes <= 24 * 60:
            raise InputError(
                f"--minutes is {self.minutes:g}; give {LEAST_MINUTES:g} to 1440, or the trainer "
                "has no time to come back"
            )

    @property
    def seconds(self) -> float:
        """Seconds that events are produced."""
        return 60 * self.minutes

    @property
    def events(self) -> int:
        """Impressions in all."""
        return max(1, round(self.rate * self.seconds))

    @property
    def freeze_after(self) -> float:
        """Seconds after which the server that is compared gets no more syncs."""
        return min(60.0, self.seconds / 3)

    @property
    def kill_after(self) -> float:
        """Seconds after which the trainer is killed."""
        return 0.5 * self.seconds

    @property
    def snapshot_every(self) -> float:
        """Seconds between two snapshots."""
        return min(30.0, self.seconds / 6)
