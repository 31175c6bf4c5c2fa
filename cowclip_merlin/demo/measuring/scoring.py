"""Score impressions before their clicks are known, with a model that learns and one that does not.

AUC over time is what an online model is for: both models score the same impressions at the same
moment, and later clicks say which of them was right.
"""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin.demo.measuring.server_client import NoAnswer, ServerClient
from cowclip_merlin.demo.measuring.sync_watch import Repeat
from cowclip_merlin.metrics import roc_auc
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.logs.message_log import MessageLog
from cowclip_merlin.types import Floats, JsonObject

_AT_ONCE = 1000  # impressions in a request at most

ONLINE, FROZEN, BEST = "online", "frozen", "best"
"""The model that is synced, the one that is not any more, and the true probabilities."""


class Scored(NamedTuple):
    """Some impressions that were scored together.

    Attributes:
        time: when, seconds since 1970.
        keys: of the impressions.
        scores: model -> scores of the impressions.
    """

    time: float
    keys: list[Hashable]
    scores: Mapping[str, list[float]]


class Scorer(Repeat):
    """Scores a part of the impressions as they come, and collects all clicks.

    Args:
        features: names of the columns.
        impressions: log of impressions.
        actions: log of clicks.
        ports: model -> ports of its servers, which are asked in turn.
        probability: column with the true probability of a click.
        one_in: the part of the impressions to score: one in so many.
        every: seconds between two steps.

    Attributes:
        scored: what was scored so far.
        clicked: keys of all clicks so far.
        unanswered: requests that got no answer; their impressions are left out.
    """

    def __init__(
        self,
        features: LogFeatures,
        impressions: MessageLog,
        actions: MessageLog,
        ports: Mapping[str, Sequence[int]],
        *,
        probability: str,
        one_in: int = 1,
        every: float = 0.5,
    ) -> None:
        super().__init__("scores", every=every)
        self._features, self._probability, self._one_in = features, probability, one_in
        self._impressions, self._actions = impressions, actions
        self._shown, self._acted = impressions.end(), actions.start()
        self._clients = {name: [ServerClient(p) for p in each] for name, each in ports.items()}
        self._turn = 0
        self.scored: list[Scored] = []
        self.clicked: set[Hashable] = set()
        self.unanswered = 0

    def step(self) -> None:
        """Score the newest impressions, and read the clicks."""
        values = self._new_impressions()[:: self._one_in][-_AT_ONCE:]
        rows = [json.loads(value) for value in values]
        rows = [row for row in rows if self._probability in row]  # probes have none
        if rows:
            self._score(rows)
        self.read_clicks()

    def read_clicks(self) -> None:
        """Read all clicks that are there."""
        while messages := self._actions.read(self._acted, most=4096):
            self._acted = messages[-1].after
            self.clicked.update(json.loads(m.value)[self._features.key] for m in messages)

    def _new_impressions(self) -> list[bytes]:
        values: list[bytes] = []
        while messages := self._impressions.read(self._shown, most=4096):
            self._shown = messages[-1].after
            values += [message.value for message in messages]
        return values

    def _score(self, rows: list[JsonObject]) -> None:
        inputs = [{name: row[name] for name in self._features.inputs} for row in rows]
        scores = {BEST: [float(row[self._probability]) for row in rows]}
        self._turn += 1
        for name, clients in self._clients.items():
            try:
                scores[name] = clients[self._turn % len(clients)].predict(inputs).probabilities
            except NoAnswer:
                self.unanswered += 1
                return
        keys = [row[self._features.key] for row in rows]
        self.scored.append(Scored(time.time(), keys, scores))


class AucOverTime(NamedTuple):
    """AUC in equal parts of the time, and of all of it.

    Attributes:
        times: middle of each part, in seconds after the start.
        parts: model -> AUC in each part; NaN where there are too few clicks.
        whole: model -> AUC of all impressions.
        impressions: how many there are in all.
    """

    times: list[float]
    parts: dict[str, list[float]]
    whole: dict[str, float]
    impressions: int


def auc_over_time(
    scored: Sequence[Scored], clicked: set[Hashable], *, start: float, end: float, parts: int
) -> AucOverTime:
    """Compare scores with clicks.

    Args:
        scored: impressions with scores.
        clicked: keys of the impressions that were clicked.
        start: leave out impressions before this time.
        end: and those from this time on, whose clicks may not be known yet.
        parts: number of parts of the time between.
    """
    used = [each for each in scored if start <= each.time < end]
    labels = np.array([key in clicked for each in used for key in each.keys], np.int8)
    times = np.repeat([each.time for each in used], [len(each.keys) for each in used])
    part = ((times - start) / (end - start) * parts).astype(int) if len(used) else times.astype(int)
    width = (end - start) / parts
    models = (ONLINE, FROZEN, BEST)
    scores = {name: np.array([x for each in used for x in each.scores[name]]) for name in models}
    return AucOverTime(
        times=[(i + 0.5) * width for i in range(parts)],
        parts={
            name: [_auc(labels[part == i], x[part == i]) for i in range(parts)]
            for name, x in scores.items()
        },
        whole={name: _auc(labels, x) for name, x in scores.items()},
        impressions=len(labels),
    )


def _auc(labels: npt.NDArray[np.int8], scores: Floats) -> float:
    """AUC; NaN with fewer than 20 of one class, which say nothing."""
    clicks = int(labels.sum())
    return float("nan") if min(clicks, len(labels) - clicks) < 20 else roc_auc(labels, scores)
