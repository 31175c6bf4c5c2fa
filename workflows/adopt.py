"""Adopt the output of an NVTabular workflow: its schema says what `prepare` must be told.

With the folder of the workflow, ids become raw values again: `Categorify` leaves the value of each
id in parquet files there. The pickle beside them is not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from cowclip_merlin import compat
from cowclip_merlin.addresses import Address, FilePath, natural_order
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option, option_of, parse_names
from cowclip_merlin.system.console import note, progress
from cowclip_merlin.types import ArrowColumn
from cowclip_merlin.workflows.prepare import prepare
from cowclip_merlin.workflows.prepare_settings import PrepareSettings
from cowclip_merlin.workflows.prepared.counts import FIRST_VALUE, OUT_OF_VOCABULARY
from cowclip_merlin.workflows.prepared.folder import PreparedData, check_target
from cowclip_merlin.workflows.raw.readers import batches_of, open_parquet
from cowclip_merlin.workflows.raw.values.value_text import text_of_values

if TYPE_CHECKING:
    import pyarrow as pa
    from merlin.schema import ColumnSchema, Schema

SCHEMAS = {".merlin/schema.json": "from_json_file", "schema.pbtxt": "from_proto_text_file"}
"""File that NVTabular writes beside its rows -> the method of Merlin that reads it."""
_ROWS = 1 << 16  # to copy at a time
_LABELS = {"target", "binary", "binary_classification", "regression"}


@dataclass(frozen=True, kw_only=True)
class AdoptSettings(Settings):
    """Which output to adopt."""

    train: FilePath = option(
        help="folder that NVTabular's `to_parquet` wrote: the training rows",
        flag="train",
        metavar="TRAIN",
    )
    valid: FilePath = option(
        help="the same for other rows: the test rows, or with --test those that train holds out",
        flag="valid",
        metavar="VALID",
    )
    out: FilePath = option_of(PrepareSettings, "out")
    test: FilePath | None = option(
        None, "the same for the test rows", metavar="TEST", shown="VALID has them"
    )
    label: tuple[str, ...] = option(
        (),
        "label columns, as a,b",
        metavar="COLS",
        convert=parse_names,
        shown="those that the schema tags as targets",
    )
    workflow: FilePath | None = option(
        None,
        "folder of `Workflow.save`: ids become raw values again, which score and serve then take",
        metavar="WORKFLOW",
        shown="ids are the values",
    )
    overwrite: bool = option_of(PrepareSettings, "overwrite")


def adopt(settings: AdoptSettings) -> PreparedData:
    """Make a prepared folder of NVTabular output, and print what each column becomes.

    Its ids are values here: they get ids of this package in the order of their frequency, so each
    keeps a row of its own. Numbers are scaled to [0, 1]. Rows to score must have gone through the
    same workflow; with `workflow`, only their numbers must, and ids are raw values.

    Raises:
        InputError: if a folder is no such output, its schema lacks a target or ids, a row is
            damaged, or `workflow` lacks the raw value of an id.
    """
    splits = {"files": files_of(settings.train), "test": files_of(settings.valid)}
    if settings.test is not None:
        splits |= {"validation": splits["test"], "test": files_of(settings.test)}
    schema = read_schema(settings.train)  # which imports Merlin
    columns = columns_of(schema, settings.label, settings.train)
    how = {"kind": "table", "out": settings.out, "overwrite": settings.overwrite}
    given = PrepareSettings(**splits, **columns, **how)
    for name, names in columns.items():
        note(f"{name}: {', '.join(names)}")
    used = {*given.labels, *given.categorical, *given.continuous, *given.vector}
    for file in given.all_files:
        _refuse_without_values(file, used)
    for name in [each.name for each in schema if each.name not in used]:
        note(f"left out: {name}, {_why_unused(schema[name])}")
    if settings.workflow is None:
        return prepare(given)
    check_target(given)  # before long work
    known = values_of([schema[name] for name in given.categorical], settings.workflow)
    if numbers := (*given.continuous, *given.vector):
        note(f"not raw: {', '.join(numbers)}; give such numbers as the workflow returns them")
    texts = [name for name in known if known[name].are_text and name not in given.shared]
    with TemporaryDirectory(prefix="cowclip-") as folder:
        copies = {
            file: Path(folder, split, file.name)
            for split in ("files", "validation", "test")
            for file in getattr(given, split)
        }
        seen = {name: np.zeros(len(each.texts), np.int64) for name, each in known.items()}
        for file, copy in progress(len(copies), iterable=copies.items(), desc="ids", unit="file"):
            counted = seen if file in given.files else None
            _copy_with_values(file, copy, sorted(used), known, counted)
        _check_counts(known, seen, settings)
        splits = {name: tuple(map(copies.get, files)) for name, files in splits.items()}
        try:
            return prepare(replace(given, text=tuple(texts), **splits))
        except InputError as error:
            names = {str(copy): str(file) for file, copy in copies.items()}
            found = next((copy for copy in names if copy in str(error)), "")
            raise InputError(str(error).replace(found, names.get(found, ""))) from error


def files_of(folder: FilePath) -> tuple[Path, ...]:
    """Return the parquet files of a folder in their order."""
    if isinstance(folder, Address):
        raise InputError(f"{folder}: adopt reads folders of this machine; copy it first")
    if not folder.is_dir():
        what = "is a file; give its folder" if folder.exists() else "no such folder"
        raise InputError(f"{folder}: {what}, which NVTabular's to_parquet wrote")
    found = sorted(folder.glob("*.parquet"), key=lambda file: natural_order(file.name))
    if not found:
        raise InputError(f"{folder}: has no *.parquet; give the folder that to_parquet wrote")
    return tuple(found)


def _refuse_without_values(file: FilePath, columns: Set[str]) -> None:
    """Refuse what NVTabular writes for lists of a DataFrame whose index does not start at 0."""
    import pyarrow as pa

    for each in open_parquet(file).schema_arrow:
        if each.name in columns and pa.types.is_null(each.type):
            raise InputError(
                f"{file}: column {each.name!r} has no value in any row. NVTabular writes lists so "
                "if the index of the DataFrame does not start at 0: transform it after "
                "`reset_index(drop=True)`"
            )


def read_schema(folder: FilePath) -> Schema:
    """Read the schema that NVTabular wrote beside its rows."""
    files_of(folder)
    compat.merlin_schema()
    from merlin.schema.io.tensorflow_metadata import TensorflowMetadata

    for file, method in SCHEMAS.items():
        if (folder / file).is_file():
            try:
                read = getattr(TensorflowMetadata, method)
                return read(str((folder / file).parent), Path(file).name).to_merlin_schema()
            except Exception as error:  # of betterproto, of JSON, of Merlin
                raise InputError(
                    f"{folder / file}: is no schema of Merlin ({error}); write the output again"
                ) from error
    raise InputError(
        f"{folder}: has neither {' nor '.join(SCHEMAS)}; write it with NVTabular's to_parquet, or "
        "name the columns with cowclip prepare table"
    )


def columns_of(
    schema: Schema, labels: tuple[str, ...], folder: FilePath
) -> Mapping[str, tuple[str, ...]]:
    """Return the settings of `prepare` that name columns, as the schema's tags say.

    Args:
        schema: of the output.
        labels: the label columns; none for those that the schema tags.
        folder: for errors.
    """
    tags = {each.name: {tag.value for tag in each.tags} for each in schema}
    if unknown := [name for name in labels if name not in tags]:
        raise InputError(f"{folder}: has no column {unknown[0]!r}; it has {', '.join(tags)}")
    labels = labels or tuple(name for name, known in tags.items() if known & _LABELS)
    if not labels:
        raise InputError(
            f"{folder}: the schema tags no column as a target; name it with `label`, or tag it "
            "with AddMetadata(tags=[Tags.TARGET])"
        )
    # A target that is none of the labels tells the outcome, whatever else its tags say.
    known = {name for name, given in tags.items() if given & _LABELS}
    inputs = [each for each in schema if each.name not in {*labels, *known}]
    ids = [each for each in inputs if "categorical" in tags[each.name]]
    numbers = [each for each in inputs if "continuous" in tags[each.name]]
    if not ids:
        raise InputError(f"{folder}: the schema has no column of Categorify; a model needs ids")
    found = {
        "label": labels,
        "regression": tuple(name for name in labels if "regression" in tags[name]),
        "categorical": tuple(each.name for each in ids),
        "multi": tuple(each.name for each in ids if each.is_list),
        "share_embedding": _shared(ids),
        "continuous": tuple(each.name for each in numbers if not each.is_list),
        "vector": tuple(each.name for each in numbers if each.is_list),
    }
    return {name: names for name, names in found.items() if names}


def _why_unused(column: ColumnSchema) -> str:
    """Return why no setting of `prepare` names a column: `label` may name other targets."""
    is_target = {tag.value for tag in column.tags} & _LABELS
    return "a target, but none of the labels" if is_target else "no tag says what it is"


def _shared(ids: list[ColumnSchema]) -> tuple[str, ...]:
    """Return COL=COL for columns that `Categorify` encoded together: their domain has one name."""
    first: dict[str, str] = {}
    pairs = []
    for each in ids:
        domain = (each.properties.get("domain") or {}).get("name") or each.name
        if first.setdefault(domain, each.name) != each.name:
            pairs.append(f"{each.name}={first[domain]}")
    return tuple(pairs)


class ColumnValues(NamedTuple):
    """The raw values of the ids of a column.

    Attributes:
        texts: text of each id from 0 on: null for a missing value, `OUT_OF_VOCABULARY` for id 2.
        are_text: whether the raw values are text.
        counts: how often the workflow counted each id when it was fitted; 0 below 3, int64 [n].
    """

    texts: pa.StringArray
    are_text: bool
    counts: npt.NDArray[np.int64]


def values_of(columns: list[ColumnSchema], workflow: FilePath) -> dict[str, ColumnValues]:
    """Return the raw values of the columns that Categorify has encoded, by their names.

    Args:
        columns: the id columns of the output.
        workflow: folder that `Workflow.save` wrote.

    Raises:
        InputError: if ids of a column have several raw values, or not those of NVTabular 23.8.
    """
    remedy = "give the folder that Workflow.save wrote"
    if isinstance(workflow, Address) or not (workflow / "categories").is_dir():
        raise InputError(f"{workflow}: has no categories/; {remedy} on this machine")
    found = {}
    for each in columns:
        about = each.properties
        if not (path := about.get("cat_path")):
            if "domain" not in about:  # no operator has changed it
                continue
            what = "has no vocabulary, which only Categorify has"
        elif (about.get("num_buckets") or 1) > 1:
            what = f"has {about['num_buckets']:.0f} buckets, each for many raw values"
        else:
            found[each.name] = _read_values(workflow / "categories" / Path(path).name, each.name)
            continue
        remedy = "leave it out of the output, or omit `workflow`"
        raise InputError(f"{workflow}: column {each.name!r} {what}; {remedy}")
    return found


def _read_values(file: FilePath, column: str) -> ColumnValues:
    """Read one vocabulary; its index for pandas says which ids it has."""
    import pyarrow as pa
    import pyarrow.types as types

    name = file.stem.removeprefix("unique.")
    try:
        table = open_parquet(file).read()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{file}: damaged parquet ({reason}); save the workflow again") from error
    if not {name, f"{name}_size"} <= {*table.column_names}:
        raise InputError(
            f"{file}: ids of {column!r} stand for several columns; encode them one by one or "
            "jointly, or omit `workflow`"
        )
    index = next(iter((table.schema.pandas_metadata or {}).get("index_columns", ())), None)
    first = index.get("start") if isinstance(index, dict) else None
    if first != FIRST_VALUE:
        raise InputError(
            f"{file}: ids of {column!r} start at {first}, and not at {FIRST_VALUE} as those of "
            "NVTabular 23.8 without single_table; fit such a workflow, or omit `workflow`"
        )
    kind = table.schema.field(name).type
    texts = text_of_values(table[name].combine_chunks(), where=f"{file}: column {name!r}")
    special = pa.array([None, None, OUT_OF_VOCABULARY], pa.string())
    return ColumnValues(
        texts=pa.concat_arrays([special, texts.cast(pa.string())]),
        are_text=types.is_string(kind) or types.is_large_string(kind),
        counts=np.append(np.zeros(FIRST_VALUE, np.int64), table[f"{name}_size"].to_numpy()),
    )


def _copy_with_values(
    file: Path,
    copy: Path,
    columns: list[str],
    known: Mapping[str, ColumnValues],
    seen: Mapping[str, npt.NDArray[np.int64]] | None,
) -> None:
    """Copy some columns of a file with raw values instead of ids; add to how often each id came."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    copy.parent.mkdir(exist_ok=True)
    parquet, writer = open_parquet(file), None
    fields = pa.schema([parquet.schema_arrow.field(name) for name in columns])
    none = pa.RecordBatch.from_pylist([], fields)  # of a file without rows
    for batch in chain([none], batches_of(parquet, file, _ROWS, columns)):
        table = pa.Table.from_batches([batch]).select(columns)
        for name, values in known.items():
            try:
                ids, decoded = _decoded(batch.column(name), values.texts)
            except IndexError as error:
                raise InputError(
                    f"{file}: column {name!r} has id {error}, which WORKFLOW lacks; give the "
                    "folder of the workflow that wrote it"
                ) from None
            if seen is not None:
                seen[name][:] += np.bincount(ids, minlength=len(values.texts))
            table = table.set_column(table.schema.get_field_index(name), name, decoded)
        writer = writer or pq.ParquetWriter(copy, table.schema)
        writer.write_table(table)
    writer.close()


