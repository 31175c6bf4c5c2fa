"""Build NVTabular workflows: categories become ids, numbers are scaled to [0, 1].

Categorify assigns the ids: 0 is padding, 1 is missing, and 2 is out of vocabulary or below the
frequency threshold. Values get ids from 3 on in descending frequency; `prepare` orders ties by
value. `gpu_graph` does the same with cuDF.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cowclip_merlin import choices, compat
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows.raw.file_formats import read_staged, staged_schema
from cowclip_merlin.workflows.raw.log_format import AVAZU, CRITEO, LogFormat

if TYPE_CHECKING:
    import nvtabular as nvt
    import pandas as pd
    from merlin.dag import BaseOperator
    from merlin.io import Dataset
    from merlin.schema import ColumnSchema, Schema, Tags


@dataclass(frozen=True, kw_only=True)
class Recipe(Settings):
    """How columns are transformed.

    Raises:
        InputError: if a value is unknown or out of range.
    """

    freq_threshold: int = option(
        0,
        "ids seen fewer times share one row",
        shown="0, each has its own",
        at_least=0,
    )
    log: bool = option(False, "apply log(1 + x) to continuous columns")
    fit_on: str = option(
        "train",
        "rows that ids, counts and ranges are learned from; all: also the test rows, as in the "
        "authors' code",
        choices=tuple(choices.FIT_ON),
        added=True,
    )

    @property
    def fitted_splits(self) -> tuple[str, ...]:
        """Return the splits to fit on."""
        return choices.FIT_ON[self.fit_on]


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Statistics of a fitted workflow, apart from the vocabularies.

    Attributes:
        cardinalities: field -> rows of its embedding table (largest id + 1).
        minimum: continuous column -> smallest value, after the logarithm if `log` is set.
        maximum: continuous column -> largest value, likewise.
    """

    cardinalities: dict[str, int]
    minimum: dict[str, float]
    maximum: dict[str, float]


def build_workflow(
    log_format: LogFormat, recipe: Recipe, categories: str | Path = ".", *, coded: bool = False
) -> nvt.Workflow:
    """Build an unfitted `nvtabular.Workflow` for these columns.

    Args:
        log_format: the columns.
        recipe: how to transform them.
        categories: folder in which fitting writes `categories/`.
        coded: whether categories are fitted as pandas categoricals instead of text.
    """
    nvt, ops = compat.nvtabular(), compat.nvtabular().ops
    from merlin.schema import Tags

    from cowclip_merlin.workflows.categorify import FastCategorify

    outputs = list(log_format.categorical) >> FastCategorify(
        coded=coded,
        multi=log_format.multi,
        share=log_format.share_embedding,
        freq_threshold=recipe.freq_threshold,
        out_path=str(categories),
        dtype="int32",
    )
    if log_format.continuous:
        numbers = list(log_format.continuous) >> ops.FillMissing(0)
        if recipe.log:
            # LogOp of a value below -1 is NaN; Criteo's I2 goes down to -3.
            numbers = numbers >> ops.Clip(min_value=0) >> ops.LogOp()
        # Scaling turns a column of zeros into 0 / 0 = NaN.
        numbers = numbers >> ops.NormalizeMinMax(out_dtype="float32") >> ops.FillMissing(0)
        outputs = outputs + (numbers >> ops.AddMetadata(tags=[Tags.CONTINUOUS]))
    for name, regression in log_format.targets:
        kind = Tags.REGRESSION if regression else Tags.BINARY_CLASSIFICATION
        outputs = outputs + ([name] >> ops.AddMetadata(tags=[Tags.TARGET, kind]))
    if log_format.weight:  # without a tag, so that models do not take it for a number
        outputs += [log_format.weight]
    if log_format.vectors:  # as they are
        outputs += list(log_format.vectors) >> ops.AddMetadata(tags=[Tags.CONTINUOUS])
    return nvt.Workflow(outputs)


