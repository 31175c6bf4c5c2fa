"""Build NVTabular workflows: categories become ids, numbers are scaled to [0, 1].

Categorify assigns the ids: 0 is padding, 1 is missing, and 2 is out of vocabulary or below the
frequency threshold. Values get ids from 3 on in descending frequency; `prepare` orders ties by
value. `gpu_graph` does the same with cuDF.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin import choices, compat
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.types import Array, ArrowColumn
from cowclip_merlin.workflows.raw.log_format import AVAZU, CRITEO, LogFormat

if TYPE_CHECKING:
    import nvtabular as nvt
    from merlin.dag import BaseOperator
    from merlin.schema import Schema


@dataclass(frozen=True, kw_only=True)
class Recipe(Settings):
    """How columns are transformed.

    Raises:
        InputError: if a value is unknown or out of range.
    """

    freq_threshold: int = option(
        0,
        "ids seen fewer times share one row",
        shown="criteo_x4 10, avazu_x4 2, else 0, each has its own",
        at_least=0,
    )
    log: bool = option(False, "apply log(1 + x) to continuous columns")
    fit_on: str = option(
        "train",
        "rows that ids, counts and ranges are learned from; all: also the test and validation "
        "rows, as in the authors' code",
        choices=tuple(choices.FIT_ON),
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
        mean: label that is a number -> its mean in the training rows.
        spread: label that is a number -> its standard deviation there; 1 if all are equal.
    """

    cardinalities: dict[str, int]
    minimum: dict[str, float]
    maximum: dict[str, float]
    mean: dict[str, float] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)

    @property
    def scales(self) -> dict[str, tuple[float, float]]:
        """Label that is a number -> mean and spread."""
        return {name: (mean, self.spread[name]) for name, mean in self.mean.items()}


def filled(column: ArrowColumn, *, log: bool) -> Array:
    """Return numbers before they are scaled; missing ones are 0.

    >>> import pyarrow as pa
    >>> filled(pa.array([1.5, None]), log=False).tolist()
    [1.5, 0.0]
    """
    x = np.asarray(column, np.float64)
    x = np.where(np.isnan(x), 0.0, x)
    if not log:
        return x
    with np.errstate(over="ignore"):  # beyond float32: infinite
        return np.log(np.maximum(x, 0).astype(np.float32) + 1)


def scaled(x: Array, low: float, high: float) -> Array:
    """Scale the range [low, high] to [0, 1], float32 [n]; 0 stays 0 if the range is empty.

    >>> scaled(np.array([1.0, 3.0]), 1.0, 5.0).tolist(), scaled(np.zeros(1), 0.0, 0.0).tolist()
    ([0.0, 0.5], [0.0])
    """
    spread = high - low
    with np.errstate(invalid="ignore", over="ignore"):
        found = (x - low) / spread if spread > 0 else x / (x * 2)
        found = found.astype(np.float32)
    found[np.isnan(found)] = 0
    return found


def build_workflow(
    log_format: LogFormat, recipe: Recipe, categories: str | Path = "."
) -> nvt.Workflow:
    """Build an unfitted `nvtabular.Workflow` for these columns."""
    nvt, ops = compat.nvtabular(), compat.nvtabular().ops
    from merlin.schema import Tags

    from cowclip_merlin.workflows.categorify import FastCategorify

    outputs = list(log_format.categorical) >> FastCategorify(
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


def raw_schema(log_format: LogFormat) -> Schema:
    """Return the Merlin schema of the columns before they are transformed."""
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
    lists = {"dtype": np.float32, "is_list": True, "is_ragged": False}
    for name, n in log_format.vectors.items():
        lengths = {"value_count": {"min": n, "max": n}}
        columns.append(ColumnSchema(name, properties=lengths, **lists))
    kind = np.float32 if log_format.float_labels else np.int8
    return Schema([*columns, *(ColumnSchema(name, dtype=kind) for name in log_format.labels)])


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
