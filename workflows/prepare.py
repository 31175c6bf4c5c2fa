"""`prepare`: raw log to a prepared folder, in one go."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.workflows import graph
from cowclip_merlin.workflows.cluster import cluster, forget_categories, use_gpu
from cowclip_merlin.workflows.counts import write_counts
from cowclip_merlin.workflows.folder import PreparedData, describe
from cowclip_merlin.workflows.graph import Recipe
from cowclip_merlin.workflows.hugectr import write_slot_sizes
from cowclip_merlin.workflows.ingest import Ingest, Ingested
from cowclip_merlin.workflows.layout import AVAZU, CRITEO, Layout
from cowclip_merlin.workflows.split import Split

KINDS = {"criteo": CRITEO, "avazu": AVAZU}
TEST_FRACTION = {
    ("criteo", "random"): 0.1,
    ("criteo", "time"): 1 / 7,
    ("avazu", "random"): 0.2,
    ("avazu", "time"): 0.2,
}


@dataclass(frozen=True, kw_only=True)
class PrepareSettings:
    """Settings of one preparation.

    Attributes:
        files: raw files, in the order of the rows: text, .gz, or parquet.
        out: folder to write.
        kind: "criteo", "avazu" or "table".
        label: for "table": name of the 0/1 column.
        categorical: for "table": names of the categorical columns.
        continuous: for "table": names of the numeric columns.
        like: a prepared folder whose settings and vocabulary are used; all rows become test rows.
        split: "random" or "time".
        test_fraction: share of test rows; by default the data set's usual one.
        seed: of the random split.
        recipe: how columns are transformed.
        max_bad_fraction: share of damaged rows above which it stops.
        partition_mb: megabytes of text per partition; the memory needed grows with it.
        hugectr: write what HugeCTR reads, too.
        scheduler: address of a Dask scheduler.
        device: "auto", "cpu" or "gpu".
        overwrite: replace `out` if it is a prepared folder; anything else is left alone.
    """

    files: tuple[Path, ...]
    out: Path
    kind: str = "criteo"
    label: str | None = None
    categorical: tuple[str, ...] = ()
    continuous: tuple[str, ...] = ()
    like: Path | None = None
    split: str = "random"
    test_fraction: float | None = None
    seed: int = 1234
    recipe: Recipe = field(default_factory=Recipe)
    max_bad_fraction: float = 0.001
    partition_mb: float = 32
    hugectr: bool = False
    scheduler: str | None = None
    device: str = "auto"
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Refuse what could only fail later."""
        object.__setattr__(self, "files", tuple(Path(file) for file in self.files))
        object.__setattr__(self, "out", Path(self.out))
        if not self.files:
            raise InputError("no input files; name at least one")
        if not 0 <= self.max_bad_fraction < 1:
            raise InputError(f"--max-bad-fraction is {self.max_bad_fraction}; use 0 to below 1")
        if not self.partition_mb > 0:
            raise InputError(f"--partition-mb is {self.partition_mb}; it must be positive")
        self._refuse_idle()

    def _refuse_idle(self) -> None:
        """Refuse what does nothing beside `like`."""
        usual = (Recipe(), "random", None)
        if self.like is not None and (self.recipe, self.split, self.test_fraction) != usual:
            raise InputError(
                f"--like {self.like}: columns are transformed as there and all rows are test rows; "
                "leave --freq-threshold, --log, --fit-on, --split and --test-fraction away"
            )

    def layout(self) -> Layout:
        """Columns of the log.

        Raises:
            InputError: unknown kind, or a table without the names of its columns.
        """
        if self.kind in KINDS:
            if self.label or self.categorical or self.continuous:
                raise InputError(
                    f"--label, --categorical and --continuous are for the kind table; a "
                    f"{self.kind} log has its own columns"
                )
            return KINDS[self.kind]
        if self.kind != "table":
            raise InputError(f"unknown kind {self.kind!r}; choose criteo, avazu or table")
        if not self.label or not self.categorical:
            raise InputError("a table needs --label and --categorical; name its columns")
        names = (self.label, *self.categorical, *self.continuous)
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InputError(f"column {twice[0]!r} is named twice; give each column one role")
        for name in self.categorical:
            if "/" in name or "\0" in name:
                raise InputError(
                    f"column {name!r} cannot be categorical: files are named after it; rename it "
                    "in the log, without the slash"
                )
        return Layout(
            kind="table",
            label=self.label,
            categorical=self.categorical,
            continuous=self.continuous,
            separator=_separator(self.files[0]),
        )

    def division(self) -> Split:
        """How rows are divided."""
        usual = TEST_FRACTION.get((self.kind, self.split), 0.1)
        fraction = usual if self.test_fraction is None else self.test_fraction
        return Split(how=self.split, test_fraction=fraction, seed=self.seed)


def prepare(settings: PrepareSettings) -> PreparedData:
    """Read, check, divide, fit (on the training rows by default), transform, write, describe.

    The folder appears whole, or not at all.

    Raises:
        InputError: wrong input, named in one line.
        OSError: the disk is full, or may not be written.
    """
    out = settings.out
    _check_place(settings)
    base = None if settings.like is None else PreparedData.load(settings.like)
    layout = settings.layout() if base is None else _like(base, settings)
    split = settings.division() if base is None else None
    gpu = use_gpu(settings.device)
    for file in settings.files:
        if file.is_dir():
            raise InputError(f"{file}: is a folder; name the files in it, as in {file}/*.parquet")
        if not file.is_file():
            raise InputError(f"{file}: no such file; check the path")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder; make it first")
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        _prepare(settings, base, layout, split, work, gpu=gpu)
        if out.exists():
            shutil.rmtree(out)
        (work / "data").rename(out)
    finally:
        with suppress(OSError):
            shutil.rmtree(work)
    return PreparedData.load(out)


