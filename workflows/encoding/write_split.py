"""Write the rows of a split with ids and scaled numbers, from the files with codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from cowclip_merlin.types import ArrowColumn
from cowclip_merlin.workflows.nvtabular_graph import Statistics
from cowclip_merlin.workflows.parallel import Threads, cpu_threads
from cowclip_merlin.workflows.prepared.hugectr import output_types, write_lists
from cowclip_merlin.workflows.raw.file_formats import read_staged
from cowclip_merlin.workflows.raw.log_format import LogFormat

_ROW_GROUP_BYTES = 128_000_000  # as Merlin writes


def write_split(
    files: Sequence[Path],
    out: Path,
    log_format: LogFormat,
    statistics: Statistics,
    *,
    ids: Path | None,
    hugectr: bool,
    on_cluster: bool,
) -> None:
    """Write staged files to `out/part-*.parquet`, with rows in the order of the input.

    Args:
        files: staged files with codes.
        out: existing folder.
        log_format: the columns.
        statistics: the ranges of the numbers.
        ids: folder with the id of each code of a vocabulary; None: codes are ids.
        hugectr: labels are float32 and ids int64, and `_metadata.json` and `_file_list.txt` are
            written, too. The list names files relative to the parent folder of `out`.
        on_cluster: compute with Dask's configured scheduler, else on threads.
    """
    names = [f"part-{index:05d}.parquet" for index in range(len(files))]
    tasks = [
        (str(file), str(out / name), log_format, statistics, ids, hugectr)
        for file, name in zip(files, names, strict=True)
    ]
    if on_cluster:
        import dask

        rows = dask.compute(*(dask.delayed(write_part)(*task) for task in tasks))
    else:
        with Threads(cpu_threads()) as threads:
            rows = list(threads.in_order(lambda task: write_part(*task), tasks))
    if hugectr:
        write_lists(out, names, rows, log_format)


def write_part(
    file: str,
    out: str,
    log_format: LogFormat,
    statistics: Statistics,
    ids: Path | None,
    hugectr: bool,
) -> int:
    """Write the rows of one staged file, and return how many there are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    staged = read_staged(Path(file))
    columns = {
        each.name: each.written(staged[each.name], ids, statistics)
        for each in sorted(log_format.roles, key=lambda each: each.place)
    }
    if hugectr:
        columns = _of_types(columns, log_format)
    rows = pa.table(columns)
    about = pa.Table.from_pandas(rows.slice(0, 1).to_pandas(), preserve_index=False).schema.metadata
    rows = rows.replace_schema_metadata(about)  # as Merlin writes, for pandas
    size = math.ceil(_ROW_GROUP_BYTES * rows.num_rows / rows.nbytes)
    pq.write_table(rows, out, compression="none", row_group_size=size)
    return rows.num_rows


def _of_types(columns: dict[str, ArrowColumn], log_format: LogFormat) -> dict[str, ArrowColumn]:
    """Convert labels and ids to the types that HugeCTR reads."""
    import pyarrow as pa

    kinds = {name: pa.type_for_alias(kind) for name, kind in output_types(log_format).items()}
    kinds |= dict.fromkeys(log_format.multi, pa.list_(pa.int64()))
    return {name: x.cast(kinds[name]) if name in kinds else x for name, x in columns.items()}
