"""Prepare a raw log: `prepare` writes a prepared folder in one call."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.addresses import (
    Address,
    check_free,
    expand,
    is_address,
    local_folder,
    origin,
    uploaded_folder,
)
from cowclip_merlin.errors import InputError
from cowclip_merlin.system.files import clear_leftovers, rename_if_free, work_folder
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows.encoding.encoder import Encoder
from cowclip_merlin.workflows.encoding.value_counts import ValueCounts
from cowclip_merlin.workflows.nvtabular_graph import Recipe, Statistics
from cowclip_merlin.workflows.parallel import Threads, clear_category_cache, dask_cluster, use_gpu
from cowclip_merlin.workflows.prepare_checks import (
    check_base_apart,
    check_name,
    check_target,
    log_format_like,
    refuse_unsupported,
    with_vector_lengths,
)
from cowclip_merlin.workflows.prepare_settings import PrepareSettings
from cowclip_merlin.workflows.prepared.changed_columns import (
    Baseline,
    count_unknown,
    warn_of_changes,
    warn_of_sentinels,
)
from cowclip_merlin.workflows.prepared.counts import FieldCounts, cardinalities, write_counts
from cowclip_merlin.workflows.prepared.folder import (
    DATASET,
    SPLITS,
    PreparedData,
    write_description,
)
from cowclip_merlin.workflows.prepared.hugectr import write_slot_sizes
from cowclip_merlin.workflows.prepared.report import write_figure, write_summary
from cowclip_merlin.workflows.prepared.unknown_values import (
    format_shares,
    warn_of_two_texts,
    warn_of_unknown,
)
from cowclip_merlin.workflows.raw.ingest import Ingest, IngestResult, check_input_files
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.values.value_text import read_as
from cowclip_merlin.workflows.train_test_split import Split

if TYPE_CHECKING:
    from cowclip_merlin.workflows.gpu_graph import GpuRows

_GIVEN = ("validation", "test")
"""Splits that may have files of their own."""


def prepare(settings: PrepareSettings) -> PreparedData:
    """Read, check, split, fit (on the training rows by default), transform and write a log.

    The folder appears complete or not at all. For an address, it is made in `TMPDIR`.

    Raises:
        InputError: if the input or a setting is wrong; the message names it in one line.
        OSError: if the disk is full or not writable.
    """
    given = {name: tuple(expand(getattr(settings, name))) for name in ("files", *_GIVEN)}
    settings = _with_local_base(replace(settings, **given))
    expand(settings.all_files)  # refuses a file of two splits
    if not isinstance(settings.out, Address):
        return _prepare_here(settings)
    out = settings.out
    remedy = "use `overwrite` to replace it"
    check_free(str(out), DATASET, replace=settings.overwrite, remedy=remedy)
    with uploaded_folder(str(out), DATASET) as folder:
        _prepare_here(replace(settings, out=folder))
    return PreparedData.load(out)


def _with_local_base(settings: PrepareSettings) -> PrepareSettings:
    """Return the settings with the local copies of the folders of `like` and `extend`."""
    given = {name: getattr(settings, name) for name in ("like", "extend")}
    local = {n: local_folder(folder, DATASET) for n, folder in given.items() if folder is not None}
    return replace(settings, **local)


def _prepare_here(settings: PrepareSettings) -> PreparedData:
    out = settings.out
    check_name(out)
    target = out.resolve()  # a symbolic link stays; its target is replaced
    check_base_apart(settings)
    clear_leftovers(target)
    check_target(settings)
    base = None if settings.base is None else PreparedData.load(settings.base)
    log_format = settings.log_format() if base is None else log_format_like(base, settings)
    split = settings.make_split() if settings.like is None else None
    gpu = use_gpu(settings.device)
    refuse_unsupported(settings, log_format, gpu=gpu)
    check_input_files(settings.all_files)
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder; create it first")
    log_format = log_format if base else with_vector_lengths(log_format, settings.files)
    with work_folder(target) as work:
        prepared = _prepare(settings, base, log_format, split, work, gpu=gpu)
        _move_to_target(
            work / "data", target, aside=work / "replaced", overwrite=settings.overwrite
        )
    return replace(prepared, path=out)


def _move_to_target(made: Path, target: Path, *, aside: Path, overwrite: bool) -> None:
    """Move a finished folder to `target`; keep an old folder there until the new one is moved."""
    try:
        if overwrite and target.exists():
            target.rename(aside)
        rename_if_free(made, target)
    except BaseException:
        if aside.exists() and not target.exists():
            aside.rename(target)
        raise


def _prepare(
    settings: PrepareSettings,
    base: PreparedData | None,
    log_format: LogFormat,
    split: Split | None,
    work: Path,
    *,
    gpu: bool,
) -> PreparedData:
    """Read, check, split and encode the rows; then write the vocabularies, and the rows by them."""
    data = work / "data"
    data.mkdir()
    recipe = settings.recipe if base is None else base.recipe
    known = None if settings.like is None else base.path / "categories"
    on_cluster = settings.scheduler is not None
    encoder = None if gpu else Encoder(log_format, recipe, known, on_cluster=on_cluster)
    ranges = None if settings.like is None else base.statistics
    own = {name: getattr(settings, name) for name in _GIVEN if getattr(settings, name)}
    counts = {"ranges": ranges, "log": recipe.log}
    values = {name: ValueCounts(log_format, **counts) for name in dict.fromkeys((*SPLITS, *own))}
    ingested = Ingest(
        log_format,
        split,
        max_bad_fraction=settings.max_bad_fraction,
        block_bytes=int(settings.partition_mb * (1 << 20)),
        stage=work / "stage",
        encoder=encoder,
        quarantine=data / "damaged" / "lines.tsv",
        meanwhile=nullcontext if gpu else _import_early,
        values=values,
    ).run(settings.files, own)
    rows = encoder or _gpu_rows(log_format, recipe)
    with (
        compat.quiet_merlin(),
        dask_cluster(settings.scheduler, gpu=gpu),
        Threads(1) as drawing,
    ):
        if settings.extend is not None:
            rows.fit(work, ingested.files, 0)
            statistics = _extend(base, data, log_format)
        elif base is not None:
            shutil.copytree(base.path / "categories", data / "categories")
            statistics = base.statistics
        else:
            statistics = rows.fit(work, ingested.files, recipe.freq_threshold)
            numbers = {name: ingested.targets[name] for name in log_format.regression}
            statistics = replace(
                statistics,
                mean={name: each.mean for name, each in numbers.items()},
                spread={name: each.spread for name, each in numbers.items()},
            )
        counts = write_counts(data, log_format)
        drawing.start(write_figure, counts, data)
        clear_category_cache()  # workers may hold those of an earlier folder of this name
        for name in ingested.files:
            (data / name).mkdir()
        rows.write(work, ingested.files, statistics, hugectr=settings.hugectr)
        drawing.finish()
    if settings.hugectr:
        write_slot_sizes(data, log_format, statistics)
    present, unknown = count_unknown(data / "test", log_format)
    baseline = Baseline(
        rows=values["train"].rows,
        missing=dict(values["train"].missing),
        values=present,
        unknown=unknown,
    )
    write_description(
        data,
        log_format=log_format,
        recipe=recipe,
        statistics=statistics,
        settings=_settings_record(settings, split, log_format, base),
        files=settings.all_files,
        rows=ingested.rows,
        clicks=ingested.clicks,
        damaged=ingested.damaged,
        targets=ingested.targets,
        fitted_rows=_fitted_rows(settings, base, ingested, recipe),
        baseline=baseline if settings.like is None else base.baseline,
    )
    if settings.like is None:
        warn_of_sentinels(values["train"].extremes)
        shares = None
    else:
        warn_of_changes(values["test"], base)
        shares = {name: unknown[name] / max(present[name], 1) for name in log_format.categorical}
    return _finish(settings, base, ingested, data, counts, rows, shares)


def _gpu_rows(log_format: LogFormat, recipe: Recipe) -> GpuRows:
    from cowclip_merlin.workflows.gpu_graph import GpuRows

    return GpuRows(log_format, recipe)


def _import_early() -> None:
    """Import what the later steps need; on a second core, this takes no time."""
    for name in ("figure", "backends.backend_svg"):
        importlib.import_module(f"matplotlib.{name}")


def _fitted_rows(
    settings: PrepareSettings, base: PreparedData | None, ingested: IngestResult, recipe: Recipe
) -> int:
    """Return the number of rows that ids were counted in, those of the base folder with them."""
    new = sum(ingested.rows.get(name, 0) for name in recipe.fitted_splits)
    return (new if settings.like is None else 0) + (base.fitted_rows if base else 0)


def _extend(base: PreparedData, data: Path, log_format: LogFormat) -> Statistics:
    """Add the values of the recipe's rows to the vocabularies of a folder; keep its scales."""
    from cowclip_merlin.workflows.vocabulary import extend_vocabularies

    before, folder = base.path / "categories", data / "categories"
    names, threshold = list(log_format.tables), base.recipe.freq_threshold
    again = extend_vocabularies(before, folder, names, threshold)
    if again:
        print(f"{base.path}: has no rare.*.parquet; its {again:,} rare values begin to count again")
    return replace(base.statistics, cardinalities=cardinalities(folder, log_format))