def criteo(
    *, freq_threshold: int = 0, log: bool = False, out_path: str | Path = "."
) -> nvt.Workflow:
    """Build an unfitted workflow for Criteo Kaggle's columns: label, I1..I13, C1..C26.

    Args:
        freq_threshold: values seen less often become out of vocabulary.
        log: apply log(1 + x) before the scaling.
        out_path: folder in which fitting writes `categories/`.
    """
    return build_workflow(CRITEO, Recipe(freq_threshold=freq_threshold, log=log), out_path)


def avazu(*, freq_threshold: int = 0, out_path: str | Path = ".") -> nvt.Workflow:
    """Build an unfitted workflow for Avazu's columns: click and 22 categories with `hour`.

    Args:
        freq_threshold: values seen less often become out of vocabulary.
        out_path: folder in which fitting writes `categories/`.
    """
    return build_workflow(AVAZU, Recipe(freq_threshold=freq_threshold), out_path)


def table(
    *,
    label: str,
    categorical: Sequence[str],
    continuous: Sequence[str] = (),
    multi: Mapping[str, str] | None = None,
    freq_threshold: int = 0,
    log: bool = False,
    out_path: str | Path = ".",
) -> nvt.Workflow:
    """Build an unfitted workflow for the columns of any click log.

    Args:
        label: name of the 0/1 column.
        categorical: names of the categorical columns.
        continuous: names of the numeric columns.
        multi: categorical columns with several values per row -> what separates them in text.
        freq_threshold: values seen less often become out of vocabulary.
        log: apply log(1 + x) before the scaling.
        out_path: folder in which fitting writes `categories/`.
    """
    log_format = LogFormat(
        kind="table",
        label=label,
        categorical=tuple(categorical),
        continuous=tuple(continuous),
        multi=dict(multi or {}),
    )
    return build_workflow(log_format, Recipe(freq_threshold=freq_threshold, log=log), out_path)


def operators(workflow: nvt.Workflow) -> dict[str, BaseOperator]:
    """Return the operators of a workflow by class name."""
    found, nodes = {}, [workflow.output_node]
    while nodes:
        node = nodes.pop()
        found[type(node.op).__name__] = node.op
        nodes += node.parents_with_dependencies
    return found


def read_statistics(workflow: nvt.Workflow, log_format: LogFormat) -> Statistics:
    """Return the statistics of a fitted workflow."""
    schema = workflow.output_schema
    scaling = operators(workflow).get("NormalizeMinMax")
    return Statistics(
        cardinalities={c: int(schema[c].int_domain.max) + 1 for c in log_format.categorical},
        minimum={c: float(scaling.mins[c]) for c in log_format.continuous},
        maximum={c: float(scaling.maxs[c]) for c in log_format.continuous},
    )


def open_dataset(files: Sequence[Path], log_format: LogFormat) -> Dataset:
    """Open staged files as a Merlin dataset of pandas frames: one partition per file, in order.

    The operators that are fitted share one read of a partition, and Merlin does not read a file to
    find its columns.
    """
    from dask import dataframe, delayed
    from merlin.io import Dataset

    parts = [delayed(_read_staged)(file) for file in files]
    meta = staged_schema(files[0]).empty_table().to_pandas()
    rows = dataframe.from_delayed(parts, meta=meta, verify_meta=False)
    return Dataset(rows, cpu=True, schema=raw_schema(log_format))


def _read_staged(file: Path) -> pd.DataFrame:
    """Read a staged file as a pandas frame; text with a dictionary becomes categoricals."""
    return read_staged(file).to_pandas()


def raw_schema(log_format: LogFormat) -> Schema:
    """Return the Merlin schema of the columns before they are transformed."""
    import numpy as np
    from merlin.schema import ColumnSchema, Schema

    text = np.dtype("O")
    columns = [
        ColumnSchema(c, dtype=text, is_list=True, is_ragged=True)
        if c in log_format.multi
        else ColumnSchema(c, dtype=text)
        for c in log_format.categorical
    ]
    columns += [ColumnSchema(c, dtype=np.float64) for c in log_format.continuous]
    if log_format.weight:
        columns.append(ColumnSchema(log_format.weight, dtype=np.float32))
    columns += [vector_schema(name, n) for name, n in log_format.vectors.items()]
    kind = np.float32 if log_format.float_labels else np.int8
    return Schema([*columns, *(ColumnSchema(name, dtype=kind) for name in log_format.labels)])


