"""Trainings on prepared data: the runs of most experiments."""

from __future__ import annotations

from collections.abc import Sequence

from cowclip_merlin.experiments.definitions import Experiment
from cowclip_merlin.experiments.planning.planned_run import PlannedRun
from cowclip_merlin.experiments.results.result import Result
from cowclip_merlin.experiments.results.results_csv import append_result
from cowclip_merlin.experiments.running.estimate import estimate_seconds
from cowclip_merlin.experiments.running.runner import (
    remove_checkpoints,
    remove_left_checkpoints,
    train_run,
)
from cowclip_merlin.experiments.runs import Runs
from cowclip_merlin.experiments.session import Session


class TrainingRuns(Runs[Session, Experiment, PlannedRun, Result]):
    """The trainings of an experiment; each has a row in `results.csv`."""

    def describe(self) -> str:
        """Describe the batches and rates."""
        return self.session.sizing(self.experiment).describe()

    def pending(self) -> Sequence[PlannedRun]:
        """Return the runs of the chosen lines that have no result yet."""
        return self.session.pending_runs(self.experiment)

    def name(self, run: PlannedRun) -> str:
        """Name a run's folder and its line."""
        return f"{run.run_id(self.session.context.fingerprint)}  {run.label}"

    def seconds(self, runs: Sequence[PlannedRun]) -> float:
        """Estimate the time from a few steps."""
        return estimate_seconds(runs, self.session.context.data)

    def begin(self) -> None:
        """Say the sizes, and remove what a killed process has left."""
        print(self.describe())
        remove_left_checkpoints(self.session.out)

    def make(self, run: PlannedRun) -> Result:
        """Train, also from a checkpoint."""
        return train_run(run, self.session.context)

    def record(self, made: Result) -> None:
        """Add a row to `results.csv`."""
        append_result(self.session.out, made)

    def clean_up(self, made: Result) -> None:
        """Remove the checkpoints: training cannot resume from half of them."""
        remove_checkpoints(self.session.out, made)

    def progress(self, run: PlannedRun, made: Result) -> str:
        """Say the scores and the speed."""
        if made.status != "done":
            return f"{made.run_id}: {made.status}"
        return (
            f"{made.run_id}: {made.split} AUC {100 * made.auc:.2f}%, log loss "
            f"{made.log_loss:.4f}, {made.seconds:.0f} s, {made.rows_per_second:,.0f} rows/s"
        )


class SweepRuns(TrainingRuns):
    """The trainings of a sweep, which add points next to the best."""

    then = ", then the neighbors of the best"