def _settings_record(
    settings: PrepareSettings, split: Split | None, log_format: LogFormat, base: PreparedData | None
) -> JsonObject:
    """Return the settings that decide the output, for `dataset.json`.

    `fit_on` and options of text are recorded only if they are not the default, so that
    fingerprints of data from before these settings stay valid. The columns of a Criteo or Avazu log
    follow from its kind.
    """
    recipe = asdict(settings.recipe)
    if recipe["fit_on"] == "train":
        del recipe["fit_on"]
    chosen: JsonObject = {} if base is None else {"vocabulary": base.vocabulary}
    if settings.kind == "table":
        for name in ("label", "categorical", "continuous"):
            chosen[name] = getattr(log_format, name)
        chosen |= log_format.text_options() | log_format.multi_options()
        rare = ("weight", "more_labels", "regression", "text")
        more = {name: getattr(log_format, name) for name in rare}
        chosen |= {name: value for name, value in more.items() if value}
        chosen |= log_format.vector_options()
        chosen |= log_format.share_options()
    given = {f"{name}_files": len(getattr(settings, name)) for name in _GIVEN}
    chosen |= {name: files for name, files in given.items() if files}
    if settings.extend is not None:  # its counts decide which values have ids
        chosen["extend"] = base.fingerprint
    return chosen | {
        "kind": settings.kind,
        "like": None if settings.like is None else settings.like.name,
        "split": None if split is None else asdict(split),
        "recipe": recipe,
        "max_bad_fraction": settings.max_bad_fraction,
        "hugectr": settings.hugectr,
    }


