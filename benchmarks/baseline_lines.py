"""What `baseline.py` compares: its settings, and each line of its table as a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cowclip_merlin.checks import among, at_least_one, once
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import RunSettings

UPDATES = ("exact", "dense")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared.

    Attributes:
        work: folder for the log, the data and the runs.
        data: a prepared folder; None to generate and prepare a log.
        rows: of the generated log.
        log_seed: of the generated log.
        model: name of a model.
        base_batch: the baseline's batch, where the rates hold.
        multipliers: CowClip's batches are these times the base batch.
        updates: of CowClip's lines, "exact" and "dense".
        epochs: passes of every run.
        seeds: seeds of initialisation and row order, from 1 on.
        rounds: times the whole set of runs is gone through.
        mlp: widths of the hidden layers.
        overrides: rates at the base batch that replace the preset's.
        device: "auto", "cpu" or "gpu".

    Raises:
        InputError: a name is unknown or a number out of range.
    """

    work: Path
    data: Path | None = None
    rows: int = 1_000_000
    log_seed: int = 7
    model: str = "deepfm"
    base_batch: int = 1024
    multipliers: tuple[int, ...] = (8, 16, 32, 64, 128)
    updates: tuple[str, ...] = ("exact",)
    epochs: int = 3
    seeds: int = 3
    rounds: int = 1
    mlp: tuple[int, ...] = (400, 400, 400)
    overrides: Mapping[str, float] = field(default_factory=dict)
    device: str = "auto"

    def __post_init__(self) -> None:
        """Refuse what cannot be compared."""
        among("--updates", self.updates, UPDATES)
        once({"--multipliers": self.multipliers, "--updates": self.updates})
        counts = {"--base-batch-size": self.base_batch, "--multipliers": self.multipliers}
        counts |= {"--epochs": self.epochs, "--seeds": self.seeds, "--rounds": self.rounds}
        at_least_one(counts | {"--rows": self.rows})
        if not 0 <= self.log_seed < 2**64:
            raise InputError(f"--seed is {self.log_seed}; give 0 or more, below 2**64")
        self.settings(self.lines()[0], seed=1)  # refuses a model or an MLP that cannot be

    def lines(self) -> list[Line]:
        """The lines of the table, in order."""
        base = batch_name(self.base_batch)
        first = [
            Line(name=f"{base} baseline", multiplier=1, rule="none", update="dense"),
            Line(name=f"{base} exact", multiplier=1, rule="none", update="exact"),
        ]
        return [*first, *self._large()]

    def _large(self) -> Iterator[Line]:
        for update in self.updates:
            for multiplier in self.multipliers:
                name = f"{batch_name(multiplier * self.base_batch)} CowClip"
                yield Line(name=name, multiplier=multiplier, rule="cowclip", update=update)

    def settings(self, line: Line, *, seed: int) -> RunSettings:
        """The run of one line."""
        return RunSettings(
            model=self.model,
            batch_size=line.multiplier * self.base_batch,
            base_batch_size=self.base_batch,
            rule=line.rule,
            update=line.update,
            epochs=self.epochs,
            seed=seed,
            mlp=self.mlp,
            overrides=self.overrides,
        )


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table.

    Attributes:
        name: in the table.
        multiplier: its batch, in base batches.
        rule: scaling rule; "none" comes without a clip, "cowclip" with it.
        update: "dense" or "exact".
    """

    name: str
    multiplier: int
    rule: str
    update: str

    def folder(self, *, seed: int, number: int) -> str:
        """Name of the run folder of one seed in one round."""
        return f"{self.rule}-{self.multiplier}x-{self.update}-seed{seed}-round{number}"


def batch_name(batch: int) -> str:
    """A batch size in few letters.

    >>> batch_name(512), batch_name(65536), batch_name(1500)
    ('512', '64K', '1500')
    """
    return str(batch) if batch % 1024 else f"{batch // 1024}K"
