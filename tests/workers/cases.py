"""What the workers train in `trajectories.py`."""

from dataclasses import asdict, dataclass

STEPS = (8, 50)  # after which weights and states are written


@dataclass(frozen=True)
class Case:
    """One training.

    `counts`: whether the workers exchange how often each id occurs; without, they train wrong.
    """

    model: str
    optimizer: str
    update: str
    tables: str = "fused"
    counts: bool = True

    def __str__(self):
        counts = "" if self.counts else "-without-counts"
        return f"{self.model}-{self.optimizer}-{self.update}-{self.tables}{counts}"

    @property
    def of_one(self):
        """The case of one process that this one must equal."""
        tables = "fused" if self.tables == "sharded" else self.tables
        return Case(self.model, self.optimizer, self.update, tables)


WITHOUT_COUNTS = Case("deepfm", "adagrad", "lazy", counts=False)
BY_THREE = [Case("deepfm", "adam", "exact", "sharded"), Case("deepfm", "adagrad", "lazy")]
# Every update with whole and with sharded tables, every model once.
BY_TWO = [
    *(Case("deepfm", "adam", "exact", tables) for tables in ("fused", "sharded")),
    *(Case("deepfm", "adagrad", "lazy", tables) for tables in ("fused", "sharded", "per_field")),
    Case("deepfm", "adam", "lazy"),
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
