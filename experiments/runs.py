"""The runs of an experiment: which are missing, and how a training on prepared data is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from cowclip_merlin.experiments.definitions import Experiment, LogExperiment
from cowclip_merlin.experiments.planning.plan import PlannedRun
from cowclip_merlin.experiments.results.result import append_result
from cowclip_merlin.experiments.running.estimate import estimate_seconds
from cowclip_merlin.experiments.running.runner import (
    remove_checkpoints,
    remove_left_checkpoints,
    train_run,
)
from cowclip_merlin.experiments.session import ResultsSession, Session

S = TypeVar("S", bound=ResultsSession)
E = TypeVar("E", Experiment, LogExperiment)
Run = TypeVar("Run")


class Runs(ABC, Generic[S, E, Run]):
    """The runs of one experiment in a session.

    Args:
        session: the data or log, and the results folder.
        experiment: what the runs are for.

    Attributes:
        then: what follows the missing runs, for a dry run.
    """

    then: ClassVar[str] = ""

    def __init__(self, session: S, experiment: E) -> None:
        self.session, self.experiment = session, experiment

    @abstractmethod
    def describe(self) -> str:
        """Describe the data or the sizes of the runs in one line."""

    @abstractmethod
    def pending(self) -> Sequence[Run]:
        """Return the runs that have no result yet."""

    @abstractmethod
    def name(self, run: Run) -> str:
        """Name a run in one line."""

    @abstractmethod
    def seconds(self, runs: Sequence[Run]) -> float | None:
        """Estimate the time of runs; None if only the first one can tell."""

    def begin(self) -> None:
        """Prepare the results folder, also if no run is missing."""

    @abstractmethod
    def make(self, run: Run) -> str:
        """Make a run, or continue one that a signal stopped; record it, and say what it gave.

        What a run continues from goes only after the run is recorded.

        Raises:
            InputError: the data or a setting is wrong.
            Stopped: a signal stops it.
        """


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
