"""What each kind of experiment runs and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cowclip_merlin.experiments import outputs
from cowclip_merlin.experiments.definitions import RUN_KINDS
from cowclip_merlin.experiments.online.collision_outputs import write_collisions
from cowclip_merlin.experiments.online.collision_runs import CollisionRuns
from cowclip_merlin.experiments.online.replay_outputs import write_replays
from cowclip_merlin.experiments.online.replay_runs import ReplayRuns
from cowclip_merlin.experiments.runs import Runs
from cowclip_merlin.experiments.training_runs import SweepRuns, TrainingRuns

RUNS: Mapping[str, Callable[[Any, Any], Runs[Any, Any, Any]]] = {
    **dict.fromkeys(RUN_KINDS, TrainingRuns),
    "sweep": SweepRuns,
    "sync": ReplayRuns,
    "rules": ReplayRuns,
    "collisions": CollisionRuns,
}
"""Kind of experiment -> its runs; other kinds need none."""

WRITERS: Mapping[str, Callable[[Any, Any], Iterator[str]]] = {
    **outputs.WRITERS,
    "sync": write_replays,
    "rules": write_replays,
    "collisions": write_collisions,
}
"""Kind of experiment -> writes its table and figures, and yields the text to print."""
