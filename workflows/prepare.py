"""Prepare a raw log: `prepare` writes a prepared folder in one call.

The way of a row: read and checked, split, encoded and staged (`ingest`); then the vocabularies
are written, and the rows with their ids.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import NamedTuple

import numpy as np

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
from cowclip_merlin.system.checksums import write_parquet
from cowclip_merlin.system.files import clear_leftovers, rename_if_free, work_folder, write_json
from cowclip_merlin.system.folders import RESULTS, holds, inside
from cowclip_merlin.system.machine import versions
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows.encoder import Encoder, write_parts
from cowclip_merlin.workflows.ingest import Ingest, Split
from cowclip_merlin.workflows.nvtabular_graph import Statistics
from cowclip_merlin.workflows.parallel import (
    Threads,
    clear_category_cache,
    cpu_threads,
    dask_cluster,
    use_gpu,
)
from cowclip_merlin.workflows.prepare_settings import PrepareSettings
from cowclip_merlin.workflows.prepared.changes import (
    Baseline,
    ValueCounts,
    format_shares,
    two_texts,
    warn_of_changes,
    warn_of_sentinels,
    warn_of_two_texts,
    warn_of_unknown,
)
from cowclip_merlin.workflows.prepared.counts import (
    FIRST_VALUE,
    FieldCounts,
    ValuesHash,
    Vocabulary,
)
from cowclip_merlin.workflows.prepared.folder import (
    DATASET,
    FORMAT_VERSION,
    SPLITS,
    PreparedData,
    in_order,
    meaning,
    write_schema,
)
from cowclip_merlin.workflows.prepared.hugectr import write_lists, write_slot_sizes
from cowclip_merlin.workflows.prepared.report import draw_frequencies, summary
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import Quarantine
from cowclip_merlin.workflows.raw.readers import check_input_files, with_vector_lengths
from cowclip_merlin.workflows.raw.values.value_text import read_as

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
    bases = {name: getattr(settings, name) for name in ("like", "extend")}
    local = {name: local_folder(at, DATASET) for name, at in bases.items() if at is not None}
    settings = replace(settings, **given, **local)
    expand(settings.all_files)  # refuses a file of two splits
    out = settings.out
    if not isinstance(out, Address):
        return _prepare_here(settings)
    remedy = "use `overwrite` to replace it"
    check_free(str(out), DATASET, replace=settings.overwrite, remedy=remedy)
    with uploaded_folder(str(out), DATASET) as folder:
        _prepare_here(replace(settings, out=folder))
    return PreparedData.load(out)


def _prepare_here(settings: PrepareSettings) -> PreparedData:
    """Check what can be checked before long work; make the folder beside its place; move it."""
    out = settings.out
    try:  # the libraries that write parquet cannot encode other names
        str(out.absolute()).encode("utf-8")
    except UnicodeEncodeError:
        shown = str(out).encode("utf-8", "backslashreplace").decode()
        raise InputError(f"{shown}: the path is not UTF-8; use another name") from None
    target = out.resolve()  # a symbolic link stays; its target is replaced
    _check_base_apart(settings)
    clear_leftovers(target)
    _check_target(settings)
    base = None if settings.base is None else PreparedData.load(settings.base)
    log_format = settings.log_format() if base is None else settings.log_format_like(base)
    split = settings.make_split() if settings.like is None else None
    gpu = use_gpu(settings.device)
    settings.refuse_unsupported(log_format, gpu=gpu)
    check_input_files(settings.all_files)
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder; create it first")
    log_format = log_format if base else with_vector_lengths(log_format, settings.files)
    with work_folder(target) as work:
        prepared = _make(settings, base, log_format, split, work, gpu=gpu)
        aside = work / "replaced"
        try:
            if settings.overwrite and target.exists():
                target.rename(aside)
            rename_if_free(work / "data", target)
        except BaseException:
            if aside.exists() and not target.exists():
                aside.rename(target)
            raise
    return replace(prepared, path=out)


def _make(
    settings: PrepareSettings,
    base: PreparedData | None,
    log_format: LogFormat,
    split: Split | None,
    work: Path,
    *,
    gpu: bool,
) -> PreparedData:
    """Read the rows, write the vocabularies, then the rows with their ids, and describe them."""
    data, like = work / "data", settings.like is not None
    data.mkdir()
    recipe = settings.recipe if base is None else base.recipe
    own = {name: getattr(settings, name) for name in _GIVEN if getattr(settings, name)}
    ranges = base.statistics if like else None
    values = ValueCounts(log_format, ranges=ranges, log=recipe.log)
    tables = log_format.tables if like else ()
    known = {name: Vocabulary.read(base.path / "categories", name) for name in tables}
    texts = {name: each.kept["value"] for name, each in known.items()} if like else None
    encoder = None if gpu else Encoder(log_format, recipe, texts)
    bad = data / "damaged" / "lines.tsv"
    quarantine = Quarantine(bad, max_bad_fraction=settings.max_bad_fraction)
    ingest = Ingest(
        log_format,
        split,
        block_bytes=int(settings.partition_mb * (1 << 20)),
        stage=work / "stage",
        encoder=encoder,
        quarantine=quarantine,
        splits=tuple(dict.fromkeys((*SPLITS, *own))),
        counted="test" if like else "train",
        values=values,
    )
    ingest.run(settings.files, own, nullcontext if gpu else _import_early)

    ids = None if gpu or like else work / "ids"
    with (
        compat.quiet_merlin(),
        dask_cluster(settings.scheduler, gpu=gpu),
        Threads(1) as drawing,
    ):
        rows = encoder
        if gpu:
            from cowclip_merlin.workflows.gpu_graph import GpuRows

            rows, fitted = GpuRows(log_format, recipe), () if like else recipe.fitted_splits
            rows.count([file for name in fitted for file in ingest.files.get(name, ())])

        def vocabulary(name: str) -> Vocabulary:
            if like:
                return known[name]
            if base is not None:
                before = Vocabulary.read(base.path / "categories", name)
                return before.extended(rows.counts(name), recipe.freq_threshold)
            return Vocabulary.of(rows.counts(name), recipe.freq_threshold)

        how = {"ids": ids, "compare": not like}
        written = _write_vocabularies(data, log_format, vocabulary, encoder, **how)
        sizes = {name: FIRST_VALUE + len(count) for name, count in written.counts.items()}
        sizes = {name: sizes[log_format.table_of(name)] for name in log_format.categorical}
        if base is not None:
            statistics = replace(base.statistics, cardinalities=sizes)
        else:
            labels = {name: ingest.targets[name] for name in log_format.regression}
            statistics = Statistics(
                cardinalities=sizes,
                minimum={name: rows.ranges[name][0] for name in log_format.continuous},
                maximum={name: rows.ranges[name][1] for name in log_format.continuous},
                mean={name: each.mean for name, each in labels.items()},
                spread={name: each.spread for name, each in labels.items()},
            )
        (data / "figures").mkdir()
        figure = data / "figures" / "ids_by_frequency.svg"
        drawing.start(draw_frequencies, written.counts, figure)
        clear_category_cache()  # workers may hold those of an earlier folder of this name
        to = {}
        for name, files in ingest.files.items():
            (data / name).mkdir()
            to |= {data / name / f"part-{i:05d}.parquet": file for i, file in enumerate(files)}
        if gpu:
            parts = rows.write_parts(to, statistics, data, hugectr=settings.hugectr)
        else:
            how = {"hugectr": settings.hugectr, "on_cluster": settings.scheduler is not None}
            parts = write_parts(to, log_format, statistics, ids, **how)
        drawing.finish()
    if settings.hugectr:
        for folder in dict.fromkeys(file.parent for file in parts):
            rows_of_files = {x.name: part.rows for x, part in parts.items() if x.parent == folder}
            write_lists(folder, rows_of_files, log_format)
        of_splits = [part.longest for file, part in parts.items() if file.parent.name in SPLITS]
        longest = {name: max(each[name] for each in of_splits) for name in log_format.multi}
        write_slot_sizes(data, log_format, statistics, longest)
    rows_of = dict.fromkeys(ingest.rows, 0)
    for file, part in parts.items():
        rows_of[file.parent.name] += part.rows
    if rows_of != ingest.rows:
        raise RuntimeError(f"{ingest.rows} rows were read, but {rows_of} written")

    test = [part for file, part in parts.items() if file.parent.name == "test"]
    present, unknown = (
        {name: sum(getattr(part, kind)[name] for part in test) for name in log_format.categorical}
        for kind in ("values", "unknown")
    )
    of_train = {"rows": values.rows, "missing": dict(values.missing)}
    baseline = base.baseline if like else Baseline(**of_train, values=present, unknown=unknown)
    checksums = written.checksums
    checksums |= {file.relative_to(data).as_posix(): part.checksum for file, part in parts.items()}
    settled = _settings_record(settings, split, log_format, base)
    inputs = [settled | {"format_version": FORMAT_VERSION}, ingest.inputs]
    fitted = 0 if like else sum(ingest.rows.get(name, 0) for name in recipe.fitted_splits)
    targets = {name: each.as_dict() for name, each in ingest.targets.items()}
    description = {
        "format_version": FORMAT_VERSION,
        "layout": asdict(log_format),
        "recipe": asdict(recipe),
        "settings": settled,
        "rows": ingest.rows,
        "clicks": ingest.clicks,
        "targets": targets,
        "damaged": quarantine.count,
        "fitted_rows": fitted + (base.fitted_rows if base else 0),
        "statistics": asdict(statistics),
        "baseline": asdict(baseline),
        "fingerprint": hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest(),
        "vocabulary": meaning(log_format, recipe, statistics, written.values),
        "input": ingest.inputs,
        "versions": versions(),
        "checksums": in_order(checksums),
    }
    write_json(data / DATASET, description)
    for name in ingest.rows:
        write_schema(data / name, log_format, statistics)
    prepared = PreparedData.load(data)
    shares = {name: unknown[name] / max(present[name], 1) for name in present} if like else None
    page = summary(prepared, written.counts, name=settings.out.name, unknown=shares)
    (data / "summary.md").write_text(page, encoding="utf-8")

    if like:
        warn_of_changes(values, base)
    else:
        warn_of_sentinels(values.extremes)
    _tell(settings.out, prepared, ingest, remedy=base is None)
    if like:
        print(format_shares(shares))

        def frequent(name: str) -> list[str]:
            if encoder is not None:
                return encoder.frequent_unknown(name)
            return rows.frequent_unknown(
                ingest.files["test"], name, texts[log_format.table_of(name)]
            )

        warn_of_unknown(base, shares, frequent)
    else:
        warn_of_two_texts(written.two_texts)
    return prepared


class _Written(NamedTuple):
    """What is known of the vocabularies that were written: all by table, apart from `values`.

    Attributes:
        counts: how often each value came.
        values: hash of the values in the order of their ids.
        two_texts: two texts of what may be one value; None if there are none, or none is sought.
        checksums: file -> checksum.
    """

    counts: FieldCounts
    values: str
    two_texts: dict[str, tuple[str, str] | None]
    checksums: dict[str, str]


def _write_vocabularies(
    data: Path,
    log_format: LogFormat,
    vocabulary: Callable[[str], Vocabulary],
    encoder: Encoder | None,
    *,
    ids: Path | None,
    compare: bool,
) -> _Written:
    """Write the vocabularies of all tables and, if there is a folder, the ids of their codes.

    With `compare`, it seeks two texts of what may be one value.
    """
    for folder in filter(None, (data / "categories", data / "counts", ids)):
        folder.mkdir()

    def write(name: str) -> tuple[Vocabulary, dict[str, str], tuple[str, str] | None]:
        found = vocabulary(name)
        files = found.write(name, data / "categories")
        checksums = {f"categories/{file}": checksum for file, checksum in files.items()}
        file = f"counts/{name}.parquet"
        checksums[file] = write_parquet(found.counts(), data / file)
        if ids is not None:
            np.save(ids / f"{name}.npy", encoder.ids(name, found.kept["value"]))
        return found, checksums, two_texts(found.kept["value"]) if compare else None

    made, values = _Written({}, "", {}, {}), ValuesHash()
    with Threads(cpu_threads()) as threads:
        every = threads.in_order(write, log_format.tables)
        for name, (found, checksums, pair) in zip(log_format.tables, every):
            values.add(name, found.kept["value"])
            made.counts[name] = found.kept["count"].to_numpy()
            made.two_texts[name] = pair
            made.checksums.update(checksums)
    return made._replace(values=values.hexdigest())


def _tell(out: Path, prepared: PreparedData, ingest: Ingest, *, remedy: bool) -> None:
    """Print what was read and written."""
    for bad in ingest.quarantine.first:
        print(f"damaged: {bad.file}:{bad.line}: {bad.reason}")
    found = origin(out)  # as the user gave it, or the address that it is made for
    parts = " + ".join(f"{count:,} {name}" for name, count in ingest.rows.items())
    print(
        f"{found if is_address(found) else out}: {ingest.total:,} rows in = {parts} + "
        f"{ingest.quarantine.count:,} damaged; {sum(prepared.tables.values()):,} ids"
    )
    for name, count in ingest.cut.items():
        most = prepared.log_format.max_values
        print(f"{name}: left out {count:,} values, those beyond {most} per row")
    blocks = reversed(sorted(ingest.whole_floats.items()))
    whole_floats = reduce(or_, (found for _, found in blocks), {})
    for line in read_as(whole_floats, remedy=remedy):
        print(line)


def _import_early() -> None:
    """Import what the later steps need; on a second core, this takes no time."""
    for name in ("figure", "backends.backend_svg"):
        importlib.import_module(f"matplotlib.{name}")


def _settings_record(
    settings: PrepareSettings, split: Split | None, log_format: LogFormat, base: PreparedData | None
) -> JsonObject:
    """Return the settings that decide the output, for `dataset.json`.

    `fit_on` and options of text are recorded only if they are not the default. The columns of a
    Criteo or Avazu log follow from its kind.
    """
    recipe = asdict(settings.recipe)
    if recipe["fit_on"] == "train":
        del recipe["fit_on"]
    chosen: JsonObject = {} if base is None else {"vocabulary": base.vocabulary}
    if settings.kind == "table":
        for name in ("label", "categorical", "continuous"):
            chosen[name] = getattr(log_format, name)
        chosen |= {"separator": log_format.separator} if log_format.separator_given else {}
        chosen |= {} if log_format.header else {"columns": log_format.file_columns}
        if log_format.multi:
            chosen["multi"] = dict(log_format.multi)
            chosen |= {name: getattr(log_format, name) for name in ("max_values", "keep_values")}
        rare = ("weight", "more_labels", "regression", "text")
        more = {name: getattr(log_format, name) for name in rare}
        chosen |= {name: value for name, value in more.items() if value}
        if log_format.vectors:
            chosen["vectors"] = dict(log_format.vectors)
            chosen["vector_separator"] = log_format.vector_separator
        if log_format.share_embedding:
            chosen["share_embedding"] = dict(log_format.share_embedding)
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


def _check_target(settings: PrepareSettings) -> None:
    """Reject an existing target, because replacing a folder deletes all files in it."""
    out = settings.out
    if not out.exists():
        return
    if not settings.overwrite:
        raise InputError(f"{out}: already exists; use `overwrite` to replace it")
    if not (out / "dataset.json").is_file():
        raise InputError(
            f"{out}: has no dataset.json, so `overwrite` does not delete it; use another `out`"
        )
    if holds(out, RESULTS):  # beside a copy of dataset.json
        raise InputError(
            f"{out}: holds results of experiments, so `overwrite` does not delete it; use another "
            "`out`"
        )
    if other := inside(out):
        raise InputError(
            f"{out}: holds {other[0]} in {other[1]}, which `overwrite` would delete; use another "
            "`out`"
        )
    for file in settings.all_files:
        if isinstance(file, Path) and out.resolve() in file.resolve().parents:
            raise InputError(f"{file}: is inside {out}, which would be replaced; use another `out`")


def _check_base_apart(settings: PrepareSettings) -> None:
    """Refuse to write the folder of `like` or `extend`, a folder in it, or one that holds it."""
    if settings.base is None:
        return
    base, out = (Path(os.path.realpath(path)) for path in (settings.base, settings.out))
    if base == out or base in out.parents or out in base.parents:
        name = "like" if settings.extend is None else "extend"
        raise InputError(
            f"{settings.out}: shares files with `{name}` {settings.base}, which must stay as it "
            "is; use another `out`"
        )
