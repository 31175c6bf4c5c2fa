"""Experiments on prepared data: which runs are missing, to make one, and their outputs."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cowclip_merlin.errors import Diverged, InputError
from cowclip_merlin.experiments.definitions import RUN_KINDS, Experiment
from cowclip_merlin.experiments.figures import write_experiment_figure
from cowclip_merlin.experiments.on_data import outputs
from cowclip_merlin.experiments.on_data.derived_data import derive_data, naming_derived_data
from cowclip_merlin.experiments.on_data.plan import (
    VALIDATION_FRACTION,
    DataVariant,
    PlannedRun,
    RunResults,
    describe_infeasible,
    estimate_seconds,
    of_data,
    plan_runs,
)
from cowclip_merlin.experiments.results import (
    Result,
    append_rows,
    read_results,
    read_tuned,
)
from cowclip_merlin.experiments.runs import (
    NO_FIGURE,
    ResultsSession,
    Runs,
    given_words,
    machine_columns,
    quiet_training,
    settings_columns,
    start_columns,
)
from cowclip_merlin.experiments.settings import DataSettings
from cowclip_merlin.experiments.sizing import PAPER_EPOCHS, Sizing, sizing_for
from cowclip_merlin.experiments.tables import Table, table_text, write_table
from cowclip_merlin.loading import validation_rows
from cowclip_merlin.system.folders import RESULTS_CSV
from cowclip_merlin.system.machine import hardware
from cowclip_merlin.targets import refuse_number_first
from cowclip_merlin.training import run_logs, train
from cowclip_merlin.training.build import build_optimizer, choose_device
from cowclip_merlin.training.checkpoint import has_checkpoint
from cowclip_merlin.training.run import check_train_rows
from cowclip_merlin.training.run_logs import target_metrics
from cowclip_merlin.training.run_rules import BETAS
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.training.trained_run import evaluate_run
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.prepared.folder import VALIDATION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINING_KINDS = (*RUN_KINDS, "gradients")
"""Kinds of experiments that train models; the training of "gradients" has no result."""


class DataSession(ResultsSession):
    """One data set and its results folder.

    Raises:
        InputError: if the data folder is not prepared, or the results folder is a folder of
            something else.
    """

    results_file = RESULTS_CSV

    def __init__(self, settings: DataSettings) -> None:
        super().__init__(settings.out)
        self.settings = settings
        self.whole = PreparedData.load(settings.data)
        refuse_number_first("an experiment", self.whole.targets)
        RunSettings(model="dcn", batch_size=1, **settings.layers).multi_task_of(self.whole.targets)
        path = settings.data
        folder = path.resolve().name if isinstance(path, Path) else path.name
        self.data_name = settings.name or folder
        self._variant = DataVariant(fraction=settings.scale)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of this share, for tables and figures; runs have that of all rows."""
        return self._variant.fingerprint(self.whole)

    def runs(self, experiment: Experiment) -> TrainingRuns:
        """Return the runs of an experiment."""
        from cowclip_merlin.experiments.on_data.sweeps import SweepRuns

        return (SweepRuns if experiment.kind == "sweep" else TrainingRuns)(self, experiment)

    def data(self) -> PreparedData:
        """Return the share of the data that the session uses."""
        return derive_data(self.whole, self._variant, self.out / "data")

    def describe_data(self) -> str:
        """Describe the data set and the model's width in one line."""
        data, share = self.whole, self.settings.scale
        about = "about " if share < 1 else ""  # a random choice decides about each row
        rows = ", ".join(
            f"{about}{int(share * n):,} {split} rows" for split, n in data.rows.items()
        )
        widths = "-".join(map(str, self.settings.mlp))
        ids = f"{sum(data.tables.values()):,} ids{' in the whole log' if share < 1 else ''}"
        return f"{self.data_name}: {rows}, {ids}; MLP {widths}{self.settings.multi_task_words}"

    def texts(self, experiment: Experiment) -> dict[str, str]:
        """Return the texts of any session; the widths of lines are in their experiment."""
        found = super().texts(experiment)
        if experiment.has_own_widths:
            found["data"] = found["data"].rpartition("; MLP ")[0]
        return found

    def command(self, experiment: Experiment) -> str:
        """Return the command that reproduces this; DATA and RESULTS stand for the two folders."""
        words = ["cowclip", "sweep" if experiment.kind == "sweep" else "experiment"]
        words += [experiment.cli_name, "--data", "DATA", "--out", "RESULTS"]
        given = given_words(self.settings, without=("data", "out", "device", "lines"))
        return shlex.join([*words, *given])


