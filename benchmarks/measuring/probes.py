"""Measure the time from a click on something new to predictions that know it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from cowclip_merlin.demo.report import percentiles
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.logs.message_log import MessageLog, Position
from cowclip_merlin.types import JsonObject
from measuring.server_client import NoAnswer, ServerClient
from measuring.sync_watch import Repeat, SyncWatch

STAGES = ("join", "train", "push", "apply")

_LONGEST = 60.0  # seconds until a probe is given up
_SHORTEST, _LONGEST_PAUSE = 0.01, 0.25  # seconds between two questions to the servers
_PART = 0.02  # of the time since the probe, which a pause takes
_FIRST_ID = 10**15  # far above the ids of the stream


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Seconds of one probe on its way.

    Attributes:
        join: until its example was in the log of examples.
        train: until the trainer sent the sync with it.
        push: until that sync was complete in the log of servers.
        apply: until all servers answered with it.
        total: of all stages.
    """

    join: float
    train: float
    push: float
    apply: float
    total: float


class Prober(Repeat):
    """Sends a probe from time to time: an impression with new ids and a click on it.

    A probe is known to a server when its prediction differs from that for other new ids.

    Args:
        features: names of the columns.
        impressions: log of impressions.
        actions: log of clicks.
        examples: log of the joined examples.
        watch: of the syncs.
        ports: of the servers.
        every: mean seconds from the end of a probe to the next one.

    Attributes:
        latencies: of the probes that all servers knew in the end.
        given_up: probes that a server did not know in time.
    """

    def __init__(
        self,
        features: LogFeatures,
        impressions: MessageLog,
        actions: MessageLog,
        examples: MessageLog,
        watch: SyncWatch,
        ports: Sequence[int],
        *,
        every: float,
    ) -> None:
        super().__init__("probes", every=0.0)
        self._mean_pause = every
        self._features = features
        self._impressions, self._actions, self._examples = impressions, actions, examples
        self._watch = watch
        self._clients = [ServerClient(port) for port in ports]
        self._sent = 0
        self.latencies: list[Latency] = []
        self.given_up = 0

    def step(self) -> None:
        """Send one probe, and wait until all servers know it."""
        # At random, as a probe ends with a sync: at a fixed time, all would wait equally long.
        self.pause(random.uniform(0, 2 * self._mean_pause))
        if not self.is_ending:
            self._send_probe()

    def _send_probe(self) -> None:
        began, number = time.time(), self._sent
        self._sent += 1
        place = self._examples.end()
        key = f"probe-{began:.6f}-{number}"
        row = self._row(2 * number)
        event = row | {self._features.key: key, self._features.time: round(began, 3)}
        self._impressions.append([json.dumps(event).encode()])
        click = {self._features.key: key, self._features.time: round(began, 3)}
        self._actions.append([json.dumps(click).encode()])
        joined = self._wait_for_example(place, key, began)
        # The second row has ids that no event ever has.
        known = joined and self._wait_for_servers([row, self._row(2 * number + 1)], began)
        if known:
            self._note(began, joined, *known)
        elif not self.is_ending:
            self.given_up += 1

    def _row(self, number: int) -> JsonObject:
        """Return an event whose ids are new, and whose numbers are missing."""
        ids = {column.name: _FIRST_ID + number for column in self._features.categorical}
        return ids | {column.name: None for column in self._features.continuous}

    def _wait_for_example(self, place: Position, key: str, began: float) -> float | None:
        """Return when the example was there."""
        wanted = key.encode()
        while self._goes_on(began):
            for message in self._examples.read(place, most=4096, wait=0.05):
                place = message.after
                if wanted in message.value:
                    return time.time()
        return None

    def _wait_for_servers(
        self, rows: Sequence[JsonObject], began: float
    ) -> tuple[float, tuple[int, int]] | None:
        """Return when the last server knew the ids, and the first version that did."""
        waiting, versions = list(self._clients), []
        while self._goes_on(began):
            for client in list(waiting):
                answer = None
                with suppress(NoAnswer):  # it is asked again
                    answer = client.predict(rows)
                if answer and answer.probabilities[0] != answer.probabilities[1]:
                    waiting.remove(client)
                    versions.append((answer.generation, answer.seq))
            if not waiting:
                return time.time(), min(versions)
            self._pause_after(began)
        return None

    def _note(self, began: float, joined: float, known: float, version: tuple[int, int]) -> None:
        # A server knows rows a moment before it has the version of their sync.
        sync = self._watch.first_from(version, sent=joined)
        while sync is None and self._goes_on(began):  # the watch reads it in a moment
            self.pause(_SHORTEST)
            sync = self._watch.first_from(version, sent=joined)
        if sync is None:
            return
        # A server may read a sync a moment before the watch does.
        known = max(known, sync.sent)
        seen = min(sync.seen, known)
        self.latencies.append(
            Latency(
                join=joined - began,
                train=sync.sent - joined,
                push=seen - sync.sent,
                apply=known - seen,
                total=known - began,
            )
        )

    def _pause_after(self, began: float) -> None:
        """Wait before the next question: servers that wait themselves need not be asked often."""
        waited = time.time() - began
        self.pause(min(max(_PART * waited, _SHORTEST), _LONGEST_PAUSE))

    def _goes_on(self, began: float) -> bool:
        return not self.is_ending and time.time() - began < _LONGEST


def latency_summary(latencies: Sequence[Latency], given_up: int) -> JsonObject:
    """Return the percentiles of each stage and of the whole way."""
    stages = {
        name: percentiles([getattr(each, name) for each in latencies], 50, 95)
        for name in (*STAGES, "total")
    }
    return {"probes": len(latencies), "given_up": given_up, "seconds": stages}