def _check_place(settings: PrepareSettings) -> None:
    """Refuse a place that is taken: to replace a folder is to delete all that is in it."""
    out = settings.out
    if not out.exists():
        return
    if not settings.overwrite:
        raise InputError(f"{out}: is there already; use --overwrite to replace it")
    if not (out / "dataset.json").is_file():
        raise InputError(
            f"{out}: no dataset.json in it, so --overwrite does not delete it; use another --out"
        )
    for file in settings.files:
        if out.resolve() in file.resolve().parents:
            raise InputError(f"{file}: is in {out}, which would be replaced; use another --out")


def _like(base: PreparedData, settings: PrepareSettings) -> Layout:
    """The layout of `base`, if this log is of its kind and its vocabulary is all there."""
    layout = base.layout
    if settings.kind != layout.kind:
        raise InputError(
            f"{settings.like}: is a {layout.kind} log, not a {settings.kind} log; name its kind"
        )
    for name in layout.categorical:
        for file in (f"unique.{name}.parquet", f"meta.{name}.parquet"):
            if not (base.path / "categories" / file).is_file():
                raise InputError(
                    f"{base.path}/categories/{file}: no such file; prepare {base.path} again"
                )
    if settings.kind == "table":
        return replace(layout, separator=_separator(settings.files[0]))
    return layout


def _separator(file: Path) -> str:
    return "\t" if file.name.removesuffix(".gz").endswith((".tsv", ".txt")) else ","


def _prepare(
    settings: PrepareSettings,
    base: PreparedData | None,
    layout: Layout,
    split: Split | None,
    work: Path,
    *,
    gpu: bool,
) -> None:
    data = work / "data"
    data.mkdir()
    ingested = Ingest(
        layout,
        split,
        max_bad_fraction=settings.max_bad_fraction,
        block_bytes=int(settings.partition_mb * (1 << 20)),
        stage=work / "stage",
        quarantine=data / "quarantine" / "lines.tsv",
    ).run(settings.files)
    recipe = settings.recipe if base is None else base.recipe
    with compat.quiet_merlin(), cluster(settings.scheduler, gpu=gpu):
        known = _transform(ingested, base, layout, recipe, data, gpu=gpu, hugectr=settings.hugectr)
    write_counts(data, layout)
    if settings.hugectr:
        write_slot_sizes(data, layout, known)
    describe(
        data,
        layout=layout,
        recipe=recipe,
        known=known,
        settings=_record(settings, split),
        files=settings.files,
        rows=ingested.rows,
        clicks=ingested.clicks,
        quarantined=ingested.quarantined,
    )
    _finish(settings, ingested, data)


def _transform(
    ingested: Ingested,
    base: PreparedData | None,
    layout: Layout,
    recipe: Recipe,
    data: Path,
    *,
    gpu: bool,
    hugectr: bool,
) -> graph.Statistics:
    """Fit on the recipe's rows (or take what `base` learned) and write both splits."""
    if base is None:
        workflow = graph.build(layout, recipe, data)
        fitted = [file for split in recipe.fitted_splits for file in ingested.files[split]]
        workflow.fit(graph.dataset(fitted, gpu=gpu))
        graph.order_ties(data / "categories", layout)
        forget_categories()
        known = graph.statistics(workflow, layout)
    else:
        workflow, known = base.workflow(), base.statistics
        shutil.copytree(base.path / "categories", data / "categories")
    for name, files in ingested.files.items():
        (data / name).mkdir()
        if files:
            graph.write_split(workflow, files, data / name, layout, gpu=gpu, hugectr=hugectr)
    return known


def _record(settings: PrepareSettings, split: Split | None) -> Mapping[str, Any]:
    """Settings that decide what is written, for `dataset.json`.

    Rows to fit on are named where they are not the usual ones, so that the fingerprints of data
    that were prepared before there was a choice still hold.
    """
    recipe = asdict(settings.recipe)
    if recipe["fit_on"] == "train":
        del recipe["fit_on"]
    return {
        "kind": settings.kind,
        "like": None if settings.like is None else settings.like.name,
        "split": None if split is None else asdict(split),
        "recipe": recipe,
        "max_bad_fraction": settings.max_bad_fraction,
        "hugectr": settings.hugectr,
    }


def _finish(settings: PrepareSettings, ingested: Ingested, data: Path) -> None:
    from cowclip_merlin.workflows.report import write_report

    prepared = PreparedData.load(data)
    written = {name: _rows(prepared, name) for name in ingested.rows}
    if written != ingested.rows:
        raise RuntimeError(f"{ingested.rows} rows were read, but {written} written")
    write_report(prepared, data, name=settings.out.name)
    for bad in ingested.first_bad:
        print(f"damaged: {bad.file}:{bad.line}: {bad.reason}")
    rows = ingested.rows
    print(
        f"{settings.out}: {ingested.total:,} rows in = {rows['train']:,} train + "
        f"{rows['test']:,} test + {ingested.quarantined:,} quarantined; "
        f"{sum(prepared.cardinalities.values()):,} ids"
    )


def _rows(prepared: PreparedData, split: str) -> int:
    import pyarrow.parquet as pq

    return sum(pq.ParquetFile(file).metadata.num_rows for file in prepared.files(split))
