"""Settings of `baseline.py`, and the configurations that it compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cowclip_merlin import choices
from cowclip_merlin.checks import check_at_least_one, check_choices, check_unique
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import option
from cowclip_merlin.training import RunSettings

UPDATES = tuple(update for update in choices.UPDATES if update != "lazy")  # another algorithm


@dataclass(frozen=True, kw_only=True)
class BaselineSettings:
    """Settings of the comparison.

    Attributes:
        work: folder for the log, the data and the runs.
        data: a prepared folder; None to generate and prepare a log.
        rows: rows of the generated log.
        log_seed: seed of the generated log.
        model: name of a model.
        base_batch: the baseline's batch size, for which the rates are given.
        multipliers: CowClip's batches as multiples of the base batch.
        updates: updates of CowClip, "exact" and "dense".
        epochs: epochs of every run.
        seeds: number of seeds of initialization and row order, from 1 on.
        rounds: repetitions of all runs.
        mlp: widths of the hidden layers.
        overrides: rates at the base batch that replace the preset's.
        device: "auto", "cpu" or "gpu".

    Raises:
        InputError: if a name is unknown or a number out of range.
    """

    work: Path = option(Path("work/baseline"), "folder of log, data and runs")
    data: Path | None = option(None, "prepared, not a generated log", kind=Path, metavar="DIR")
    rows: int = option(1_000_000, "of the generated log", kind=int)
    log_seed: int = option(7, "of the generated log", flag="--seed", kind=int)
    model: str = option("deepfm", f"one of {', '.join(choices.MODELS)}")
    base_batch: int = option(
        1024, "of the baseline, for which the rates are given", flag="--base-batch-size"
    )
    multipliers: tuple[int, ...] = option(
        (8, 16, 32, 64, 128), "CowClip's batches, as multiples of the base batch"
    )
    updates: tuple[str, ...] = option(("exact",), "of CowClip's lines: exact, dense")
    epochs: int = option(3, "epochs of every run")
    seeds: int = option(3, "runs of every line, with seeds from 1 on")
    rounds: int = option(1, "repetitions of all runs")
    mlp: tuple[int, ...] = option((400, 400, 400), "widths of the hidden layers")
    overrides: Mapping[str, float] = field(default_factory=dict)
    device: str = "auto"

    def __post_init__(self) -> None:
        """Reject values that cannot be compared."""
        check_choices("--updates", self.updates, UPDATES)
        check_unique({"--multipliers": self.multipliers, "--updates": self.updates})
        counts = {"--base-batch-size": self.base_batch, "--multipliers": self.multipliers}
        counts |= {"--epochs": self.epochs, "--seeds": self.seeds, "--rounds": self.rounds}
        check_at_least_one(counts | {"--rows": self.rows})
        if not 0 <= self.log_seed < 2**64:
            raise InputError(f"--seed is {self.log_seed}; give 0 or more, below 2**64")
        self.run_settings(
            self.configurations()[0], seed=1
        )  # rejects an unknown model or an invalid MLP

    def configurations(self) -> list[Configuration]:
        """Return the configurations in the order of the table."""
        base = batch_name(self.base_batch)
        first = [
            Configuration(name=f"{base} baseline", multiplier=1, rule="none", update="dense"),
            Configuration(name=f"{base} exact", multiplier=1, rule="none", update="exact"),
        ]
        return [*first, *self._large()]

    def _large(self) -> Iterator[Configuration]:
        for update in self.updates:
            for multiplier in self.multipliers:
                name = f"{batch_name(multiplier * self.base_batch)} CowClip"
                yield Configuration(name=name, multiplier=multiplier, rule="cowclip", update=update)

    def run_settings(self, configuration: Configuration, *, seed: int) -> RunSettings:
        """Return the settings of one configuration's run."""
        return RunSettings(
            model=self.model,
            batch_size=configuration.multiplier * self.base_batch,
            base_batch_size=self.base_batch,
            rule=configuration.rule,
            update=configuration.update,
            epochs=self.epochs,
            seed=seed,
            mlp=self.mlp,
            overrides=self.overrides,
        )


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A batch, rule and update: one line of the table.

    Attributes:
        name: name in the table.
        multiplier: batch as a multiple of the base batch.
        rule: scaling rule; "none" trains without a clip, "cowclip" with it.
        update: "dense" or "exact".
    """

    name: str
    multiplier: int
    rule: str
    update: str

    def folder(self, *, seed: int, number: int) -> str:
        """Return the name of the run folder of one seed in one round."""
        return f"{self.rule}-{self.multiplier}x-{self.update}-seed{seed}-round{number}"


def batch_name(batch: int) -> str:
    """Format a batch size briefly.

    >>> batch_name(512), batch_name(65536), batch_name(1500)
    ('512', '64K', '1500')
    """
    return str(batch) if batch % 1024 else f"{batch // 1024}K"
