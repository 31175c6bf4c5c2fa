"""A trained model as a Triton repository, and raw rows whose probabilities are known."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin.synthetic.criteo_log import generate
from cowclip_merlin.training import RunSettings, evaluate_run, train
from cowclip_merlin.triton import RepositorySettings, export_repository
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare, value_to_id
from cowclip_merlin.workflows.raw.log_format import CRITEO

MODEL = RepositorySettings()
_DAMAGED = 0.1  # share of cells that are emptied, and of categories that become unknown


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A model repository, and what it must answer.

    Attributes:
        repository: the folder; neither the run nor the data exist any more.
        rows: raw rows: column -> text, "" for a missing value.
        expected: probability of each row by `cowclip evaluate`.
        ids: number of ids of the model.
        missing: cells without a value.
        unknown: categorical cells with a value that has no id.
    """

    repository: Path
    rows: list[dict[str, str]]
    expected: list[float]
    ids: int
    missing: int
    unknown: int


def export(folder: Path, *, rows: int, checked: int, seed: int) -> Exported:
    """Train DeepFM on a generated log, export it, move the repository, and delete the rest.

    Args:
        folder: an empty folder.
        rows: rows of the log.
        checked: raw rows to score.
        seed: of the log, the rows and the model.
    """
    data, run, new = folder / "DATA", folder / "RUN", folder / "NEW"
    log, new_log = folder / "log.txt", folder / "new.txt"
    generate(log, rows=rows, seed=seed)
    prepared = prepare(PrepareSettings(files=(log,), out=data))
    batch = min(4096, max(1, rows // 2))
    train(data, RunSettings(model="deepfm", batch_size=batch, epochs=1, seed=seed), out=run)
    raw = write_rows(new_log, checked, seed + 1)
    prepare(PrepareSettings(files=(new_log,), out=new, like=data))
    evaluate_run(run, new, predictions=folder / "expected.parquet")
    missing, unknown = _count(raw, prepared)
    export_repository(run, data, out=folder / "REPO", settings=MODEL)
    ids = sum(prepared.tables.values())
    for each in (data, run, new):
        shutil.rmtree(each)
    (folder / "moved").mkdir()
    repository = (folder / "REPO").rename(folder / "moved" / "models")
    return Exported(
        repository=repository,
        rows=raw,
        expected=_probabilities(folder / "expected.parquet"),
        ids=ids,
        missing=missing,
        unknown=unknown,
    )


def write_rows(file: Path, rows: int, seed: int) -> list[dict[str, str]]:
    """Write a log in Criteo's format with many missing and unknown values; return its rows."""
    generate(file, rows=rows, seed=seed)
    lines = file.read_text(encoding="utf-8").splitlines()
    draw = random.Random(seed)
    raw = [dict(zip(CRITEO.file_columns, line.split("\t"), strict=True)) for line in lines]
    for row in raw:
        for name in (*CRITEO.continuous, *CRITEO.categorical):
            chance = draw.random()
            if chance < _DAMAGED:
                row[name] = ""
            elif chance < 2 * _DAMAGED and name in CRITEO.categorical:
                row[name] = f"unknown Ü{draw.randrange(9)}"
    raw[0] |= dict.fromkeys((*CRITEO.continuous, *CRITEO.categorical), "")
    text = "".join("\t".join(row.values()) + "\n" for row in raw)
    file.write_text(text, encoding="utf-8")
    return raw


def _count(rows: list[dict[str, str]], data: PreparedData) -> tuple[int, int]:
    columns = (*data.continuous, *data.categorical)
    known = {name: value_to_id(data, name) for name in data.categorical}
    missing = sum(not row[name] for row in rows for name in columns)
    unknown = sum(bool(row[n]) and row[n] not in ids for row in rows for n, ids in known.items())
    return missing, unknown


def _probabilities(file: Path) -> list[float]:
    import pyarrow.parquet as pq

    return pq.read_table(file)["probability"].to_pylist()
