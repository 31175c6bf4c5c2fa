"""What `prepare` refuses or finds out before it reads the rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cowclip_merlin.addresses import FilePath
from cowclip_merlin.errors import InputError
from cowclip_merlin.system.folders import RESULTS, holds, inside
from cowclip_merlin.workflows.prepare_settings import PrepareSettings
from cowclip_merlin.workflows.prepared.folder import PreparedData
from cowclip_merlin.workflows.raw.file_formats import JSON_LINES, PARQUET, format_of
from cowclip_merlin.workflows.raw.json_rows import first_values
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parquet_rows import check_columns, open_parquet
from cowclip_merlin.workflows.raw.text_rows import read_text_rows
from cowclip_merlin.workflows.raw.values.multi_values import vector_length


def check_name(out: Path) -> None:
    """Refuse a name that the libraries which write parquet cannot encode."""
    try:
        str(out.absolute()).encode("utf-8")
    except UnicodeEncodeError:
        shown = str(out).encode("utf-8", "backslashreplace").decode()
        raise InputError(f"{shown}: the path is not UTF-8; use another name") from None


def check_target(settings: PrepareSettings) -> None:
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


def check_base_apart(settings: PrepareSettings) -> None:
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


def log_format_like(base: PreparedData, settings: PrepareSettings) -> LogFormat:
    """Return the columns of `base`; check that kinds match and vocabularies are complete."""
    log_format = base.log_format
    if settings.kind != log_format.kind:
        raise InputError(
            f"{settings.base}: is a {log_format.kind} log, not a {settings.kind} log; use its kind"
        )
    names = ("regression", "categorical", "continuous", "max_values", "weight", "text")
    known = {"labels": log_format.labels} | {name: getattr(log_format, name) for name in names}
    known |= {"multi": tuple(log_format.multi), "vector": tuple(log_format.vectors)}
    known |= {"shared": dict(log_format.share_embedding)}
    for name, value in known.items():
        given = getattr(settings, name)
        if given and given != value:
            name = {"shared": "share_embedding", "labels": "label"}.get(name, name)
            raise InputError(f"`{name}`: {settings.base} has other columns; omit `{name}`")
    for name in log_format.tables:
        for file in (f"unique.{name}.parquet", f"meta.{name}.parquet"):
            if not (base.path / "categories" / file).is_file():
                raise InputError(
                    f"{base.path}/categories/{file}: no such file; prepare {base.path} again"
                )
    base.verify_categories()
    return settings.with_text_options(log_format.of_file(settings.files[0]))


def refuse_unsupported(settings: PrepareSettings, log_format: LogFormat, *, gpu: bool) -> None:
    """Refuse columns that a GPU does not prepare, or that HugeCTR does not read."""
    if gpu and log_format.multi:
        raise InputError(
            f"column {min(log_format.multi)!r} has several values per row, which a GPU does not "
            "prepare; use `device` cpu"
        )
    if gpu and log_format.vectors:
        raise InputError(
            f"column {min(log_format.vectors)!r} has vectors, which a GPU does not prepare; use "
            "`device` cpu"
        )
    if settings.hugectr and log_format.vectors:
        raise InputError(
            f"`hugectr` writes no vectors, but column {min(log_format.vectors)!r} has some; omit it"
        )
    if gpu and log_format.float_labels:
        raise InputError(
            f"labels {', '.join(log_format.labels)}: a GPU prepares one label of 0 and 1; use "
            "`device` cpu"
        )
    if settings.hugectr and log_format.float_labels:
        raise InputError(
            f"`hugectr` writes one label of 0 and 1, not {', '.join(log_format.labels)}; omit it"
        )
    if settings.hugectr and log_format.weight:
        raise InputError(
            f"`hugectr` writes no weights, but column {log_format.weight!r} has some; omit it"
        )
    if settings.hugectr and log_format.share_embedding:
        raise InputError(
            "`hugectr` needs a table for each column, but "
            f"{min(log_format.share_embedding)!r} shares that of another one; omit it"
        )


_ROWS = 1000
_BLOCK_BYTES = 1 << 22


def with_vector_lengths(log_format: LogFormat, files: Sequence[FilePath]) -> LogFormat:
    """Return the columns of a log with the length of each vector, that of the first row.

    Args:
        log_format: columns of the log; the lengths of its vectors are not known.
        files: of the log; only the first is read.

    Raises:
        InputError: if the first rows of a column have no vector, or the file is damaged or has
            other columns.
    """
    if not log_format.vectors:
        return log_format
    rows, separator = _first_rows(files[0], log_format), log_format.vector_separator
    lengths = {}
    for name, values in rows.items():
        found = (vector_length(value, separator) for value in values)
        lengths[name] = next((length for length in found if length), 0)
        if not lengths[name]:
            raise InputError(
                f"{files[0]}: column {name!r} has no vector in its first {len(values)} rows; give "
                f"lists of numbers, or text with {separator!r} between numbers "
                "(`vector_separator`)"
            )
    return replace(log_format, vectors=lengths)


def _first_rows(file: FilePath, log_format: LogFormat) -> dict[str, list[object]]:
    """Return the values of the first rows of all columns of vectors."""
    names = list(log_format.vectors)
    if format_of(file) == JSON_LINES:
        return first_values(file, names, _ROWS)
    if format_of(file) == PARQUET:
        parquet = open_parquet(file)
        check_columns(parquet.schema_arrow.names, names, file)
        batch = next(parquet.iter_batches(batch_size=_ROWS, columns=names), None)
        return {name: [] for name in names} if batch is None else batch.to_pydict()
    others = {"continuous": (), "multi": {}, "vectors": {}}
    as_text = replace(log_format.of_file(file).without_label(), categorical=tuple(names), **others)
    parsed = next(read_text_rows(file, as_text, _BLOCK_BYTES), None)
    return {name: [] for name in names} if parsed is None else parsed.table[:_ROWS].to_pydict()
