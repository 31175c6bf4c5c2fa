"""Trainings on prepared data: the runs of most experiments."""

from __future__ import annotations

from collections.abc import Sequence

from cowclip_merlin.experiments.definitions import Experiment
from cowclip_merlin.experiments.planning.planned_run import PlannedRun
from cowclip_merlin.experiments.results.results_csv import append_result
from cowclip_merlin.experiments.running.estimate import estimate_seconds
from cowclip_merlin.experiments.running.runner import (
    remove_checkpoints,
    remove_left_checkpoints,
    train_run,
)
from cowclip_merlin.experiments.runs import Runs
from cowclip_merlin.experiments.session import Session


class TrainingRuns(Runs[Session, Experiment, PlannedRun]):
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

    def make(self, run: PlannedRun) -> str:
        """Train, also from a checkpoint; return the scores and the speed."""
        result, out = train_run(run, self.session.context), self.session.out
        append_result(out, result)
        remove_checkpoints(out, result)  # only now: training cannot resume from half of them
        if result.status != "done":
            return f"{result.run_id}: {result.status}"
        return (
            f"{result.run_id}: {result.split} AUC {100 * result.auc:.2f}%, log loss "
            f"{result.log_loss:.4f}, {result.seconds:.0f} s, {result.rows_per_second:,.0f} rows/s"
        )


class SweepRuns(TrainingRuns):
    """The trainings of a sweep, which add points next to the best."""

    then = ", then the neighbors of the best"
