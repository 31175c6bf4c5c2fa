"""What each kind of experiment on a log runs and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cowclip_merlin.experiments.definitions import LogExperiment
from cowclip_merlin.experiments.online.collision_kind import (
    collision_seconds,
    make_collisions,
    pending_collisions,
    write_collisions,
)
from cowclip_merlin.experiments.online.replays.outputs import write_replay_outputs
from cowclip_merlin.experiments.online.replays.result import ReplayResult, read_replays
from cowclip_merlin.experiments.online.replays.run import pending_replays, plan_replays
from cowclip_merlin.experiments.online.replays.runner import make_replays
from cowclip_merlin.experiments.online.session import LogSession


@dataclass(frozen=True, kw_only=True)
class LogKind:
    """A kind of experiment on a log; `KINDS` has its name in the YAML files.

    Attributes:
        pending: lists the missing runs, one line of text each.
        run: makes the missing runs, records each in a CSV file of the results folder, and yields
            one line of text for each.
        seconds: returns the time of a finished run on this log; None before the first.
        write: writes table and figure to the results folder, and yields their text.
    """

    pending: Callable[[LogSession, LogExperiment], Sequence[str]]
    run: Callable[[LogSession, LogExperiment], Iterator[str]]
    seconds: Callable[[LogSession], float | None]
    write: Callable[[LogSession, LogExperiment], Iterator[str]]


def _pending(session: LogSession, experiment: LogExperiment) -> list[str]:
    runs = pending_replays(session, plan_replays(session, experiment))
    return [f"{run.run_id(session.fingerprint)}  {run.label}" for run in runs]


def _run(session: LogSession, experiment: LogExperiment) -> Iterator[str]:
    runs = pending_replays(session, plan_replays(session, experiment))
    for results in make_replays(runs, session):
        yield _progress(results)


def _progress(results: Sequence[ReplayResult]) -> str:
    first = results[0]
    if first.status != "done":
        return f"{first.run_id}: {first.status}"
    aucs = ", ".join(f"{each.sync} {100 * each.auc:.2f}%" for each in results)
    return (
        f"{first.run_id}: AUC {aucs}; {first.ids_kept:,} ids kept, {first.seconds:.0f} s, "
        f"{first.rows_per_second:,.0f} rows/s"
    )


def _seconds(session: LogSession) -> float | None:
    """Return the mean time of the replays of this log with this batch size."""
    batch = session.settings.model.run.batch_size
    found = {
        each.run_id: each.seconds
        for each in read_replays(session.settings.out)
        if each.status == "done"
        and (each.data_fingerprint, each.batch_size) == (session.fingerprint, batch)
    }
    return sum(found.values()) / len(found) if found else None


REPLAYS = LogKind(pending=_pending, run=_run, seconds=_seconds, write=write_replay_outputs)
COLLISIONS = LogKind(
    pending=lambda session, experiment: [
        run.text for run in pending_collisions(session, experiment)
    ],
    run=make_collisions,
    seconds=collision_seconds,
    write=write_collisions,
)
KINDS: Mapping[str, LogKind] = {"sync": REPLAYS, "rules": REPLAYS, "collisions": COLLISIONS}
"""A kind of `definitions.LOG_KINDS` -> what it does."""
