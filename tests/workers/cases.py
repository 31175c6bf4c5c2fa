"""What the workers train in `trajectories.py`."""

from dataclasses import asdict, dataclass

OTHER_MODELS = ("wide_and_deep", "dcn", "dcnv2")
ALL_WAYS = (
    ("adam", "dense"),
    ("adam", "exact"),
    ("adam", "lazy"),
    ("adagrad", "dense"),
    ("adagrad", "lazy"),
)
SOME_WAYS = (("adam", "exact"), ("adagrad", "dense"), ("adagrad", "lazy"))
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


TABLES = ("fused", "sharded")
PER_FIELD = Case("deepfm", "adagrad", "lazy", "per_field")
WITHOUT_COUNTS = Case("deepfm", "adagrad", "lazy", counts=False)
BY_THREE = [Case("deepfm", *how, tables) for how in SOME_WAYS for tables in TABLES]
BY_TWO = [
    *(Case("deepfm", *how, tables) for how in ALL_WAYS for tables in TABLES),
    *(Case(m, *how, tables) for m in OTHER_MODELS for how in SOME_WAYS for tables in TABLES),
    PER_FIELD,
]
CASES = {
    workers: [asdict(case) for case in cases]
    for workers, cases in (
        (1, list(dict.fromkeys(case.of_one for case in BY_TWO))),
        (2, [*BY_TWO, WITHOUT_COUNTS]),
        (3, BY_THREE),
    )
}