def _finish(
    settings: PrepareSettings,
    base: PreparedData | None,
    ingested: IngestResult,
    data: Path,
    counts: FieldCounts,
    rows: Encoder | GpuRows,
    unknown: Mapping[str, float] | None,
) -> PreparedData:
    """Check and tell what was written."""
    prepared = PreparedData.load(data)
    written = {name: _rows(prepared, name) for name in ingested.rows}
    if written != ingested.rows:
        raise RuntimeError(f"{ingested.rows} rows were read, but {written} written")
    write_summary(prepared, counts, data, name=settings.out.name, unknown=unknown)
    for bad in ingested.first_bad:
        print(f"damaged: {bad.file}:{bad.line}: {bad.reason}")
    parts = " + ".join(f"{count:,} {name}" for name, count in ingested.rows.items())
    print(
        f"{_shown(settings.out)}: {ingested.total:,} rows in = {parts} + {ingested.damaged:,} "
        f"damaged; {sum(prepared.tables.values()):,} ids"
    )
    for name, count in ingested.cut.items():
        most = prepared.log_format.max_values
        print(f"{name}: left out {count:,} values, those beyond {most} per row")
    of_blocks = reversed(sorted(ingested.whole_floats.items()))
    whole_floats = reduce(or_, (found for _, found in of_blocks), {})
    for line in read_as(whole_floats, remedy=base is None):
        print(line)
    if unknown is None:
        warn_of_two_texts(prepared)
    else:
        print(format_shares(unknown))
        warn_of_unknown(base, unknown, rows.frequent_unknown)
    return prepared


def _shown(out: Path) -> str:
    """Return the folder as the user gave it, or the address that it is made for."""
    found = origin(out)
    return found if is_address(found) else str(out)


def _rows(prepared: PreparedData, split: str) -> int:
    import pyarrow.parquet as pq

    return sum(pq.ParquetFile(file).metadata.num_rows for file in prepared.files(split))
