"""Write and read `diagnostics.csv`: one row for each probe and group of embedding rows."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin.contrib.diagnostics.row_norms import (
    DECILES,
    MEASURES,
    Deciles,
    RowNorms,
    group_means,
)
from cowclip_merlin.errors import InputError
from cowclip_merlin.system.records import append_rows, write_rows
from cowclip_merlin.types import Array

if TYPE_CHECKING:
    import pandas as pd

FILE = "diagnostics.csv"
SPEEDS = ("rows_per_second", "embedding_lr", "dense_lr")
COLUMNS = (
    "step",
    "epoch",
    "scope",
    "group",
    *MEASURES,
    "least_count",
    "most_count",
    *SPEEDS,
)
"""Columns of the file.

`step`: number of steps done before the probe; `epoch`: epoch of the batch, counted from 1.
`scope` and `group`: "all" and "all"; "field" and its name; "decile" and 1 (rarest) to 10.
`MEASURES`: see `row_norms.RowNorms`; norms are means over the group's distinct rows.
`least_count`, `most_count`: smallest and largest count of the decile's ids in the training rows;
only with scope "decile".
`rows_per_second`: since the last probe, empty at the first one; `embedding_lr`, `dense_lr`: of
the next step; only with scope "all".
`clipped_share` and `mean_clip_factor` are empty with the clip "clippy", which does not act on
gradients; `metrics.csv` has its `clipped_share`.
"""

SCALARS: Mapping[str, str] = {
    "clipped_share": "clip/share",
    "mean_clip_factor": "clip/factor",
    "w_norm": "norm/w",
    "g_norm": "norm/g",
    "g_norm_per_cnt": "norm/g_per_cnt",
    "rows_per_second": "speed/rows_per_second",
    "embedding_lr": "learning_rate/embedding",
    "dense_lr": "learning_rate/dense",
}
"""Column -> name in TensorBoard; a group appends its name, such as "/C3" or "/decile_1"."""

_TENSORBOARD_COLUMNS = {
    "all": tuple(SCALARS),
    "field": ("clipped_share", "mean_clip_factor"),
    "decile": ("w_norm", "g_norm", "g_norm_per_cnt"),
}

DECILE_NAMES = tuple(str(d + 1) for d in range(DECILES))

Record = dict[str, str | float | None]


def probe_records(norms: RowNorms, deciles: Deciles, *, step: int, epoch: int) -> list[Record]:
    """Make the records of one probe: for all rows, and for each field and decile with rows.

    Args:
        norms: norms of the batch's rows.
        deciles: deciles of the data set.
        step: number of steps done.
        epoch: the epoch, counted from 1.
    """
    head = {"step": step, "epoch": epoch}
    everything = _group_records(norms, "all", ("all",), np.zeros_like(norms.row))
    fields = _group_records(norms, "field", norms.fields, norms.field)
    tenths = _group_records(norms, "decile", DECILE_NAMES, deciles.of_row[norms.row])
    for record in tenths:
        index = DECILE_NAMES.index(record["group"])
        record["least_count"] = int(deciles.least[index])
        record["most_count"] = int(deciles.most[index])
    return [head | record for record in (*everything, *fields, *tenths)]


def _group_records(norms: RowNorms, scope: str, names: Sequence[str], group: Array) -> list[Record]:
    found = group_means(norms, group, len(names))
    return [
        {"scope": scope, "group": name} | {m: found[m][index].item() for m in MEASURES}
        for index, name in enumerate(names)
        if found["rows"][index]
    ]


def tensorboard_scalars(records: Iterable[Record]) -> dict[str, float]:
    """Return the scalars of one probe for TensorBoard, by name.

    >>> tensorboard_scalars([{"scope": "field", "group": "C3", "clipped_share": 0.5}])
    {'clip/share/C3': 0.5}
    """
    found = {}
    for record in records:
        scope = record["scope"]
        tail = {"all": "", "field": f"/{record['group']}", "decile": f"/decile_{record['group']}"}
        for column in _TENSORBOARD_COLUMNS[scope]:
            if not math.isnan(record.get(column, math.nan)):
                found[SCALARS[column] + tail[scope]] = float(record[column])
    return found


class DiagnosticsWriter:
    """Appends probes to the file of a run folder.

    Args:
        folder: the run folder.
        before: step at which a run resumes: keep the probes of earlier steps, and delete the
            others, which the run repeats; 0 starts a new file.
    """

    def __init__(self, folder: Path, *, before: int = 0) -> None:
        self._path = folder / FILE
        kept = _complete_rows(self._path, before) if before and self._path.exists() else []
        write_rows(self._path, COLUMNS, kept, line_end="\n")

    def append(self, records: Iterable[Record]) -> None:
        """Append the records of one probe in one write."""
        cells = [{name: _cell(value) for name, value in r.items()} for r in records]
        append_rows(self._path, COLUMNS, cells, line_end="\n")


def _cell(value: str | float | None) -> str | float | None:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.7g}"
    return value


def _complete_rows(path: Path, before: int) -> list[Record]:
    """Read the rows of steps before `before`, without an incomplete last line.

    Raises:
        InputError: if the file is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
        whole = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
        if tuple(whole.fieldnames or ()) != COLUMNS:
            raise ValueError("not the columns of this version")
        rows = [row for row in whole if int(row["step"]) < before]
        if any(None in row or None in row.values() for row in rows):
            raise ValueError("a line with more or fewer cells")
    except (csv.Error, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error!s:.80}); {_REMEDY}") from error
    return rows


_REMEDY = (
    "restore a copy, or delete it: `resume` then continues without the probes of earlier steps"
)


def read_diagnostics(run: str | Path) -> pd.DataFrame:
    """Read the diagnostics of a run as a pandas table with columns `diagnostics_csv.COLUMNS`.

    `table[table.scope == "field"].pivot(index="step", columns="group", values="clipped_share")`
    is the share of clipped rows by step and field. A probe that is still being written is omitted.

    Args:
        run: the run folder.

    Raises:
        InputError: if the run has no diagnostics, or the file is damaged.
    """
    path = Path(run) / FILE
    if not path.exists():
        raise InputError(
            f"{run}: no {FILE}; the run was trained without diagnostics; train with "
            "`diagnostics_every` 100"
        )
    rows = _complete_rows(path, sys.maxsize)
    try:
        table = _whole_probes(rows)
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: damaged ({error!s:.80}); {_REMEDY}") from error
    if table.empty:
        raise InputError(f"{path}: the file has no probes; train for at least one step")
    return table


def _whole_probes(rows: Iterable[Record]) -> pd.DataFrame:
    """Convert rows to a pandas table; omit probes that lack one of the three scopes.

    Raises:
        ValueError: if a cell is not a number, or a probe has a group twice.
    """
    import pandas as pd

    kinds = {name: float for name in COLUMNS[4:]} | dict.fromkeys(("step", "epoch"), int)
    known = [{name: value or math.nan for name, value in row.items()} for row in rows]
    table = pd.DataFrame(known, columns=COLUMNS).astype(kinds)
    if table.duplicated(["step", "scope", "group"]).any():
        raise ValueError("a group occurs twice in a probe")
    scopes = table.groupby("step").scope.transform("nunique")
    return table[scopes == len(_TENSORBOARD_COLUMNS)].reset_index(drop=True)
