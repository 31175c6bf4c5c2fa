"""Replays of a log: the runs of the experiments of kind "sync" and "rules"."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence

from cowclip_merlin.experiments.online.log_runs import LogRuns
from cowclip_merlin.experiments.online.replays.run import ReplayRun, pending_replays, plan_replays
from cowclip_merlin.experiments.online.replays.runner import make_replay
from cowclip_merlin.experiments.results.csv_table import append_rows
from cowclip_merlin.experiments.results.replay_result import ReplayResult, read_replays

Results = Sequence[ReplayResult]


class ReplayRuns(LogRuns[ReplayRun, Results]):
    """The replays of an experiment; each has a row in `replays.csv` for each sync interval."""

    def pending(self) -> Sequence[ReplayRun]:
        """Return the replays that have intervals without a result, with those intervals only."""
        return pending_replays(self.session, plan_replays(self.session, self.experiment))

    def name(self, run: ReplayRun) -> str:
        """Name a replay's folder and its lines."""
        return f"{run.run_id(self.session.fingerprint)}  {run.label}"

    def finished_seconds(self) -> Iterable[float]:
        """Return the times of the replays of this log with this batch size."""
        mine = (self.session.fingerprint, self.session.settings.model.run.batch_size)
        found = [each for each in read_replays(self.session.out) if each.status == "done"]
        times = {
            each.run_id: each.seconds
            for each in found
            if (each.data_fingerprint, each.batch_size) == mine
        }
        return times.values()

    def begin(self) -> None:
        """Remove what a killed process has left of recorded replays."""
        for run_id in {each.run_id for each in read_replays(self.session.out)}:
            self._remove_snapshots(run_id)

    def make(self, run: ReplayRun) -> Results:
        """Replay the log, also from a snapshot."""
        return make_replay(run, self.session)

    def record(self, made: Results) -> None:
        """Add rows to `replays.csv`."""
        append_rows(self.session.out / self.session.results_file, made)

    def clean_up(self, made: Results) -> None:
        """Remove the snapshots and predictions."""
        self._remove_snapshots(made[0].run_id)

    def _remove_snapshots(self, run_id: str) -> None:
        """Remove what takes the size of the tables and of the log."""
        for name in ("snapshots", "predictions"):
            shutil.rmtree(self.session.out / "runs" / run_id / name, ignore_errors=True)

    def progress(self, run: ReplayRun, made: Results) -> str:
        """Say the AUC of each interval, and the speed."""
        first = made[0]
        if first.status != "done":
            return f"{first.run_id}: {first.status}"
        aucs = ", ".join(f"{each.sync} {100 * each.auc:.2f}%" for each in made)
        return (
            f"{first.run_id}: AUC {aucs}; {first.ids_kept:,} ids kept, {first.seconds:.0f} s, "
            f"{first.rows_per_second:,.0f} rows/s"
        )
