"""Settings of `prepare`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cowclip_merlin import choices
from cowclip_merlin.checks import one_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows.nvtabular_graph import Recipe
from cowclip_merlin.workflows.raw.log_format import (
    AVAZU,
    CRITEO,
    TABLE,
    LogFormat,
    parse_separator,
    separator_of,
)
from cowclip_merlin.workflows.train_test_split import Split

KINDS = {"criteo": CRITEO, "avazu": AVAZU}
TEST_FRACTION = {
    ("criteo", "random"): 0.1,
    ("criteo", "time"): 1 / 7,
    ("avazu", "random"): 0.2,
    ("avazu", "time"): 0.2,
}


@dataclass(frozen=True, kw_only=True)
class PrepareSettings:
    """Settings of one call of `prepare`.

    Attributes:
        files: raw files, in the order of the rows: plain or compressed text, or parquet.
        out: folder to write.
        kind: "criteo", "avazu" or "table".
        label: for "table": name of the 0/1 column.
        categorical: for "table": names of the categorical columns.
        continuous: for "table": names of the numeric columns.
        multi: for "table": categorical columns with several values per row -> what separates the
            values in text, such as "|". Those that `categorical` does not name come after it.
        max_values: keep at most so many values of a row in a column of `multi`; 0: all.
        keep_values: which ones to keep then: "first" or "last".
        separator: for "table": one character between columns of all text files, or "tab"; by
            default the name of each file decides.
        columns: for "table": all columns of text files without a header, in file order.
        like: a prepared folder whose columns, settings and vocabulary are used; all rows become
            test rows.
        split: "random" or "time".
        test_fraction: share of test rows; by default the usual share for the data set.
        seed: seed of the random split; None: 1234.
        recipe: how columns are transformed.
        max_bad_fraction: stop if the share of damaged rows exceeds this.
        partition_mb: megabytes of text per partition, 0.001 to 1024; larger partitions need more
            memory.
        hugectr: also write the files that HugeCTR reads.
        scheduler: address of a Dask scheduler.
        device: "auto", "cpu" or "gpu".
        overwrite: replace `out` if it is a prepared folder; never replace other folders.
    """

    files: tuple[Path, ...]
    out: Path
    kind: str = "criteo"
    label: str | None = None
    categorical: tuple[str, ...] = ()
    continuous: tuple[str, ...] = ()
    multi: Mapping[str, str] = field(default_factory=dict)
    max_values: int = 0
    keep_values: str = "first"
    separator: str | None = None
    columns: tuple[str, ...] = ()
    like: Path | None = None
    split: str = "random"
    test_fraction: float | None = None
    seed: int | None = None
    recipe: Recipe = field(default_factory=Recipe)
    max_bad_fraction: float = 0.001
    partition_mb: float = 32
    hugectr: bool = False
    scheduler: str | None = None
    device: str = "auto"
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Reject values that would fail later."""
        object.__setattr__(self, "files", tuple(Path(file) for file in self.files))
        object.__setattr__(self, "out", Path(self.out))
        object.__setattr__(self, "like", None if self.like is None else Path(self.like))
        for name in ("categorical", "continuous", "columns"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.files:
            raise InputError("no input files; give at least one")
        if not 0 <= self.max_bad_fraction < 1:
            raise InputError(f"`max_bad_fraction` is {self.max_bad_fraction}; use 0 <= x < 1")
        if not 0.001 <= self.partition_mb <= 1024:
            raise InputError(f"`partition_mb` is {self.partition_mb}; use 0.001 to 1024")
        new = [name for name in self.multi if name not in self.categorical]
        object.__setattr__(self, "categorical", (*self.categorical, *new))
        self._check_multi()
        self._check_text_options()
        self._check_effects()

    def _check_multi(self) -> None:
        """Reject settings of multi-valued columns that have no effect or cannot be meant.

        Raises:
            InputError: if there is one.
        """
        one_of("keep_values", self.keep_values, choices.KEEP_VALUES)
        if self.max_values < 0:
            raise InputError(f"`max_values` is {self.max_values}; give 1 or more, or 0 for all")
        if not self.multi and (self.max_values or self.keep_values != "first"):
            given = "`max_values`" if self.max_values else "`keep_values`"
            raise InputError(f"{given} has no effect without `multi`; remove it, or name columns")
        if self.multi and self.keep_values != "first" and not self.max_values:
            raise InputError("`keep_values` has no effect without `max_values`; remove it")
        for name, separator in self.multi.items():
            if not separator:
                raise InputError(f"`multi`: {name!r} has an empty separator; give one like '|'")
        if self.multi and self.hugectr:
            raise InputError(
                "`hugectr` needs columns with one value per row; omit it, or omit `multi`"
            )

    def _check_text_options(self) -> None:
        """Reject options of text files that have no effect, or that cannot be meant.

        Raises:
            InputError: if there is one.
        """
        if self.separator is not None:
            object.__setattr__(self, "separator", parse_separator(self.separator))
        given = "`columns`" if self.columns else "`separator`"
        if not self.columns and self.separator is None:
            return
        if self.kind != TABLE:
            raise InputError(f"{given} is for the kind table; omit it for a {self.kind} log")
        if all(file.suffix == ".parquet" for file in self.files):
            raise InputError(f"{given} is for text, but {self.files[0]} is parquet; omit it")
        for name in self.columns:
            if not name or self.columns.count(name) > 1:
                what = f"has {name!r} twice" if name else "has a column without a name"
                raise InputError(f"`columns` {what}; give each column a name of its own")

    def _check_effects(self) -> None:
        """Reject settings that have no effect together with `like` or a split by time."""
        given = (self.recipe, self.split, self.test_fraction, self.seed)
        if self.like is not None and given != (Recipe(), "random", None, None):
            raise InputError(
                f"`like` {self.like}: columns are transformed as there and all rows are test rows; "
                "omit `freq_threshold`, `log`, `fit_on`, `split`, `test_fraction` and `seed`"
            )
        if self.split == "time" and self.seed is not None:
            raise InputError("`seed` has no effect with `split` time; remove it")

    def log_format(self) -> LogFormat:
        """Return the columns of the log.

        Raises:
            InputError: if the kind is unknown, or a table's columns are not named.
        """
        if self.kind in KINDS:
            if self.label or self.categorical or self.continuous:
                raise InputError(
                    f"`label`, `categorical`, `multi` and `continuous` are for the kind table; a "
                    f"{self.kind} log has its own columns"
                )
            return KINDS[self.kind]
        if self.kind != "table":
            raise InputError(f"unknown kind {self.kind!r}; choose criteo, avazu or table")
        if not self.label or not self.categorical:
            raise InputError("a table needs `label` and `categorical`; name its columns")
        names = (self.label, *self.categorical, *self.continuous)
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InputError(f"column {twice[0]!r} is given twice; give each column one role")
        for name in self.categorical:
            if "/" in name or "\0" in name:
                raise InputError(
                    f"column {name!r} cannot be categorical, because files are named after it; "
                    "rename it in the log, without the slash"
                )
        return self.with_text_options(
            LogFormat(
                kind=TABLE,
                label=self.label,
                categorical=self.categorical,
                continuous=self.continuous,
                multi=dict(self.multi),
                max_values=self.max_values,
                keep_values=self.keep_values,
                separator=separator_of(self.files[0]),
            )
        )

    def with_text_options(self, log_format: LogFormat) -> LogFormat:
        """Return this format with the separator and the columns that the settings give.

        Raises:
            InputError: if the columns lack one that the format needs.
        """
        if self.separator is not None:
            given = {"separator": self.separator, "separator_given": True}
            log_format = replace(log_format, **given)
        if not self.columns:
            return log_format
        for name in log_format.columns:
            if name not in self.columns:
                raise InputError(
                    f"`columns` has no {name!r}, which is the label, categorical or continuous; "
                    "name all columns of the file, in its order"
                )
        return replace(log_format, file_columns=self.columns, header=False)

    def make_split(self) -> Split:
        """Return how to split the rows."""
        usual = TEST_FRACTION.get((self.kind, self.split), 0.1)
        fraction = usual if self.test_fraction is None else self.test_fraction
        seed = {} if self.seed is None else {"seed": self.seed}
        return Split(how=self.split, test_fraction=fraction, **seed)
