"""Prepare a raw log: `prepare` writes a prepared folder in one call.

The way of a row: read and checked, split, encoded and staged (`ingest`); then the vocabularies
are written, and the rows with their ids.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
from cowclip_merlin.system.console import phase
from cowclip_merlin.system.files import clear_leftovers, rename_if_free, work_folder, write_json
from cowclip_merlin.system.machine import versions
from cowclip_merlin.workflows.encoder import Encoder, Part, write_parts
from cowclip_merlin.workflows.ingest import Ingest, Split
from cowclip_merlin.workflows.nvtabular_graph import Recipe, Statistics
from cowclip_merlin.workflows.parallel import Threads, cpu_threads, dask_cluster, use_gpu
from cowclip_merlin.workflows.prepare_settings import OWN_SPLITS, PrepareSettings
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
    check_base_apart,
    check_target,
    in_order,
    meaning,
    recorded,
    write_schema,
)
from cowclip_merlin.workflows.prepared.hugectr import (
    check_of_hugectr,
    write_lists,
    write_slot_sizes,
)
from cowclip_merlin.workflows.prepared.report import draw_frequencies, summary
from cowclip_merlin.workflows.prepared.row_numbers import ROWS, RowNumbers
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import Quarantine
from cowclip_merlin.workflows.raw.readers import check_input_files, with_vector_lengths
from cowclip_merlin.workflows.raw.values.value_text import read_as

if TYPE_CHECKING:
    from cowclip_merlin.workflows.gpu_graph import GpuRows


def prepare(settings: PrepareSettings) -> PreparedData:
    """Read, check, split, fit (on the training rows by default), transform and write a log.

    The folder appears complete or not at all. For an address, it is made in `TMPDIR`.

    Raises:
        InputError: if the input or a setting is wrong; the message names it in one line.
        OSError: if the disk is full or not writable.
    """
    given = {name: tuple(expand(getattr(settings, name))) for name in ("files", *OWN_SPLITS)}
    bases = {name: getattr(settings, name) for name in ("like", "extend")}
    local = {name: local_folder(at, DATASET) for name, at in bases.items() if at is not None}
    found = {name: x for name, x in (given | local).items() if x != getattr(settings, name)}
    settings = replace(settings, **found) if found else settings  # which checks all again
    expand(settings.all_files)  # refuses a file of two splits
    out = settings.out
    if not isinstance(out, Address):
        return _prepare_here(settings)
    remedy = "use `overwrite` to replace it"
    check_free(str(out), DATASET, replace=settings.overwrite, remedy=remedy)
    with uploaded_folder(str(out), DATASET) as folder:
        made = _prepare_here(replace(settings, out=folder))
    return replace(PreparedData.load(out), counts=made.counts)


def _prepare_here(settings: PrepareSettings) -> PreparedData:
    """Check what can be checked before long work; make the folder beside its place; move it."""
    out = settings.out
    try:  # the libraries that write parquet cannot encode other names
        str(out.absolute()).encode("utf-8")
    except UnicodeEncodeError:
        shown = str(out).encode("utf-8", "backslashreplace").decode()
        raise InputError(f"{shown}: the path is not UTF-8; use another name") from None
    target = out.resolve()  # a symbolic link stays; its target is replaced
    check_base_apart(settings)
    clear_leftovers(target)
    check_target(settings)
    base = None if settings.base is None else PreparedData.load(settings.base)
    log_format = settings.log_format() if base is None else settings.log_format_like(base)
    split = settings.make_split() if settings.like is None else None
    gpu = use_gpu(settings.device)
    if gpu:
        from cowclip_merlin.workflows.gpu_graph import check_columns

        check_columns(log_format)
    if settings.hugectr:
        check_of_hugectr(log_format)
    check_input_files(settings.all_files)
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder; create it first")
    log_format = log_format if base else with_vector_lengths(log_format, settings.files)
    with work_folder(target) as work:
        prepared = _Preparation(
            settings=settings,
            base=base,
            log_format=log_format,
            split=split,
            work=work,
            data=work / "data",
            gpu=gpu,
            like=settings.like is not None,
            recipe=settings.recipe if base is None else base.recipe,
        ).run()
        aside = work / "replaced"
        try:
            if settings.overwrite and target.exists():
                target.rename(aside)
            rename_if_free(work / "data", target)
        except BaseException:
            if aside.exists() and not target.exists():
                aside.rename(target)
            raise
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


@dataclass(frozen=True, kw_only=True)
class _Preparation:
    """What one call makes of its settings.

    Attributes:
        settings: of the call.
        base: the folder of `like` or `extend`.
        log_format: columns of the log.
        split: how to split the rows; None with `like`.
        work: folder for what only this call reads.
        data: the folder to make.
        gpu: whether to prepare on a GPU.
        like: whether the ids are those of `base`, and all rows are test rows.
        recipe: how to transform the columns.
    """

    settings: PrepareSettings
    base: PreparedData | None
    log_format: LogFormat
    split: Split | None
    work: Path
    data: Path
    gpu: bool
    like: bool
    recipe: Recipe

    def run(self) -> PreparedData:
        """Read the rows, write the vocabularies, then the rows with their ids; describe them."""
        self.data.mkdir()
        # The id of each code. On a GPU, rows are text; with `like`, codes are ids.
        ids = None if self.gpu or self.like else self.work / "ids"
        tables = self.log_format.tables if self.like else ()
        known = {name: Vocabulary.read(self.base.path / "categories", name) for name in tables}
        texts = {name: each.kept["value"] for name, each in known.items()} if self.like else None
        if self.gpu:
            from cowclip_merlin.workflows.gpu_graph import GpuRows

            rows = GpuRows(self.log_format, self.recipe, texts)
        else:
            rows = Encoder(self.log_format, self.recipe, texts)
        with phase("read"):
            ingest = self._read(None if self.gpu else rows)
        with (
            phase("write"),
            compat.quiet_merlin(),
            dask_cluster(self.settings.scheduler, gpu=self.gpu),
            Threads(1) as drawing,
        ):
            if self.gpu:
                rows.count(ingest.files)
            written = self._write_vocabularies(rows, known, ids)
            statistics = self._statistics(written.counts, rows, ingest)
            (self.data / "figures").mkdir()
            figure = self.data / "figures" / "ids_by_frequency.svg"
            drawing.start(draw_frequencies, written.counts, figure)
            parts = self._write_parts(rows, ingest, statistics, ids)
            drawing.finish()
        found = self._baseline(ingest, parts)
        prepared = self._describe(ingest, written, statistics, parts, found)
        shares = {name: found.unknown[name] / max(x, 1) for name, x in found.values.items()}
        shares = shares if self.like else None
        page = summary(prepared, written.counts, name=self.settings.out.name, unknown=shares)
        (self.data / "summary.md").write_text(page, encoding="utf-8")
        if self.like:
            warn_of_changes(ingest.values, self.base)
            self._tell(prepared, ingest)
            print(format_shares(shares))
            warn_of_unknown(self.base, shares, rows.frequent_unknown)
        else:
            warn_of_sentinels(ingest.values.extremes)
            self._tell(prepared, ingest)
            warn_of_two_texts(written.two_texts)
        return prepared

    def _read(self, encoder: Encoder | None) -> Ingest:
        """Read, check, split, encode and stage all rows."""
        settings = self.settings
        own = {name: getattr(settings, name) for name in OWN_SPLITS if getattr(settings, name)}
        ranges = self.base.statistics if self.like else None
        bad = self.data / "damaged" / "lines.tsv"
        ingest = Ingest(
            self.log_format,
            self.split,
            block_bytes=int(settings.partition_mb * (1 << 20)),
            stage=self.work / "stage",
            numbers=RowNumbers(self.data / ROWS),
            encoder=encoder,
            quarantine=Quarantine(bad, max_bad_fraction=settings.max_bad_fraction),
            splits=tuple(dict.fromkeys((*SPLITS, *own))),
            counted="test" if self.like else "train",
            values=ValueCounts(self.log_format, ranges=ranges, log=self.recipe.log),
        )
        ingest.run(settings.files, own, nullcontext if self.gpu else _import_early)
        return ingest

    def _write_vocabularies(
        self, rows: Encoder | GpuRows, known: Mapping[str, Vocabulary], ids: Path | None
    ) -> _Written:
        """Write the vocabularies of all tables, and the id of each code if there is a folder."""
        data, threshold = self.data, self.recipe.freq_threshold
        for folder in filter(None, (data / "categories", data / "counts", ids)):
            folder.mkdir()

        def write(name: str) -> tuple[Vocabulary, dict[str, str], tuple[str, str] | None]:
            if self.like:
                found = known[name]
            elif self.base is None:
                found = Vocabulary.of(rows.counts(name), threshold)
            else:
                found = Vocabulary.read(self.base.path / "categories", name).extended(
                    rows.counts(name), threshold
                )
            files = found.write(name, data / "categories")
            checksums = {f"categories/{file}": checksum for file, checksum in files.items()}
            file = f"counts/{name}.parquet"
            checksums[file] = write_parquet(found.counts(), data / file)
            if ids is not None:
                rows.ids(name, found.kept["value"]).tofile(ids / f"{name}.int32")
            return found, checksums, None if self.like else two_texts(found.kept["value"])

        made, values = _Written({}, "", {}, {}), ValuesHash()
        with Threads(cpu_threads()) as threads:
            every = threads.in_order(write, self.log_format.tables)
            for name, (found, checksums, pair) in zip(self.log_format.tables, every):
                values.add(name, found.kept["value"])
                made.counts[name] = found.kept["count"].to_numpy()
                made.two_texts[name] = pair
                made.checksums.update(checksums)
        return made._replace(values=values.hexdigest())

    def _statistics(
        self, counts: FieldCounts, rows: Encoder | GpuRows, ingest: Ingest
    ) -> Statistics:
        """Return the sizes of the tables, and the ranges of the numbers."""
        log_format = self.log_format
        sizes = {name: FIRST_VALUE + len(count) for name, count in counts.items()}
        sizes = {name: sizes[log_format.table_of(name)] for name in log_format.categorical}
        if self.base is not None:
            return replace(self.base.statistics, cardinalities=sizes)
        labels = {name: ingest.targets[name] for name in log_format.regression}
        return Statistics(
            cardinalities=sizes,
            minimum={name: rows.ranges[name][0] for name in log_format.continuous},
            maximum={name: rows.ranges[name][1] for name in log_format.continuous},
            mean={name: each.mean for name, each in labels.items()},
            spread={name: each.spread for name, each in labels.items()},
        )

    def _write_parts(
        self, rows: Encoder | GpuRows, ingest: Ingest, statistics: Statistics, ids: Path | None
    ) -> dict[Path, Part]:
        """Write the staged rows with their ids; return what each file has."""
        data, log_format, hugectr = self.data, self.log_format, self.settings.hugectr
        to = {}
        for name, files in ingest.files.items():
            (data / name).mkdir()
            to |= {data / name / f"part-{i:05d}.parquet": file for i, file in enumerate(files)}
        if self.gpu:
            parts = rows.write_parts(to, statistics, data, hugectr=hugectr)
        else:
            how = {"hugectr": hugectr, "on_cluster": self.settings.scheduler is not None}
            parts = write_parts(to, log_format, statistics, ids, **how)
        rows_of = dict.fromkeys(ingest.rows, 0)
        for file, part in parts.items():
            rows_of[file.parent.name] += part.rows
        if rows_of != ingest.rows:
            raise RuntimeError(f"{ingest.rows} rows were read, but {rows_of} written")
        if hugectr:
            for folder in dict.fromkeys(file.parent for file in parts):
                sizes = {x.name: part.rows for x, part in parts.items() if x.parent == folder}
                write_lists(folder, sizes, log_format)
            of_splits = [x.longest for file, x in parts.items() if file.parent.name in SPLITS]
            longest = {name: max(each[name] for each in of_splits) for name in log_format.multi}
            write_slot_sizes(data, log_format, statistics, longest)
        return parts

    def _baseline(self, ingest: Ingest, parts: Mapping[Path, Part]) -> Baseline:
        """Return what the rows are like."""
        test = [part for file, part in parts.items() if file.parent.name == "test"]
        values, unknown = (
            {
                name: sum(getattr(part, kind)[name] for part in test)
                for name in self.log_format.categorical
            }
            for kind in ("values", "unknown")
        )
        of_train = {"rows": ingest.values.rows, "missing": dict(ingest.values.missing)}
        return Baseline(**of_train, values=values, unknown=unknown)

    def _describe(
        self,
        ingest: Ingest,
        written: _Written,
        statistics: Statistics,
        parts: Mapping[Path, Part],
        found: Baseline,
    ) -> PreparedData:
        """Write `dataset.json`, and a schema for each split; return the folder as it says."""
        checksums = written.checksums
        for file, part in parts.items():
            checksums[file.relative_to(self.data).as_posix()] = part.checksum
        checksums |= ingest.numbers.checksums()
        settled = recorded(self.settings, self.log_format, self.split, self.base)
        settled |= {} if ingest.in_order else {"in_order": False}
        inputs = [settled | {"format_version": FORMAT_VERSION}, ingest.inputs]
        splits = () if self.like else self.recipe.fitted_splits
        fitted = sum(ingest.rows.get(name, 0) for name in splits)
        description = {
            "format_version": FORMAT_VERSION,
            "layout": asdict(self.log_format),
            "recipe": asdict(self.recipe),
            "settings": settled,
            "rows": ingest.rows,
            "clicks": ingest.clicks,
            "targets": {name: each.as_dict() for name, each in ingest.targets.items()},
            "damaged": ingest.quarantine.count,
            "fitted_rows": fitted + (self.base.fitted_rows if self.base else 0),
            "statistics": asdict(statistics),
            "baseline": asdict(self.base.baseline if self.like else found),
            "fingerprint": hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest(),
            "vocabulary": meaning(self.log_format, self.recipe, statistics, written.values),
            "input": ingest.inputs,
            "versions": versions(),
            "checksums": in_order(checksums),
        }
        write_json(self.data / DATASET, description)
        write_schema([self.data / name for name in ingest.rows], self.log_format, statistics)
        description = json.loads(json.dumps(description))  # as `PreparedData.load` reads it
        known = ("rows", "clicks", "fingerprint", "vocabulary", "checksums")
        return PreparedData(
            path=self.settings.out,
            log_format=self.log_format,
            recipe=self.recipe,
            statistics=statistics,
            description=description,
            baseline=self.base.baseline if self.like else found,
            counts=written.counts,
            **{name: description[name] for name in known},
        )

    def _tell(self, prepared: PreparedData, ingest: Ingest) -> None:
        """Print what was read and written."""
        out = self.settings.out
        for bad in ingest.quarantine.first:
            print(f"damaged: {bad.file}:{bad.line}: {bad.reason}")
        found = origin(out)  # as the user gave it, or the address that it is made for
        parts = " + ".join(f"{count:,} {name}" for name, count in ingest.rows.items())
        print(
            f"{found if is_address(found) else out}: {ingest.total:,} rows in = {parts} + "
            f"{ingest.quarantine.count:,} damaged; {sum(prepared.tables.values()):,} ids"
        )
        if ingest.since is not None:
            at = datetime.fromtimestamp(ingest.since, timezone.utc).replace(tzinfo=None)
            print(f"test rows: those from {at} on, by {self.log_format.time}")
        for name, count in ingest.cut.items():
            most = prepared.log_format.max_values
            print(f"{name}: left out {count:,} values, those beyond {most} per row")
        blocks = reversed(sorted(ingest.whole_floats.items()))
        whole_floats = reduce(or_, (found for _, found in blocks), {})
        for line in read_as(whole_floats, remedy=self.base is None):
            print(line)


def _import_early() -> None:
    """Import what the later steps need; on a second core, this takes no time."""
    for name in ("figure", "backends.backend_svg"):
        importlib.import_module(f"matplotlib.{name}")
