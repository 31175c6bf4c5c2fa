"""What `cowclip experiment` and `cowclip sweep` do: plan, run what is missing, show."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments import sweep as sweeps
from cowclip_merlin.experiments.definitions import RUN_KINDS, Experiment
from cowclip_merlin.experiments.drawn import GRADIENT_STEP
from cowclip_merlin.experiments.estimate import estimate
from cowclip_merlin.experiments.plan import Run, describe, missing, plan
from cowclip_merlin.experiments.regime import Regime, regime
from cowclip_merlin.experiments.results import Result
from cowclip_merlin.experiments.runner import Place, results_of, run_all, todo
from cowclip_merlin.experiments.show import show
from cowclip_merlin.experiments.variant import Variant, derive
from cowclip_merlin.system.files import alone_in
from cowclip_merlin.training import RunSettings
from cowclip_merlin.training.build import build_optimizer, choose_device
from cowclip_merlin.workflows import PreparedData

_TAKEN = "another experiment or sweep is working in it; wait for it, or use another --out"


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """What the command line gives.

    Attributes:
        data: prepared folder.
        out: results folder.
        name: of the data set, for readers; None: the folder's name.
        scale: share of the rows that is used.
        seeds: runs of each cell.
        epochs: None: the paper's 10.
        update: for runs whose definition does not say.
        max_multiplier: of the largest batch; None: as `regime` says.
        steps: least steps an epoch at the largest batch, at reduced size; None: as `regime` says.
        device: "auto", "cpu" or "gpu".
        mlp: widths of the hidden layers.
        lines: labels of the lines that are run; empty: all. Tables show all of them.

    Raises:
        InputError: a value is out of range.
    """

    data: Path
    out: Path
    name: str | None = None
    scale: float = 1.0
    seeds: int = 3
    epochs: int | None = None
    update: str = "exact"
    max_multiplier: int | None = None
    steps: int | None = None
    device: str = "auto"
    mlp: tuple[int, ...] = (400, 400, 400)
    lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what could only fail later."""
        for name in ("seeds", "max_multiplier", "steps", "epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
        Variant(fraction=self.scale)


class Session:
    """One data set and its results folder.

    Raises:
        InputError: the data are no prepared folder, or too few for the regime.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self.settings = settings
        data = PreparedData.load(settings.data)
        self.place = Place(
            data=data,
            out=settings.out,
            name=settings.name or settings.data.resolve().name,
            device=settings.device,
        )

    def regime(self, experiment: Experiment) -> Regime:
        """Batches and rates of an experiment on these data."""
        given = self.settings
        return regime(
            int(given.scale * self.place.data.rows["train"]),
            preset=experiment.preset,
            max_multiplier=given.max_multiplier,
            steps=given.steps,
            **({} if given.epochs is None else {"epochs": given.epochs}),
        )

    def runs(self, experiment: Experiment) -> list[Run]:
        """All runs of an experiment or sweep, made or not."""
        given = self.settings
        if experiment.kind not in (*RUN_KINDS, "gradients", "sweep"):
            return []
        size, options = self.regime(experiment), {"update": given.update, "mlp": given.mlp}
        options |= {"seeds": given.seeds, "fraction": given.scale}
        options["tuned"] = sweeps.read_tuned(given.out, self.tuned_key(experiment))
        if experiment.kind == "sweep":
            return sweeps.sweep_plan(experiment, size, results_of=self._results_of, **options)
        return plan(experiment, size, **options)

    def tuned_key(self, experiment: Experiment) -> str:
        """Data and sizes that tuned values are for: base values of other ones mean other things."""
        size = self.regime(experiment)
        return (
            f"{self.place.fingerprint} {size.rows} rows, batches {size.base_batch} to "
            f"{size.base_batch * size.max_multiplier}, {size.epochs} epochs, mlp "
            + "-".join(map(str, self.settings.mlp))
        )

    def complete(self, sweep: Experiment) -> bool:
        """Whether a sweep has all its results, and a run that did not diverge among them."""
        results = self.results(sweep)
        return len(results) == len(self.runs(sweep)) and sweeps.some_ended(results)

    def _results_of(self, runs: Sequence[Run]) -> dict[Run, Result]:
        return results_of(runs, self.place)

    def check(self, experiment: Experiment) -> None:
        """Refuse what can be seen to be wrong before anything is run.

        Raises:
            InputError: it has not all of the lines that are asked for, the data are too few, or
                settings of a line do not go together.
        """
        runs, swept = self.runs(experiment), experiment.kind == "sweep"
        if experiment.kind in (*RUN_KINDS, "gradients", "sweep"):
            held = sweeps.VALIDATION_FRACTION if swept else 0.0
            gone = missing(experiment, self.regime(experiment), held)
            if gone and (swept or not runs):  # a sweep compares points at all of its batches
                raise InputError(
                    f"{experiment.cli_name}: {gone[0]}; use more rows, or smaller multipliers"
                )
        self._check_settings(experiment, runs)
        known = sorted({run.label for run in runs})
        for label in self.settings.lines if known else ():
            if label not in known:
                raise InputError(
                    f"{experiment.name} has no line {label!r}; --lines takes {'; '.join(known)}"
                )

    def _check_settings(self, experiment: Experiment, runs: Sequence[Run]) -> None:
        """Refuse in a line of text what its runs would refuse, maybe hours later."""
        data = self.place.data
        if runs:  # an optimizer asks TensorFlow for its GPUs, which starts it on them
            choose_device(self.settings.device)
        for run in runs:
            try:
                build_optimizer(
                    run.settings, run.settings.hyperparameters(data.kind), data, steps=1
                )
            except InputError as error:
                raise InputError(f"{experiment.cli_name}, {run.label}: {error}") from None

    def _left(self, experiment: Experiment) -> list[Run]:
        """Runs that are asked for and have no result yet."""
        chosen, runs = self.settings.lines, self.runs(experiment)
        return todo([run for run in runs if not chosen or run.label in chosen], self.place)

    def dry_run(self, experiment: Experiment) -> str:
        """What is still to be run, and about how long it takes; nothing is run for long."""
        if experiment.kind == "gradients":
            (run,) = self.runs(experiment)[:1]
            return f"{experiment.title}\none training of {run.label}, up to {GRADIENT_STEP} steps"
        left = self._left(experiment)
        if not left:
            return f"{experiment.title}\nno run is missing"
        names = [f"  {run.run_id(self.place.fingerprint)}  {run.label}" for run in left]
        seconds = estimate(left, self.place.data)
        head = [experiment.title, describe(self.regime(experiment)), ""]
        more = ", then the neighbours of the best" if experiment.kind == "sweep" else ""
        return "\n".join([*head, *names, "", f"{len(left)} runs, about {duration(seconds)}{more}"])

    def run(self, experiment: Experiment) -> str:
        """Run what is missing, a line for each run as it ends; write and return what it shows."""
        trained = experiment.kind in (*RUN_KINDS, "sweep")
        with alone_in(self.settings.out, _TAKEN):
            if trained:
                self._train(experiment)
            return "\n".join(show(self, experiment))

    def _train(self, experiment: Experiment) -> None:
        print(describe(self.regime(experiment)))
        while left := self._left(experiment):  # a sweep's results may ask for more points
            started = time.perf_counter()
            for number, result in enumerate(run_all(left, self.place), 1):
                rest = (time.perf_counter() - started) / number * (len(left) - number)
                print(f"[{number}/{len(left)}] {_line(result)}; {duration(rest)} left", flush=True)

    def results(self, experiment: Experiment) -> dict[Run, Result]:
        """The results of its runs that are there."""
        return self._results_of(self.runs(experiment))

    def chosen(self, sweep: Experiment) -> RunSettings | None:
        """What a sweep found best, to train with; None before it has all its results.

        None as well for a share of the rows, since the regime of all of them is another one.
        """
        if self.settings.scale < 1 or not self.complete(sweep):
            return None
        return sweeps.best_settings(self.results(sweep))

    def data(self) -> PreparedData:
        """The share of the data that is used."""
        place = self.place
        return derive(place.data, Variant(fraction=self.settings.scale), place.out / "data")

    def describe(self) -> str:
        """The data set in words."""
        data, share = self.place.data, self.settings.scale
        about = "about " if share < 1 else ""  # each row is drawn by itself
        rows = ", ".join(
            f"{about}{int(share * n):,} {split} rows" for split, n in data.rows.items()
        )
        widths = "-".join(map(str, self.settings.mlp))
        ids = f"{sum(data.cardinalities.values()):,} ids"
        whole = " in the whole log" if share < 1 else ""
        return f"{self.place.name}: {rows}, {ids}{whole}; MLP {widths}"

    def command(self, experiment: Experiment) -> str:
        """The command that makes this again; DATA and RESULTS stand for the two folders."""
        usual = asdict(SessionSettings(data=Path(), out=Path()))
        given = asdict(self.settings)
        words = ["cowclip", "sweep" if experiment.kind == "sweep" else "experiment"]
        words += [experiment.cli_name, "--data", "DATA", "--out", "RESULTS"]
        for name, value in usual.items():
            if name not in ("data", "out", "device", "lines") and given[name] != value:
                words += [f"--{name.replace('_', '-')}", _argument(given[name])]
        return shlex.join(words)


def _argument(value: object) -> str:
    if isinstance(value, float):
        return f"{value!r}"  # in full: another share is another choice of rows
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _line(result: Result) -> str:
    if result.status != "done":
        return f"{result.run_id}: {result.status}"
    return (
        f"{result.run_id}: {result.split} AUC {100 * result.auc:.2f}%, log loss "
        f"{result.log_loss:.4f}, {result.seconds:.0f} s, {result.rows_per_second:,.0f} rows/s"
    )


def duration(seconds: float) -> str:
    """Seconds as a person says them.

    >>> duration(50), duration(600), duration(9000)
    ('50 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
