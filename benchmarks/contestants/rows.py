"""Generate the rows of `peers.py`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cowclip_merlin.bench.random_data import criteo_fields, random_rows
from cowclip_merlin.loading import ColumnArrays
from cowclip_merlin.system.files import atomic_write, write_json
from cowclip_merlin.workflows.raw.log_format import LogFormat


@dataclass(frozen=True, kw_only=True)
class Log:
    """The generated rows.

    Attributes:
        fields: field -> number of rows.
        train: training rows.
        test: held-out rows.
    """

    fields: dict[str, int]
    train: ColumnArrays
    test: ColumnArrays


def generate(*, rows: int, held_out: int, ids: int, seed: int) -> Log:
    """Generate random rows whose clicks depend on ids, pairs of ids and numbers.

    Args:
        rows: number of rows.
        held_out: number of rows held out for the test.
        ids: ids of all fields together.
        seed: seed of all random numbers.
    """
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
    return Log(fields=fields, train=train, test=test)


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
    """Write the rows as `cowclip prepare --hugectr` does, with one file per split.

    HugeCTR's reader needs the labels of the held-out rows as well.
    """
    from cowclip_merlin.workflows.nvtabular_graph import Statistics
    from cowclip_merlin.workflows.prepared.hugectr import write_slot_sizes

    numbers = tuple(f"I{i + 1}" for i in range(log.train.continuous.shape[1]))
    log_format = LogFormat(
        kind="table", label="label", categorical=tuple(log.fields), continuous=numbers
    )
    shutil.rmtree(folder, ignore_errors=True)
    for split, rows in (("train", log.train), ("test", log.test)):
        (folder / split).mkdir(parents=True)
        _write_hugectr_split(rows, log_format, folder / split)
    statistics = Statistics(cardinalities=log.fields, minimum={}, maximum={})
    write_slot_sizes(folder, log_format, statistics, longest={})


def _write_hugectr_split(rows: ColumnArrays, log_format: LogFormat, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {log_format.label: rows.label.astype(np.float32)}
    columns |= zip(log_format.categorical, rows.ids.T.astype(np.int64))
    columns |= zip(log_format.continuous, rows.continuous.T.astype(np.float32))
    index = {name: {"col_name": name, "index": i} for i, name in enumerate(columns)}
    pq.write_table(pa.table(columns), folder / "part-00000.parquet")
    write_json(
        folder / "_metadata.json",
        {
            "file_stats": [{"file_name": "part-00000.parquet", "num_rows": len(rows)}],
            "cats": [index[name] for name in log_format.categorical],
            "conts": [index[name] for name in log_format.continuous],
            "labels": [index[log_format.label]],
        },
    )
    (folder / "_file_list.txt").write_text(
        f"1\n{folder.name}/part-00000.parquet\n", encoding="utf-8"
    )
