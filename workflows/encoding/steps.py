"""What `prepare` does with the rows that `Ingest` staged: on a CPU, and on GPUs with cuDF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cowclip_merlin.workflows.nvtabular_graph import Recipe, Statistics
from cowclip_merlin.workflows.prepared.counts import cardinalities
from cowclip_merlin.workflows.raw.ingest import IngestResult
from cowclip_merlin.workflows.raw.log_format import LogFormat

if TYPE_CHECKING:
    from cowclip_merlin.workflows.encoding.encoder import Encoder


@dataclass(frozen=True, kw_only=True)
class Staged:
    """The rows, and the folder to prepare.

    Attributes:
        ingested: the staged files.
        log_format: their columns.
        recipe: how to transform them.
        data: folder to prepare.
    """

    ingested: IngestResult
    log_format: LogFormat
    recipe: Recipe
    data: Path


class Steps(Protocol):
    """The steps after `Ingest`."""

    def fit(self, threshold: int) -> Statistics:
        """Write the vocabularies of the recipe's rows, and return their statistics.

        Args:
            threshold: values seen less often get no id.
        """

    def write_splits(self, statistics: Statistics, *, hugectr: bool) -> None:
        """Write the rows of both splits with the ids of `categories/`."""

    def frequent_unknown(self, column: str) -> Sequence[str]:
        """Return some frequent values of a column that are out of vocabulary."""


@dataclass(frozen=True, kw_only=True)
class CpuSteps:
    """The steps on a CPU.

    Attributes:
        rows: the rows.
        encoder: what encoded them.
        stage: folder for the ids of the codes.
        on_cluster: write with Dask's configured scheduler, else on threads.
    """

    rows: Staged
    encoder: Encoder
    stage: Path
    on_cluster: bool

    def fit(self, threshold: int) -> Statistics:
        """Write the vocabularies and return the statistics."""
        categories = self.rows.data / "categories"
        categories.mkdir()
        self.encoder.write_vocabularies(categories, threshold)
        ranges, numbers = self.encoder.ranges, self.rows.log_format.continuous
        return Statistics(
            cardinalities=cardinalities(categories, self.rows.log_format),
            minimum={name: ranges[name][0] for name in numbers},
            maximum={name: ranges[name][1] for name in numbers},
        )

    def write_splits(self, statistics: Statistics, *, hugectr: bool) -> None:
        """Write the rows of both splits."""
        from cowclip_merlin.workflows.encoding.write_split import write_split

        ids = None
        if self.encoder.learns:
            ids = self.stage / "ids"
            ids.mkdir()
            self.encoder.save_ids(self.rows.data / "categories", ids)
        for name, files in self.rows.ingested.files.items():
            if files:
                write_split(
                    files,
                    self.rows.data / name,
                    self.rows.log_format,
                    statistics,
                    ids=ids,
                    hugectr=hugectr,
                    on_cluster=self.on_cluster,
                )

    def frequent_unknown(self, column: str) -> Sequence[str]:
        """Return the most frequent unknown values of one block."""
        return self.encoder.frequent_unknown(column)


@dataclass(frozen=True, kw_only=True)
class GpuSteps:
    """The steps on GPUs.

    Attributes:
        rows: the rows.
    """

    rows: Staged

    def fit(self, threshold: int) -> Statistics:
        """Write the vocabularies and return the statistics."""
        from cowclip_merlin.workflows import gpu_graph
        from cowclip_merlin.workflows.nvtabular_graph import read_statistics

        rows, recipe = self.rows, replace(self.rows.recipe, freq_threshold=threshold)
        staged = rows.ingested.files
        files = [file for split in recipe.fitted_splits for file in staged.get(split, ())]
        workflow = gpu_graph.fit(files, rows.log_format, recipe, rows.data)
        return read_statistics(workflow, rows.log_format)

    def write_splits(self, statistics: Statistics, *, hugectr: bool) -> None:
        """Write the rows of both splits."""
        from cowclip_merlin.workflows import gpu_graph
        from cowclip_merlin.workflows.nvtabular_graph import load_workflow

        log_format, recipe, data = self.rows.log_format, self.rows.recipe, self.rows.data
        workflow = load_workflow(log_format, recipe, statistics, data)
        for name, files in self.rows.ingested.files.items():
            if files:
                out = data / name
                gpu_graph.write_split(
                    workflow, statistics, files, out, log_format, recipe, hugectr=hugectr
                )

    def frequent_unknown(self, column: str) -> Sequence[str]:
        """Return the most frequent unknown values of one staged file."""
        from cowclip_merlin.workflows.gpu_graph import frequent_unknown

        table = self.rows.log_format.table_of(column)
        vocabulary = self.rows.data / "categories" / f"unique.{table}.parquet"
        return frequent_unknown(self.rows.ingested.files["test"], column, vocabulary)
