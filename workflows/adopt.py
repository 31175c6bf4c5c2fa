"""Adopt the output of an NVTabular workflow: its schema says what `prepare` must be told."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin import compat
from cowclip_merlin.addresses import Address, FilePath, natural_order
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option, option_of, parse_names
from cowclip_merlin.system.console import note
from cowclip_merlin.workflows.prepare import prepare
from cowclip_merlin.workflows.prepare_settings import PrepareSettings
from cowclip_merlin.workflows.prepared.folder import PreparedData
from cowclip_merlin.workflows.raw.readers import open_parquet

if TYPE_CHECKING:
    from merlin.schema import ColumnSchema, Schema

SCHEMAS = {".merlin/schema.json": "from_json_file", "schema.pbtxt": "from_proto_text_file"}
"""File that NVTabular writes beside its rows -> the method of Merlin that reads it."""
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
    overwrite: bool = option_of(PrepareSettings, "overwrite")


def adopt(settings: AdoptSettings) -> PreparedData:
    """Make a prepared folder of NVTabular output, and print what each column becomes.

    Its ids are values here: they get ids of this package in the order of their frequency, so each
    keeps a row of its own. Numbers are scaled to [0, 1]. Rows to score must have gone through the
    same workflow.

    Raises:
        InputError: if a folder is no such output, its schema lacks a target or ids, or a row is
            damaged.
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
    return prepare(given)


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