def _decoded(column: pa.Array, texts: pa.StringArray) -> tuple[npt.NDArray[np.int64], ArrowColumn]:
    """Return all ids of a column, and its rows with their texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = pa.types.is_nested(column.type)
    ids = np.asarray(pc.fill_null(column.flatten() if lists else column, 0)).astype(np.int64)
    outside = (ids < 0) | (ids >= len(texts))
    if outside.any():
        raise IndexError(ids[outside][0])
    found = texts.take(pa.array(ids))
    if not lists:
        return ids, found
    sizes = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
    return ids, pa.ListArray.from_arrays(pa.array(offsets), found)


def _check_counts(
    known: Mapping[str, ColumnValues],
    seen: Mapping[str, npt.NDArray[np.int64]],
    settings: AdoptSettings,
) -> None:
    """Refuse values that the workflow had counted less often than TRAIN has their ids."""
    for name, each in known.items():
        more = seen[name] > each.counts
        more[:FIRST_VALUE] = False
        if more.any():
            place = int(more.argmax())
            raise InputError(
                f"{settings.workflow}: column {name!r}: {settings.train} has id {place} in "
                f"{seen[name][place]:,} places, but its value {each.texts[place].as_py()!r} came "
                f"{each.counts[place]:,} times when the workflow was fitted; give the folder of "
                "the workflow that was fitted to TRAIN and wrote it, or omit `workflow`"
            )
