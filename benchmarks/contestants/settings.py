"""Settings of `peers.py`, and each contestant's run as a job."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contestants.job import WARM_UP_STEPS, Job
from cowclip_merlin import choices
from cowclip_merlin.bench.random_data import check_vocabulary_size
from cowclip_merlin.checks import check_at_least_one, check_choices, check_positive, check_unique
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import steps_per_epoch
from cowclip_merlin.scaling import ADAM_RULES, RULES, Hyperparameters, rebase, scale
from cowclip_merlin.settings import option

BASE_BATCH, WARMUP_SHARE = 1024, 0.1
YARDSTICK, REFERENCE = "bare-mlp", "cowclip lazy"
OURS = (
    YARDSTICK,
    *(f"cowclip {update}" for update in choices.UPDATES),
    "cowclip exact bfloat16",
    "keras-adam",
)
# Name -> module of this package that runs it, and its options.
PEERS: Mapping[str, tuple[str, ...]] = {
    "deepctr": ("deepctr",),
    "fuxictr": ("fuxictr", "--loader=fuxictr"),
    "fuxictr-memory": ("fuxictr", "--loader=memory"),
    "authors": ("authors",),
    "hugectr": ("hugectr", "--model=deepfm", "--update=Local"),
    "hugectr-global": ("hugectr", "--model=deepfm", "--update=Global"),
    "hugectr-wide-and-deep": ("hugectr", "--model=wide_and_deep", "--update=Local"),
    "hugectr-dcn": ("hugectr", "--model=dcn", "--update=Local"),
}
PLAIN = tuple(name for name in RULES if name not in ADAM_RULES)
"""Rules for plain Adam: `sde` also changes the betas, which the jobs do not."""
OTHER_MODELS = ("hugectr-wide-and-deep", "hugectr-dcn")
"""Contestants that do not train a DeepFM."""
CONTESTANTS = (*OURS, *PEERS)
KINDS = tuple(dict.fromkeys(kind for kind, *_ in PEERS.values()))


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """Settings of the comparison.

    Attributes:
        work: folder for the rows and the predictions.
        rows: generated rows; a tenth is held out.
        ids: ids of all fields together.
        batches: batch sizes.
        epochs: passes over the training rows.
        rounds: turns of each contestant at each batch size.
        lr: learning rate of all weights at batch 1024.
        rule: rule that scales the rate of plain Adam with the batch: a name of `scaling.RULES`.
        mlp: widths of the hidden layers.
        seed: seed of the rows, the initialization and the row order.
        contestants: names of `CONTESTANTS`.
        pythons: interpreters of the peers: "deepctr", "fuxictr", "authors", "hugectr".
        checkout: checkout of the authors' code.
        timeout: maximum seconds of a peer's run.

    Raises:
        InputError: if a name is unknown, a number is out of range, a value is given twice, or a
            program or the checkout is missing.
    """

    work: Path = option(Path("work/peers"), "folder of rows, predictions and the peers' logs")
    rows: int = option(450_000, "generated; a tenth is held out")
    ids: int = option(220_000, "of all fields together")
    batches: tuple[int, ...] = option((1024, 8192, 65536), "rows per step")
    epochs: int = option(1, "epochs")
    rounds: int = option(5, "turns of every contestant at every batch")
    lr: float = option(1e-3, "learning rate at batch 1024")
    rule: str = option("sqrt", f"how plain Adam's rate grows with the batch: {', '.join(PLAIN)}")
    mlp: tuple[int, ...] = (400, 400, 400)
    seed: int = 1234
    contestants: tuple[str, ...] = option(CONTESTANTS, "some of these")
    pythons: Mapping[str, str] = field(default_factory=dict)
    checkout: Path | None = option(
        None, "folder of the authors' code", flag="--authors", kind=Path, metavar="CHECKOUT"
    )
    timeout: float = 3600.0

    def __post_init__(self) -> None:
        """Reject values that cannot be measured."""
        check_choices("--contestants", self.contestants, CONTESTANTS)
        check_choices("--rule", (self.rule,), PLAIN)
        check_unique({"--contestants": self.contestants, "--batches": self.batches})
        check_at_least_one(
            {"--batches": self.batches, "--epochs": self.epochs, "--rounds": self.rounds}
        )
        check_at_least_one({"mlp": self.mlp})
        check_positive({"--lr": self.lr})
        check_vocabulary_size("--ids", self.ids)
        self._check_rows()
        self._check_programs()

    def _check_rows(self) -> None:
        if self.rows < 100:
            raise InputError(f"--rows is {self.rows}; give 100 or more")
        for batch in self.batches:
            if self.epochs * steps_per_epoch(self.rows - self.held_out, batch) <= WARM_UP_STEPS:
                raise InputError(
                    f"--batches {batch}: no step is left to measure after the first "
                    f"{WARM_UP_STEPS}; give more --rows or --epochs"
                )

    def _check_programs(self) -> None:
        for kind, python in self.pythons.items():
            if shutil.which(python) is None:
                raise InputError(f"--{kind}-python {python}: no such program; give a bin/python")
        if self.checkout is not None and not (self.checkout / "train.py").is_file():
            raise InputError(
                f"--authors {self.checkout}: has no train.py; give a checkout of LargeBatchCTR"
            )

    @property
    def held_out(self) -> int:
        """Number of test rows."""
        return self.rows // 10

    @property
    def runs_hugectr(self) -> bool:
        """Whether a contestant needs the rows as a folder for HugeCTR."""
        chosen = {kind for name, (kind, *_) in PEERS.items() if name in self.contestants}
        return "hugectr" in chosen & {*self.pythons}

    def rows_for(self, name: str) -> Path:
        """Return where a contestant reads the rows."""
        kind = PEERS.get(name, (name,))[0]
        return self.work.absolute() / ("hugectr" if kind == "hugectr" else "rows.npz")

    def missing(self, name: str) -> str | None:
        """Return which required options a contestant lacks; None if it can run."""
        if name not in PEERS:
            return None
        kind = PEERS[name][0]
        needed = [f"--{kind}-python"] if kind not in self.pythons else []
        if kind == "authors" and self.checkout is None:
            needed.append("--authors")
        return f"not run: give {' and '.join(needed)}" if needed else None


def make_job(name: str, settings: PeerSettings, batch: int) -> Job:
    """Make the job of one contestant at one batch size."""
    rates = {"embedding_lr": settings.lr, "dense_lr": settings.lr}
    values = rates | {"warmup_epochs": WARMUP_SHARE * settings.epochs}
    scaled: Hyperparameters = scale(
        rebase("criteo", batch_size=BASE_BATCH, values=values), to=batch
    )
    plain = settings.lr * RULES[settings.rule](batch / BASE_BATCH).dense_lr
    clipped = name.startswith("cowclip") or name == "authors"
    return Job(
        rows_file=settings.rows_for(name),
        predictions=settings.work.absolute() / f"{name.replace(' ', '-')}.npy",
        batch=batch,
        epochs=settings.epochs,
        lr=scaled.dense_lr if clipped else plain,
        embedding_lr=scaled.embedding_lr,
        l2=scaled.l2,
        r=scaled.r,
        zeta=scaled.zeta,
        warmup_epochs=scaled.warmup_epochs,
        init_std=scaled.init_std,
        embedding_dim=10,
        mlp=",".join(map(str, settings.mlp)),
        seed=settings.seed,
    )
