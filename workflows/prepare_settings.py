"""Settings of `prepare`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin import choices
from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, device_option, option, parse_names
from cowclip_merlin.targets import check_targets
from cowclip_merlin.workflows.ingest import Split
from cowclip_merlin.workflows.nvtabular_graph import Recipe
from cowclip_merlin.workflows.raw.file_formats import TEXT, format_of
from cowclip_merlin.workflows.raw.log_format import (
    AVAZU,
    AVAZU_X1,
    AVAZU_X4,
    CRITEO,
    CRITEO_X1,
    CRITEO_X4,
    TABLE,
    LogFormat,
    parse_separator,
    separator_of,
    time_parts,
)

if TYPE_CHECKING:
    from cowclip_merlin.workflows.prepared.folder import PreparedData

OWN_SPLITS = ("validation", "test")
"""Splits that may have files of their own."""
BARS = {each.kind: each for each in (CRITEO_X1, CRITEO_X4, AVAZU_X1, AVAZU_X4)}
"""The data sets of BARS (Zhu et al., arXiv 2205.09626), each a folder of `BARS_FILES`."""
BARS_FILES = {"files": "train.csv", "validation": "valid.csv", "test": "test.csv"}
FREQ_THRESHOLD = {"criteo_x4": 10, "avazu_x4": 2}
"""Kind -> its usual `freq_threshold`: those of Criteo_x4_001 and Avazu_x4_001."""
KINDS = {"criteo": CRITEO, "avazu": AVAZU, **BARS}
TEST_FRACTION = {
    ("criteo", "random"): 0.1,
    ("criteo", "time"): 1 / 7,
    ("avazu", "random"): 0.2,
    ("avazu", "time"): 0.2,
}


@dataclass(frozen=True, kw_only=True)
class PrepareSettings(Settings):
    """Settings of one call of `prepare`.

    Raises:
        InputError: if a value is unknown, out of range, missing or without effect.
    """

    files: tuple[FilePath, ...] = option(
        help="text, JSON lines (.jsonl), plain or .gz, .bz2, .zst or .lz4, or parquet, in order; "
        "also patterns, and addresses such as s3://; criteo_x4 and the like: the folder of "
        "train.csv, valid.csv and test.csv",
        flag="files",
        nargs="+",
        metavar="FILE",
    )
    out: FilePath = option(help="folder to write", metavar="DATA")
    validation: tuple[FilePath, ...] = option(
        (),
        "files of validation rows, which train then holds out",
        nargs="+",
        metavar="FILE",
        shown="none",
    )
    test: tuple[FilePath, ...] = option(
        (),
        "files of test rows; all rows of the others train",
        nargs="+",
        metavar="FILE",
        shown="a share of the others",
    )
    kind: str = option(
        "criteo",
        "format of the log; table: columns that you name; criteo_x1 to avazu_x4: data sets of BARS",
        flag="kind",
        choices=(*KINDS, TABLE),
    )
    label: str | tuple[str, ...] | None = option(
        None,
        "table: label column of 0 and 1, or a number; several targets: their labels, as a,b,c",
        metavar="COL",
        convert=parse_names,
    )
    regression: tuple[str, ...] = option(
        (), "table: those labels that are numbers, as b,c", metavar="COLS", convert=parse_names
    )
    categorical: tuple[str, ...] = option(
        (), "table: id columns, as a,b,c", metavar="COLS", convert=parse_names
    )
    continuous: tuple[str, ...] = option(
        (), "table: numeric columns, as x,y,z", metavar="COLS", convert=parse_names
    )
    multi: tuple[str, ...] = option(
        (),
        "table: id columns with several values per row, lists of parquet or text, as a,b,c",
        metavar="COLS",
        convert=parse_names,
    )
    multi_separator: str = option(
        "|", "table: between the values of text in these columns", metavar="TEXT"
    )
    max_values: int = option(
        0, "table: keep at most N values of a row in these columns; 0: all", metavar="N", at_least=0
    )
    keep_values: str = option(
        "first", "table: which ones to keep with --max-values", choices=choices.KEEP_VALUES
    )
    share_embedding: tuple[str, ...] = option(
        (),
        "table: columns with the ids and embeddings of another one, as history=item,clicked=item",
        metavar="COL=COL",
        convert=parse_names,
    )
    text: tuple[str, ...] = option(
        (),
        "table: id columns in which 47.0 and 47 are two ids, as a,b; else both are 47",
        metavar="COLS",
        convert=parse_names,
    )
    time: str | None = option(
        None,
        "table: column of dates or times; its hour and weekday become id columns, and it is the "
        "order of --split time",
        metavar="COL",
    )
    weight: str | None = option(
        None, "table: column with the weights of the rows, numbers of 0 or more", metavar="COL"
    )
    vector: tuple[str, ...] = option(
        (),
        "table: columns with a vector of numbers per row, lists of parquet or text, as a,b",
        metavar="COLS",
        convert=parse_names,
    )
    vector_separator: str = option(
        "|", "table: between the numbers of text in these columns", metavar="TEXT"
    )
    separator: str | None = option(
        None,
        "table: between columns of text, such as ';' or tab",
        shown="by each file's name, tab in .tsv and .txt, else a comma",
        metavar="CHAR",
    )
    columns: tuple[str, ...] = option(
        (), "table: all columns of text without a header, as y,a,b", metavar="COLS"
    )
    like: FilePath | None = option(
        None, "use this folder's ids; all rows are test rows", metavar="DATA"
    )
    extend: FilePath | None = option(
        None,
        "keep this folder's ids and scales, add new values behind them, and add up the counts",
        metavar="DATA",
    )
    split: str = option(
        "random",
        "time: the last rows, by --time or else in the order of the files, are the test rows",
        choices=choices.SPLIT_METHODS,
    )
    test_fraction: float | None = option(
        None,
        "share of the test rows; 0: all rows are training rows",
        shown="criteo 0.1, by time 1/7; avazu 0.2; table 0.1",
        metavar="F",
    )
    seed: int | None = option(None, "seed of the random split", shown="1234")
    recipe: Recipe = option(help="how columns are transformed", default_factory=Recipe)
    max_bad_fraction: float = option(
        0.001,
        "largest share of damaged rows; above it, nothing is written",
        metavar="F",
        at_least=0,
        below=1,
    )
    partition_mb: float = option(
        32,
        "MB of text to read at a time, 0.001 to 1024; memory use grows with it",
        metavar="N",
        at_least=0.001,
        at_most=1024,
    )
    hugectr: bool = option(False, "also write HugeCTR's input files")
    scheduler: str | None = option(None, "running Dask scheduler to use", metavar="ADDRESS")
    device: str = device_option()
    overwrite: bool = option(False, "replace DATA if it is a prepared folder")

    def __post_init__(self) -> None:
        """Reject values that would fail later."""
        super().__post_init__()
        if not self.files:
            raise InputError("no input files; give at least one")
        if not isinstance(self.label, str | None):  # one label has one form
            names = tuple(self.label)
            object.__setattr__(self, "label", names if len(names) > 1 else "".join(names) or None)
        if self.kind in BARS and self.base is None:
            self._take_benchmark()
        new = [name for name in self.multi if name not in self.categorical]
        object.__setattr__(self, "categorical", (*self.categorical, *new))
        self._check_lists()
        self._check_tables()
        self._check_text_options()
        self._check_effects()

    def _take_benchmark(self) -> None:
        """Replace the folder of a data set of BARS by its files, and fill in its threshold."""
        names, folder = ", ".join(BARS_FILES.values()), self.files[0]
        if isinstance(folder, Path) and folder.is_dir():
            if len(self.files) > 1 or self.validation or self.test:
                raise InputError(f"{folder}: gives all files, {names}; name no others")
            for name, file in BARS_FILES.items():
                object.__setattr__(self, name, (folder / file,))
        elif not (self.validation and self.test):
            raise InputError(
                f"{folder}: {self.kind} has its own validation and test rows; give the folder of "
                f"{names}, or all three files"
            )
        if not self.recipe.freq_threshold:
            usual = FREQ_THRESHOLD.get(self.kind, 0)
            object.__setattr__(self, "recipe", replace(self.recipe, freq_threshold=usual))

    def _check_lists(self) -> None:
        """Reject settings of lists and vectors that have no effect or cannot be meant."""
        without = {"multi_separator": ("|", "multi"), "max_values": (0, "multi")}
        without |= {"keep_values": ("first", "multi"), "vector_separator": ("|", "vector")}
        for name, (usual, columns) in without.items():
            if getattr(self, name) != usual and not getattr(self, columns):
                raise InputError(f"`{name}` has no effect without `{columns}`; remove it")
        if self.keep_values != "first" and not self.max_values:
            raise InputError("`keep_values` has no effect without `max_values`; remove it")
        for name in ("multi_separator", "vector_separator"):
            if not getattr(self, name):
                raise InputError(f"`{name}` is empty; give text, such as '|'")

    @property
    def shared(self) -> dict[str, str]:
        """Column -> the column whose ids and embeddings it has."""
        parts = [part.partition("=") for part in self.share_embedding]
        return {column.strip(): table.strip() for column, _, table in parts}

    def _check_tables(self) -> None:
        """Reject columns that cannot share a table, and columns of `text` without ids."""
        shared, no_ids = self.shared, "is not among the columns of `categorical` and `multi`"
        names = [part.partition("=")[0].strip() for part in self.share_embedding]
        ids = {*self.categorical} if self.base is None else None  # None: those of the folder
        for part, (column, table) in zip(self.share_embedding, shared.items()):
            words = f"`share_embedding`: {part!r}"
            if not column or not table or column == table:
                raise InputError(f"{words} does not name two columns; give such as history=item")
            if names.count(column) > 1:
                raise InputError(f"`share_embedding` has column {column!r} twice; give it once")
            for name in (column, table):
                if ids is not None and name not in ids:
                    raise InputError(f"{words}: {name!r} {no_ids}; name it there")
            if table in shared:
                raise InputError(
                    f"{words}: {table!r} has the ids of {shared[table]!r} itself; give "
                    f"{column}={shared[table]}"
                )
        for name in () if ids is None else self.text:
            if name in shared:
                raise InputError(
                    f"`text`: {name!r} has the ids of {shared[name]!r}; give {shared[name]}"
                )
            if name not in ids:
                raise InputError(f"`text`: {name!r} {no_ids}; name it there")

    @property
    def all_files(self) -> tuple[FilePath, ...]:
        """All files, those of training rows first."""
        return (*self.files, *self.validation, *self.test)

    @property
    def base(self) -> FilePath | None:
        """The folder of `like` or `extend`."""
        return self.like if self.extend is None else self.extend

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the label columns that are given."""
        return (self.label,) if isinstance(self.label, str) else self.label or ()

    def _check_text_options(self) -> None:
        """Reject options of text files that have no effect, or that cannot be meant."""
        if self.separator is not None:
            object.__setattr__(self, "separator", parse_separator(self.separator))
        given = "`columns`" if self.columns else "`separator`"
        if not self.columns and self.separator is None:
            return
        if self.kind != TABLE:
            raise InputError(f"{given} is for the kind table; omit it for a {self.kind} log")
        kinds = [format_of(file) for file in self.files]
        if TEXT not in kinds:
            raise InputError(f"{given} is for text, but {self.files[0]} is {kinds[0]}; omit it")
        for name in self.columns:
            if not name or self.columns.count(name) > 1:
                what = f"has {name!r} twice" if name else "has a column without a name"
                raise InputError(f"`columns` {what}; give each column a name of its own")

    def _check_effects(self) -> None:
        """Reject settings that have no effect with `like`, `extend` or a split by time."""
        if self.like is not None and self.extend is not None:
            raise InputError("`like` adds no ids and `extend` does; omit one")
        if self.extend is not None and self.recipe != Recipe():
            raise InputError(
                f"`extend` {self.extend}: columns are transformed as there; omit `freq_threshold`, "
                "`log` and `fit_on`"
            )
        for name in OWN_SPLITS:
            if self.like is not None and getattr(self, name):
                raise InputError(f"`like` {self.like}: all rows are test rows; omit `{name}`")
        given = (self.recipe, self.split, self.test_fraction, self.seed)
        if self.test and given[1:] != ("random", None, None):
            raise InputError(
                "`test` gives the test rows, and `split`, `test_fraction` and `seed` would choose "
                "them among the others; omit these three"
            )
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
            InputError: if a table's columns are not named.
        """
        if self.kind in KINDS:
            named = (self.label, self.regression, self.categorical, self.continuous, self.weight)
            if any((*named, self.vector, self.text, self.time)):
                raise InputError(
                    "`label`, `regression`, `categorical`, `multi`, `continuous`, `vector`, "
                    f"`time`, `text` and `weight` are for the kind table; a {self.kind} log has "
                    "its own columns"
                )
            return KINDS[self.kind]
        made = time_parts(self.time or "")
        if not self.label or not (self.categorical or made):
            raise InputError("a table needs `label` and `categorical`; name its columns")
        check_targets(self.labels, self.regression)
        weights = (self.weight,) if self.weight else ()
        names = (*self.labels, *self.categorical, *self.continuous, *self.vector, *weights)
        names += (self.time, *made) if self.time else ()
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
                label=self.labels[0],
                more_labels=self.labels[1:],
                regression=self.regression,
                categorical=(*self.categorical, *made),
                continuous=self.continuous,
                multi=dict.fromkeys(self.multi, self.multi_separator),
                max_values=self.max_values,
                keep_values=self.keep_values,
                weight=self.weight or "",
                vectors=dict.fromkeys(self.vector, 0),
                vector_separator=self.vector_separator,
                share_embedding=self.shared,
                text=self.text,
                time=self.time or "",
                separator=separator_of(self.files[0]),
            )
        )

    def log_format_like(self, base: PreparedData) -> LogFormat:
        """Return the columns of `base`; check that kinds match and vocabularies are complete."""
        log_format = base.log_format
        if self.kind != log_format.kind:
            raise InputError(
                f"{self.base}: is a {log_format.kind} log, not a {self.kind} log; use its kind"
            )
        names = ("regression", "continuous", "max_values", "weight", "text", "time")
        known = {"labels": log_format.labels} | {name: getattr(log_format, name) for name in names}
        made = time_parts(log_format.time)
        known["categorical"] = tuple(x for x in log_format.categorical if x not in made)
        known |= {"multi": tuple(log_format.multi), "vector": tuple(log_format.vectors)}
        known |= {"shared": dict(log_format.share_embedding)}
        for name, value in known.items():
            given = getattr(self, name)
            if given and given != value:
                name = {"shared": "share_embedding", "labels": "label"}.get(name, name)
                raise InputError(f"`{name}`: {self.base} has other columns; omit `{name}`")
        base.verify_categories()
        return self.with_text_options(log_format.of_file(self.files[0]))

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
                    f"`columns` has no {name!r}, which is the label, the weight, categorical, "
                    "continuous or a vector; name all columns of the file, in its order"
                )
        return replace(log_format, file_columns=self.columns, header=False)

    def make_split(self) -> Split:
        """Return how to split the rows."""
        usual = 0.0 if self.test else TEST_FRACTION.get((self.kind, self.split), 0.1)
        fraction = usual if self.test_fraction is None else self.test_fraction
        seed = {} if self.seed is None else {"seed": self.seed}
        return Split(how=self.split, test_fraction=fraction, **seed)
