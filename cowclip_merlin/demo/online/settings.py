"""Settings of the demo, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option

OWN = "own"
"""Instead of a broker's address: the demo starts one."""

RATE, OWN_KAFKA_RATE = 2000.0, 50.0
"""Impressions per second; and those that the broker of `--kafka` without an address can take.

It is tansu 0.6.0. It needs a request for each message, which takes longer the more there are.
"""

LEAST_MINUTES = 1.0
"""Below, the trainer's start after the kill takes most of the time."""


@dataclass(frozen=True, kw_only=True)
class DemoSettings(Settings):
    """Settings of the demo.

    With Kafka and Redis, events are in Kafka and syncs in Redis; with none, all are in files. The
    broker that the demo starts takes events only.

    Raises:
        InputError: a number is out of range.
    """

    minutes: float = option(
        3.0, "minutes of events", metavar="M", at_least=LEAST_MINUTES, at_most=24 * 60
    )
    rate: float = option(
        RATE,
        "impressions per second",
        shown="2000; 50 if the demo starts its own Kafka",
        metavar="N",
        kind=float,
        above=0,
    )
    redis: str | None = option(
        None,
        "keep logs in Redis: redis://HOST:6379, or no value to start one here",
        metavar="URL",
        const=OWN,
    )
    kafka: str | None = option(
        None,
        "keep logs in Kafka: kafka://HOST:9092, or no value to start one here",
        metavar="URL",
        const=OWN,
    )
    days: int = option(7, "days of drift of the generated stream")
    sync_every: float = option(
        1.0, "seconds between two syncs of the servers", metavar="S", above=0
    )
    batch_size: int = option(512, "events in a step of the training")
    window: int = option(2, "seconds in which a click counts, in event time")
    delay: float = option(0.5, "mean seconds from an impression to its click")
    seed: int = option(7, "random seed of the stream and of the model")

    def __post_init__(self) -> None:
        """Check the numbers."""
        super().__post_init__()
        if self.kafka == OWN and self.rate > OWN_KAFKA_RATE:
            raise InputError(
                f"--rate {self.rate:g}: the broker that --kafka starts here gets slow with many "
                f"messages; give --rate {OWN_KAFKA_RATE:g}, or --kafka kafka://HOST:9092"
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
