"""Generate the rows of `peers.py`, and write rows for the other packages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cowclip_merlin.bench.random_data import criteo_fields, random_rows
from cowclip_merlin.loading import ColumnArrays
from cowclip_merlin.system.files import atomic_write
from cowclip_merlin.workflows.raw.log_format import LogFormat


class Log(NamedTuple):
    """Rows of a log, and field -> number of ids."""

    fields: dict[str, int]
    train: ColumnArrays
    test: ColumnArrays


def generate(*, rows: int, held_out: int, ids: int, seed: int) -> Log:
    """Generate random rows whose clicks depend on ids, pairs of ids and numbers."""
    fields = criteo_fields(ids)
    drawn = random_rows(rows, fields, seed=seed)
    rng = np.random.default_rng([seed, 1])
    logit, latent = np.zeros(rows), np.zeros((rows, 2))
    for column, n in zip(drawn.ids.T, fields.values()):
        logit += rng.normal(0, 0.4, n)[column]
        latent += rng.normal(0, 0.2, (n, 2))[column]
    logit += 0.5 * np.square(latent).sum(axis=1)
    logit += (drawn.continuous - 0.5) @ rng.normal(0, 0.5, drawn.continuous.shape[1])
    logit -= logit.mean() + 1.5  # about a quarter are clicks, as in Criteo's log
    label = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    cut = rows - held_out
    train = ColumnArrays(drawn.ids[:cut], drawn.continuous[:cut], label[:cut])
    test = ColumnArrays(drawn.ids[cut:], drawn.continuous[cut:], label[cut:])
    return Log(fields, train, test)


def write_rows(log: Log, file: Path) -> None:
    """Write the rows for a peer: training rows, and held-out rows without their labels."""
    with atomic_write(file) as temporary, temporary.open("wb") as whole:
        np.savez(
            whole,
            field_rows=np.array(list(log.fields.values())),
            ids=log.train.ids,
            continuous=log.train.continuous,
            label=log.train.label,
            test_ids=log.test.ids,
            test_continuous=log.test.continuous,
        )


def write_hugectr_folder(log: Log, folder: Path) -> None:
    """Write the rows as `cowclip prepare --hugectr`; its reader needs labels of all rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from cowclip_merlin.workflows.nvtabular_graph import Statistics
    from cowclip_merlin.workflows.prepared.hugectr import write_lists, write_slot_sizes

    numbers = tuple(f"I{i + 1}" for i in range(log.train.continuous.shape[1]))
    log_format = LogFormat(
        kind="table", label="label", categorical=tuple(log.fields), continuous=numbers
    )
    shutil.rmtree(folder, ignore_errors=True)
    for split, rows in (("train", log.train), ("test", log.test)):
        (folder / split).mkdir(parents=True)
        columns = dict(zip(log_format.categorical, rows.ids.T.astype(np.int64)))
        columns |= zip(log_format.continuous, rows.continuous.T.astype(np.float32))
        columns[log_format.label] = rows.label.astype(np.float32)
        pq.write_table(pa.table(columns), folder / split / "part-00000.parquet")
        write_lists(folder / split, {"part-00000.parquet": len(rows)}, log_format)
    statistics = Statistics(cardinalities=log.fields, minimum={}, maximum={})
    write_slot_sizes(folder, log_format, statistics, longest={})
