"""Connect one data set and its results folder: planned runs and existing results."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.experiments.definitions import RUN_KINDS, Experiment
from cowclip_merlin.experiments.planning.plan import DataVariant, PlannedRun, plan_runs
from cowclip_merlin.experiments.planning.sizing import Sizing, sizing_for
from cowclip_merlin.experiments.planning.sweep import any_finished, best_settings, plan_sweep
from cowclip_merlin.experiments.results.folder import check_results_folder, read_tuned
from cowclip_merlin.experiments.results.result import Result
from cowclip_merlin.experiments.running.derived_data import derive_data
from cowclip_merlin.experiments.running.runner import RunContext, existing_results, pending_runs
from cowclip_merlin.experiments.session_settings import SessionSettings
from cowclip_merlin.system.folders import RESULTS_CSV
from cowclip_merlin.targets import refuse_number_first
from cowclip_merlin.training import RunSettings
from cowclip_merlin.training.run import check_train_rows
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.prepared.folder import VALIDATION

if TYPE_CHECKING:
    from cowclip_merlin.experiments.definitions.experiment import LogExperiment

TRAINING_KINDS = (*RUN_KINDS, "gradients", "sweep")
"""Kinds of experiments that train models."""


class ResultsSession(ABC):
    """A data set or a log, and a results folder.

    Attributes:
        results_file: table of the folder with the finished runs.

    Args:
        out: the results folder.

    Raises:
        InputError: if the results folder is a folder of something else.
    """

    results_file: ClassVar[str]

    def __init__(self, out: Path) -> None:
        check_results_folder(out)
        self.out = out

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Fingerprint of the data or log."""

    @abstractmethod
    def describe_data(self) -> str:
        """Describe the data and the model in one line."""

    @abstractmethod
    def command(self, experiment: Experiment | LogExperiment) -> str:
        """Return the command that repeats an experiment, with words for its paths."""

    def texts(self, experiment: Experiment | LogExperiment) -> dict[str, str]:
        """Return the attributes of a table or figure that say where its numbers come from."""
        return {
            "data": self.describe_data(),
            "command": self.command(experiment),
            "fingerprint": self.fingerprint,
        }


class Session(ResultsSession):
    """One data set and its results folder.

    Raises:
        InputError: if the data folder is not prepared, or has too few rows for the sizing, or the
            results folder is a folder of something else.
    """

    results_file = RESULTS_CSV

    def __init__(self, settings: SessionSettings) -> None:
        super().__init__(settings.out)
        self.settings = settings
        data = PreparedData.load(settings.data)
        refuse_number_first("an experiment", data.targets)
        RunSettings(model="dcn", batch_size=1, **settings.layers).multi_task_of(data.targets)
        self.context = RunContext(
            data=data,
            out=settings.out,
            data_name=settings.name or _folder_name(settings.data),
            device=settings.device,
        )

    @property
    def variant(self) -> DataVariant:
        """The share of the rows that the session uses."""
        return DataVariant(fraction=self.settings.scale)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of this share, for tables and figures; runs have that of all rows."""
        return self.variant.fingerprint(self.context.data)

    def sizing(self, experiment: Experiment) -> Sizing:
        """Return the batches and rates of an experiment on these data."""
        check_train_rows(self.context.data)
        given = self.settings
        return sizing_for(
            int(given.scale * self.context.data.rows["train"]),
            preset=experiment.preset,
            max_multiplier=given.max_multiplier,
            steps=given.steps,
            **({} if given.epochs is None else {"epochs": given.epochs}),
        )

    def runs(self, experiment: Experiment) -> list[PlannedRun]:
        """Return all runs of an experiment or sweep, with or without a result."""
        if experiment.kind not in TRAINING_KINDS:
            return []
        given, sizing = self.settings, self.sizing(experiment)
        options: dict[str, Any] = {
            "seeds": given.seeds,
            "update": given.update,
            "fraction": given.scale,
            "layers": given.layers,
            "tuned": read_tuned(given.out, self.tuned_key(experiment)),
        }
        if experiment.kind == "sweep":
            stored = VALIDATION in self.context.data.rows
            return plan_sweep(
                experiment, sizing, results_of=self._existing_results, stored=stored, **options
            )
        return plan_runs(experiment, sizing, **options)

    def pending_runs(self, experiment: Experiment) -> list[PlannedRun]:
        """Return the runs of the chosen lines that have no result yet."""
        chosen, runs = self.settings.lines, self.runs(experiment)
        return pending_runs([r for r in runs if not chosen or r.label in chosen], self.context)

    def results(self, experiment: Experiment) -> dict[PlannedRun, Result]:
        """Return the existing results of an experiment's runs."""
        return self._existing_results(self.runs(experiment))

    def _existing_results(self, runs: Sequence[PlannedRun]) -> dict[PlannedRun, Result]:
        return existing_results(runs, self.context)

    def tuned_key(self, experiment: Experiment) -> str:
        """Return the key of tuned values: data and sizes, because values depend on the sizes."""
        sizing = self.sizing(experiment)
        return (
            f"{self.context.fingerprint} {sizing.rows} rows, batches {sizing.base_batch} to "
            f"{sizing.base_batch * sizing.max_multiplier}, {sizing.epochs} epochs, mlp "
            + "-".join(map(str, self.settings.mlp))
            + self.settings.multi_task_words
        )

    def is_complete(self, sweep: Experiment) -> bool:
        """Return whether a sweep has all its results, and at least one run did not diverge."""
        results = self.results(sweep)
        return len(results) == len(self.runs(sweep)) and any_finished(results)

    def best_settings(self, sweep: Experiment) -> RunSettings | None:
        """Return the sweep's best settings, to train with; None before it has all its results.

        Also None for a share of the rows, because all rows have another sizing.
        """
        if self.settings.scale < 1 or not self.is_complete(sweep):
            return None
        return best_settings(self.results(sweep))

    def data(self) -> PreparedData:
        """Return the share of the data that the session uses."""
        return derive_data(self.context.data, self.variant, self.context.out / "data")

    def describe_data(self) -> str:
        """Describe the data set and the model's width in one line."""
        data, share = self.context.data, self.settings.scale
        about = "about " if share < 1 else ""  # a random choice decides about each row
        rows = ", ".join(
            f"{about}{int(share * n):,} {split} rows" for split, n in data.rows.items()
        )
        widths = "-".join(map(str, self.settings.mlp))
        ids = f"{sum(data.tables.values()):,} ids"
        whole = " in the whole log" if share < 1 else ""
        how = self.settings.multi_task_words
        return f"{self.context.data_name}: {rows}, {ids}{whole}; MLP {widths}{how}"

    def command(self, experiment: Experiment) -> str:
        """Return the command that reproduces this; DATA and RESULTS stand for the two folders."""
        usual = asdict(SessionSettings(data=Path(), out=Path()))
        given = asdict(self.settings)
        words = ["cowclip", "sweep" if experiment.kind == "sweep" else "experiment"]
        words += [experiment.cli_name, "--data", "DATA", "--out", "RESULTS"]
        for name, value in usual.items():
            if name not in ("data", "out", "device", "lines") and given[name] != value:
                words += [f"--{name.replace('_', '-')}", _argument(given[name])]
        return shlex.join(words)


def _folder_name(path: FilePath) -> str:
    return path.resolve().name if isinstance(path, Path) else path.name


def _argument(value: object) -> str:
    if isinstance(value, float):
        return f"{value!r}"  # all digits, because another share chooses other rows
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
