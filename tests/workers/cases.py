"""What the workers train in `trajectories.py`."""

from dataclasses import asdict, dataclass, replace

STEPS = (8, 50)  # after which weights and states are written


@dataclass(frozen=True)
class Case:
    """One training.

    `counts`: whether the workers exchange how often each id occurs; without, they train wrong.
    `micro_batches`: of the optimizer; all batches then have the same number of rows.
    """

    model: str
    optimizer: str
    update: str
    tables: str = "fused"
    counts: bool = True
    micro_batches: int = 1

    def __str__(self):
        counts = "" if self.counts else "-without-counts"
        parts = "" if self.micro_batches == 1 else f"-{self.micro_batches}-parts"
        return f"{self.model}-{self.optimizer}-{self.update}-{self.tables}{counts}{parts}"

    @property
    def of_one(self):
        """The case of one process that this one must equal."""
        tables = "fused" if self.tables == "sharded" else self.tables
        return replace(self, tables=tables, counts=True)


WITHOUT_COUNTS = Case("deepfm", "adagrad", "lazy", counts=False)
BY_THREE = [Case("deepfm", "adam", "exact", "sharded"), Case("deepfm", "adagrad", "lazy")]
# Every update with whole and with sharded tables, every model once.
BY_TWO = [
    *(Case("deepfm", "adam", "exact", tables) for tables in ("fused", "sharded")),
    *(Case("deepfm", "adagrad", "lazy", tables) for tables in ("fused", "sharded", "per_field")),
    Case("deepfm", "rowwise_adagrad", "lazy", "sharded"),
    Case("deepfm", "adam", "lazy"),
    Case("deepfm", "adam", "exact", micro_batches=4),
    Case("wide_and_deep", "adagrad", "dense"),
    Case("dcn", "adam", "dense", "sharded"),
    Case("dcnv2", "adagrad", "lazy", "sharded"),
]
CASES = {
    workers: [asdict(case) for case in cases]
    for workers, cases in (
        (1, list(dict.fromkeys(case.of_one for case in BY_TWO))),
        (2, [*BY_TWO, WITHOUT_COUNTS]),
        (3, BY_THREE),
    )
}
