"""The runs of an experiment: which are missing, and how one is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from cowclip_merlin.experiments.definitions import Experiment, LogExperiment
from cowclip_merlin.experiments.session import ResultsSession

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