class TrainingRuns(Runs):
    """The trainings of an experiment; each has a row in `results.csv`."""

    session: DataSession
    experiment: Experiment
    scores_validation = False  # in place of the test rows

    def __init__(self, session: DataSession, experiment: Experiment) -> None:
        super().__init__(session, of_data(experiment, session.whole))

    @property
    def _trains(self) -> bool:
        return self.experiment.kind in TRAINING_KINDS or self.scores_validation

    @cached_property
    def sizing(self) -> Sizing:
        """Batches and rates on these data."""
        data, given = self.session.whole, self.session.settings
        check_train_rows(data)
        return sizing_for(
            int(given.scale * data.rows["train"]),
            preset=self.experiment.preset,
            max_multiplier=given.max_multiplier,
            steps=given.steps,
            base_batch=self.experiment.base_batch.get(data.kind),
            epochs=given.epochs or self.experiment.epochs or PAPER_EPOCHS,
        )

    @property
    def tuned_key(self) -> str:
        """Key of tuned values: data and sizes, because values depend on the sizes."""
        sizing, given = self.sizing, self.session.settings
        return (
            f"{self.session.whole.fingerprint} {sizing.rows} rows, batches {sizing.base_batch} to "
            f"{sizing.base_batch * sizing.max_multiplier}, {sizing.epochs} epochs, mlp "
            + "-".join(map(str, given.mlp))
            + given.multi_task_words
        )

    def plan(self) -> list[PlannedRun]:
        """Return all runs, with or without a result; some kinds of experiments have none."""
        if not self._trains:
            return []
        return plan_runs(self.experiment, self.sizing, **self.plan_options())

    def plan_options(self) -> dict[str, Any]:
        """Return the options of `plan_runs`."""
        given = self.session.settings
        return {
            "seeds": given.seeds,
            "update": given.update,
            "fraction": given.scale,
            "layers": given.layers,
            "tuned": read_tuned(self.session.out, self.tuned_key),
            "stored": self._stored,
        }

    @property
    def _stored(self) -> bool:
        return VALIDATION in self.session.whole.rows

    def results_of(self, runs: Sequence[PlannedRun]) -> RunResults:
        """Return the existing results of these runs."""
        found = {result.config_hash: result for result in read_results(self.session.out)}
        fingerprint = self.session.whole.fingerprint
        pairs = ((run, found.get(run.config_hash(fingerprint))) for run in runs)
        return {run: result for run, result in pairs if result is not None}

    def results(self) -> RunResults:
        """Return the existing results."""
        return self.results_of(self.plan())

    def pending(self) -> list[PlannedRun]:
        """Return the runs of the chosen lines that have no result yet; equal runs only once."""
        if not self._trains or self.experiment.kind == "gradients":
            return []
        chosen, fingerprint = self.session.settings.lines, self.session.whole.fingerprint
        done = {result.config_hash for result in read_results(self.session.out)}
        missing: dict[str, PlannedRun] = {}
        for run in self.plan():
            config_hash = run.config_hash(fingerprint)
            if config_hash not in done and (not chosen or run.label in chosen):
                missing.setdefault(config_hash, run)
        return list(missing.values())

    def check(self) -> None:
        """Refuse an experiment that cannot run with these settings.

        Raises:
            InputError: if the data have too few rows, settings of a line conflict or have no
                effect, a requested line does not exist, or the results folder has the outputs of
                other data.
        """
        experiment, runs = self.experiment, self.plan()
        name, sweep = experiment.cli_name, self.scores_validation
        if self._trains:
            held_out = VALIDATION_FRACTION if sweep and not self._stored else 0.0
            infeasible = describe_infeasible(experiment, self.sizing, held_out)
            if infeasible and (sweep or not runs):  # a sweep compares points at all of its batches
                raise InputError(f"{name}: {infeasible[0]}; use more rows, or smaller multipliers")
        if experiment.has_own_widths and self.session.settings.mlp != DataSettings.mlp:
            raise InputError(f"{name}: each line has an `mlp` of its own; omit `mlp`")
        given = {line.label: (*line.overrides, *line.factors) for line in experiment.lines}
        for run in runs:
            unused = run.settings.unused_overrides()
            for value in (*given.get(run.label, ()), *experiment.grid, *experiment.grid_factors):
                if value in unused:
                    raise InputError(
                        f"{name}, {run.label}: {value} has no effect with the clip "
                        f"{run.settings.effective_clip}; remove it, or use the clip "
                        f"{' or '.join(unused[value])}"
                    )
        self._check_settings(runs)
        known = sorted({run.label for run in runs})
        for label in self.session.settings.lines:
            if not known:
                raise InputError(f"{name} has no runs, so `lines` has no effect")
            if label not in known:
                raise InputError(
                    f"{experiment.name} has no line {label!r}; `lines` takes {'; '.join(known)}"
                )
        super().check()

    def _check_settings(self, runs: Sequence[PlannedRun]) -> None:
        """Build each run's optimizer, which refuses conflicting settings."""
        data = self.session.whole
        if runs:  # building an optimizer initializes TensorFlow on its GPUs
            choose_device(self.session.settings.device)
        for run in runs:
            values = run.settings.hyperparameters(data.kind)
            try:
                build_optimizer(run.settings, values, data, steps=1)
            except InputError as error:
                raise InputError(f"{self.experiment.cli_name}, {run.label}: {error}") from None

    def dry(self) -> str:
        """List the missing runs; the training of "gradients" has no result, so it is never done."""
        if self.experiment.kind != "gradients":
            return super().dry()
        run = self.plan()[0]
        step = outputs.GRADIENT_STEP
        return f"{self.experiment.title}\none training of {run.label}, up to {step} steps"

    def describe(self) -> str:
        """Describe the batches and rates."""
        return self.sizing.describe()

    def name(self, run: PlannedRun) -> str:
        """Name a run's folder and its line."""
        return f"{run.run_id(self.session.whole.fingerprint)}  {run.label}"

    def seconds(self, runs: Sequence[PlannedRun]) -> float:
        """Estimate the time from a few steps."""
        return estimate_seconds(runs, self.session.whole)

    def begin(self) -> None:
        """Say the sizes, and remove the checkpoints that a killed process left of recorded runs.

        Checkpoints take three times the size of the tables, for every run.
        """
        if self._trains and self.experiment.kind != "gradients":
            print(self.describe())
            for result in read_results(self.session.out):
                self._remove_checkpoints(result)

    def _remove_checkpoints(self, result: Result) -> None:
        checkpoints = self.session.out / "runs" / result.run_id / "checkpoints"
        if checkpoints.exists():
            shutil.rmtree(checkpoints)

    def make(self, run: PlannedRun) -> str:
        """Train, also from a checkpoint; return the scores and the speed."""
        result = self._train(run)
        append_rows(self.session.out / RESULTS_CSV, [result])
        self._remove_checkpoints(result)  # only now: training cannot resume from half of them
        if result.status != "done":
            return f"{result.run_id}: {result.status}"
        return (
            f"{result.run_id}: {result.split} AUC {100 * result.auc:.2f}%, log loss "
            f"{result.log_loss:.4f}, {result.seconds:.0f} s, {result.rows_per_second:,.0f} rows/s"
        )

    def _train(self, run: PlannedRun) -> Result:
        session, out = self.session, self.session.out
        data = derive_data(session.whole, run.variant, out / "data")
        folder = out / "runs" / run.run_id(session.whole.fingerprint)
        start = start_columns()
        resume = has_checkpoint(folder)
        if folder.exists() and not resume:  # stopped before its first checkpoint, or diverged
            shutil.rmtree(folder)
        with (
            naming_derived_data(data.path) if str(run.variant) else nullcontext(),
            quiet_training(),
        ):
            try:
                device = session.settings.device
                epochs = train(data.path, run.settings, out=folder, resume=resume, device=device)
                status, kept = "done", self._kept_scores(run.settings, folder, data)
            except Diverged:
                path, status, kept = folder / "metrics.csv", "diverged", None
                epochs = list(run_logs.read_metrics(path, epochs=run.settings.epochs))
        settings, fingerprint = run.settings, session.whole.fingerprint
        values, rows = settings.hyperparameters(data.kind), data.rows["train"]
        if settings.validation_fraction:
            rows -= validation_rows(rows, settings.validation_fraction)
        return Result(
            run_id=run.run_id(fingerprint),
            config_hash=run.config_hash(fingerprint),
            status=status,
            data=session.data_name,
            data_fingerprint=fingerprint,
            variant=str(run.variant),
            train_rows=rows,
            **settings_columns(settings, values),
            **{name: getattr(values, name) for name in ("warmup_epochs", *BETAS, "epsilon")},
            **{name: getattr(settings, name) for name in ("optimizer", "update", "epochs")},
            split="test" if kept else settings.scored_split,
            **score_columns(epochs, status, settings.scored_split, rows, kept),
            steps_per_epoch=-(-rows // settings.batch_size),
            **machine_columns(hardware()),
            **start,
        )

    def _kept_scores(
        self, settings: RunSettings, folder: Path, data: PreparedData
    ) -> Mapping[str, float] | None:
        """Score the test rows with the weights that validation rows chose; a sweep does not."""
        if self.scores_validation or settings.scored_split == "test":
            return None
        scored = evaluate_run(folder, data.path, device=self.session.settings.device)
        return run_logs.metrics_of("test", scored)

    def write(self) -> Iterator[str]:
        """Write the tables and figures, and yield the text to print."""
        experiment, session, kind = self.experiment, self.session, self.experiment.kind
        device = session.settings.device
        if kind == "hyperparameters":
            command = session.command(experiment)
            yield self.table(outputs.hyperparameter_table(experiment, command=command))
        elif kind == "parameters":
            command = session.command(experiment)
            yield self.table(outputs.parameter_table(experiment, command=command))
        elif kind == "frequencies":
            yield self._figure(outputs.id_frequency_figure(session.data()))
        elif kind == "gradients":
            run = self.plan()[0]
            figure, step = outputs.gradient_figure(run, session.data(), device=device)
            caption = f"{experiment.caption} Step {step:,}, batch {run.settings.batch_size:,}."
            yield self._figure(figure, caption=caption)
        elif kind == "runs":
            found, texts = (experiment, self.sizing, self.results()), session.texts(experiment)
            yield from map(self.table, outputs.run_tables(*found, **texts))
            of_auc = experiment.measure == "auc"
            figure = outputs.multiplier_figure(experiment, self.results()) if of_auc else None
            if figure is not None:
                name, title = f"{experiment.name}_auc", f"{experiment.title}: AUC by batch"
                yield self._figure(figure, name=name, title=title)
        else:
            found = self.results()
            figure = (
                outputs.time_figure(found, self.sizing)
                if kind == "time"
                else outputs.epoch_figure(found, self.sizing, session.out / "runs")
            )
            yield NO_FIGURE if figure is None else self._figure(figure)

    def table(self, table: Table) -> str:
        """Write a table, and return its text."""
        write_table(self.session.out / "tables", table)
        return table_text(table)

    def _figure(self, figure: Figure, **changed: str) -> str:
        texts = self.session.texts(self.experiment)
        return write_experiment_figure(self.session.out, figure, self.experiment, texts, **changed)


def score_columns(
    epochs: Sequence[Mapping[str, float | str]],
    status: str,
    split: str,
    rows: int,
    kept: Mapping[str, float] | None = None,
) -> JsonObject:
    """Return the columns with scores and times; NaN or None for values that a run lacks.

    Args:
        epochs: metrics of each epoch.
        status: of the run.
        split: that each epoch scored.
        rows: of an epoch.
        kept: metrics of the test rows with the weights that the run keeps; None: of the last epoch.
    """
    nan, done = float("nan"), status == "done"
    auc = [float(epoch[f"{split}_auc"]) for epoch in epochs]
    seconds = sum(run_logs.epoch_seconds(epoch, rows) for epoch in epochs)
    last = (kept or epochs[-1]) if done else {}
    of = "test" if kept else split
    error, targets = last.get(f"{of}_auc_error", ""), target_metrics(last, of)
    return {
        "auc": float(last.get(f"{of}_auc", nan)),
        "log_loss": float(last.get(f"{of}_log_loss", nan)),
        "auc_error": None if error == "" else float(error),
        "targets": json.dumps(targets) if targets else "",
        "best_auc": max(auc, default=nan),
        "best_epoch": auc.index(max(auc)) + 1 if auc else 0,
        "seconds": round(seconds, 3),
        "rows_per_second": round(len(epochs) * rows / seconds, 1) if seconds else 0.0,
    }