def vector_schema(name: str, length: int, tags: Sequence[Tags] = ()) -> ColumnSchema:
    """Return the schema of a column of vectors: lists of float32 numbers, all of one length."""
    import numpy as np
    from merlin.schema import ColumnSchema

    count = {"value_count": {"min": length, "max": length}}
    lists = {"is_list": True, "is_ragged": False}
    return ColumnSchema(name, dtype=np.float32, tags=list(tags), properties=count, **lists)


def write_split(
    workflow: nvt.Workflow,
    files: Sequence[Path],
    out: Path,
    log_format: LogFormat,
    *,
    hugectr: bool,
) -> None:
    """Transform staged files into `out/part-*.parquet`, with rows in the order of the input.

    With `hugectr`, labels are float32 and ids int64, and `_metadata.json` and `_file_list.txt`
    are kept. The list names files relative to the parent folder of `out`.
    """
    rows = workflow.transform(open_dataset(files, log_format))
    (_lists_as_int64(rows, log_format.multi) if hugectr and log_format.multi else rows).to_parquet(
        str(out),
        dtypes=output_types(log_format) if hugectr else None,
        cats=list(log_format.categorical),
        conts=list(log_format.continuous),
        labels=list(log_format.labels),
    )
    _rename_parts(out, hugectr=hugectr)


def output_types(log_format: LogFormat) -> dict[str, str]:
    """Return the types that HugeCTR reads: float32 labels and int64 ids, apart from lists."""
    one_each = [name for name in log_format.categorical if name not in log_format.multi]
    return {log_format.label: "float32", **dict.fromkeys(one_each, "int64")}


def _lists_as_int64(rows: Dataset, names: Iterable[str]) -> Dataset:
    """Return a Merlin dataset whose lists have int64; its own conversion knows only numbers."""
    from merlin.io import Dataset

    frames = rows.to_ddf()
    converted = frames.map_partitions(_with_int64, list(names), meta=frames._meta)
    return Dataset(converted, cpu=True, schema=rows.schema)


def _with_int64(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    lists = {name: [ids.astype("int64") for ids in frame[name]] for name in names}
    return frame.assign(**lists)


def _rename_parts(out: Path, *, hugectr: bool) -> None:
    """Give the files names that sort in order; remove files with paths of the work folder."""
    described = json.loads((out / "_metadata.json").read_text(encoding="utf-8"))
    for index, entry in enumerate(described["file_stats"]):
        new = f"part-{index:05d}.parquet"
        (out / entry["file_name"]).rename(out / new)
        entry["file_name"] = new
    for name in ("_metadata", "_metadata.json", "_file_list.txt", "schema.pbtxt"):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / ".merlin", ignore_errors=True)
    if hugectr:
        write_hugectr_lists(out, described)


def write_hugectr_lists(out: Path, described: Mapping[str, list[JsonObject]]) -> None:
    """Write `_metadata.json` and `_file_list.txt`.

    HugeCTR opens the names unchanged and reads `_metadata.json` from the first one's folder.
    """
    names = [f"{out.name}/{entry['file_name']}" for entry in described["file_stats"]]
    (out / "_metadata.json").write_text(json.dumps(described), encoding="utf-8")
    (out / "_file_list.txt").write_text(
        "\n".join([str(len(names)), *names]) + "\n", encoding="utf-8"
    )


def load_workflow(
    log_format: LogFormat, recipe: Recipe, statistics: Statistics, folder: Path
) -> nvt.Workflow:
    """Rebuild a fitted workflow from statistics and `folder/categories/`, without pickle."""
    workflow = build_workflow(log_format, recipe, folder)
    for kind, op in operators(workflow).items():
        if kind == "FastCategorify":
            op.categories = {
                table: str(folder / "categories" / f"unique.{table}.parquet")
                for table in log_format.tables
            }
        elif kind == "NormalizeMinMax":
            op.mins, op.maxs = dict(statistics.minimum), dict(statistics.maximum)
    workflow.fit_schema(raw_schema(log_format))
    return workflow
