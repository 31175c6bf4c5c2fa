"""Probe every N-th step of a training run, and write and read the results, `diagnostics.csv`."""

from __future__ import annotations

import csv
import io
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.records import append_rows, write_rows
from cowclip_merlin.training.run_logs import Hooks, TensorBoard
from cowclip_merlin.types import Array, Integers

if TYPE_CHECKING:
    import pandas as pd

    from cowclip_merlin.contrib.diagnostics.probe import RowNorms
    from cowclip_merlin.loading.row_order import PackedBatch
    from cowclip_merlin.training.trainer import Trainer
    from cowclip_merlin.workflows import PreparedData

FILE = "diagnostics.csv"
MEASURES = (
    "rows",
    "occurrences",
    "clipped_share",
    "mean_clip_factor",
    "w_norm",
    "g_norm",
    "l2_g_norm",
    "g_norm_per_cnt",
)
"""Measures of a group of rows; see `probe.RowNorms`. Norms are means over its distinct rows.

`g_norm_per_cnt` is the mean of `||g|| / cnt`, the paper's Figure 4 (b).
"""

SPEEDS = ("rows_per_second", "embedding_lr", "dense_lr")
COLUMNS = ("step", "epoch", "scope", "group", *MEASURES, "least_count", "most_count", *SPEEDS)
"""Columns of the file: one row for each probe and group of embedding rows.

`step`: number of steps done before the probe; `epoch`: epoch of the batch, counted from 1.
`scope` and `group`: "all" and "all"; "field" and its name; "decile" and 1 (rarest) to 10.
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
_REMEDY = (
    "restore a copy, or delete it: `resume` then continues without the probes of earlier steps"
)

DECILES = 10
DECILE_NAMES = tuple(str(d + 1) for d in range(DECILES))

Record = dict[str, str | float | None]


@dataclass(frozen=True, kw_only=True)
class Deciles:
    """The decile of every embedding row, which is fixed for a run."""

    of_row: npt.NDArray[np.uint8]  # [N], of the rows of all fields; 0 (rarest) to 9
    least: Integers  # smallest count in each decile, [10]; 0 if it has no ids
    most: Integers  # the largest ones


def decile_edges(count: Integers, *, rows: int, batch_size: int) -> Integers:
    """Compute the counts at which the deciles of a batch's distinct rows end, int64 [9].

    An id seen `count` times in `rows` rows is in a batch of `b` with probability
    `1 - (1 - count / rows)^b`. With these weights, the deciles divide the distinct rows that a
    batch is expected to have. Deciles of the vocabulary would consist mostly of absent ids.

    >>> decile_edges(np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), rows=10, batch_size=1000)
    array([1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    values, ids = np.unique(count, return_counts=True)
    share = np.minimum(values / max(rows, 1), 1.0)
    with np.errstate(divide="ignore"):  # log(0) for an id in every row, which is always present
        present = -np.expm1(batch_size * np.log1p(-share))
    up_to = np.cumsum(ids * present)
    wanted = up_to[-1] * np.arange(1, DECILES) / DECILES
    return values[np.minimum(np.searchsorted(up_to, wanted), len(values) - 1)]


def compute_deciles(counts: Sequence[Integers], *, rows: int, batch_size: int) -> Deciles:
    """Compute the decile of every row from the counts of each field's ids, in order of id.

    Ids with equal counts share a decile. If many have the same count, a decile has more than a
    tenth of the rows. The next deciles then have fewer rows or are empty.
    """
    count = np.concatenate(counts)
    ends = decile_edges(count, rows=rows, batch_size=batch_size)
    of_row = np.searchsorted(ends, count, side="left").astype(np.uint8)
    # Ids with count 0 are in the rarest decile, but its smallest and largest count ignore them.
    seen = [count[(of_row == d) & (count > 0)] for d in range(DECILES)]
    return Deciles(
        of_row=of_row,
        least=np.array([each.min(initial=count.max()) if len(each) else 0 for each in seen]),
        most=np.array([each.max(initial=0) for each in seen]),
    )


def _counts(data: PreparedData, field: str) -> Integers:
    from cowclip_merlin.workflows.prepared.counts import read_counts

    file = data.path / "counts" / f"{field}.parquet"
    try:
        count = read_counts(data, field, ["count"])["count"].to_numpy()
    except InputError as error:
        raise InputError(f"{error}, or train with `diagnostics_every` 0") from None
    if len(count) != data.cardinalities[field]:
        raise InputError(
            f"{file}: {len(count)} ids, but the field has {data.cardinalities[field]}; prepare the "
            "data again, or train with `diagnostics_every` 0"
        )
    return count


def group_means(norms: RowNorms, group: npt.NDArray[np.integer], groups: int) -> dict[str, Array]:
    """Compute `MEASURES` of each group of rows, [groups]; means of an empty group are NaN."""
    rows = np.bincount(group, minlength=groups)

    def mean(values: Array) -> npt.NDArray[np.float64]:
        sums = np.bincount(group, weights=values.astype(np.float64), minlength=groups)
        return np.divide(sums, rows, out=np.full(groups, np.nan), where=rows > 0)

    return {
        "rows": rows,
        "occurrences": np.bincount(group, weights=norms.cnt, minlength=groups).astype(np.int64),
        "clipped_share": mean(np.where(np.isnan(norms.factor), np.nan, norms.factor < 1)),
        "mean_clip_factor": mean(norms.factor),
        "w_norm": mean(norms.w_norm),
        "g_norm": mean(norms.g_norm),
        "l2_g_norm": mean(norms.l2_g_norm),
        "g_norm_per_cnt": mean(norms.g_norm / norms.cnt),
    }


def probe_records(norms: RowNorms, deciles: Deciles, *, step: int, epoch: int) -> list[Record]:
    """Make the records of one probe: for all rows, and for each field and decile with rows."""
    tenth = deciles.of_row[norms.row]
    scopes = {
        "all": (("all",), np.zeros_like(norms.row)),
        "field": (norms.fields, norms.field),
        "decile": (DECILE_NAMES, tenth),
    }
    records = []
    for scope, (names, group) in scopes.items():
        found = group_means(norms, group, len(names))
        for index in np.flatnonzero(found["rows"]):
            record = {"step": step, "epoch": epoch, "scope": scope, "group": names[index]}
            record |= {measure: found[measure][index].item() for measure in MEASURES}
            if scope == "decile":
                record["least_count"] = int(deciles.least[index])
                record["most_count"] = int(deciles.most[index])
            records.append(record)
    return records


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


def start_file(folder: Path, *, before: int = 0) -> None:
    """Keep the probes before the step at which a run resumes, which repeats the others; 0: none."""
    path = folder / FILE
    kept = _complete_rows(path, before) if before and path.exists() else []
    write_rows(path, COLUMNS, kept, line_end="\n")


def append_records(folder: Path, records: Iterable[Record]) -> None:
    """Append the records of one probe in one write."""
    cells = [{name: _cell(value) for name, value in r.items()} for r in records]
    append_rows(folder / FILE, COLUMNS, cells, line_end="\n")


def _cell(value: str | float | None) -> str | float | None:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.7g}"
    return value


def _complete_rows(path: Path, before: int) -> list[Record]:
    """Read the rows of steps before `before`, without an incomplete last line."""
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


def read_diagnostics(run: str | Path) -> pd.DataFrame:
    """Read the diagnostics of a run as a pandas table with columns `record.COLUMNS`.

    `table[table.scope == "field"].pivot(index="step", columns="group", values="clipped_share")`
    is the share of clipped rows by step and field. A probe that is still being written is omitted.

    Args:
        run: the run folder.

    Raises:
        InputError: if the run has no diagnostics, or the file is damaged.
    """
    import pandas as pd

    path = Path(run) / FILE
    if not path.exists():
        raise InputError(
            f"{run}: no {FILE}; the run was trained without diagnostics; train with "
            "`diagnostics_every` 100"
        )
    rows = _complete_rows(path, sys.maxsize)
    kinds = {name: float for name in COLUMNS[4:]} | dict.fromkeys(("step", "epoch"), int)
    try:
        known = [{name: value or math.nan for name, value in row.items()} for row in rows]
        table = pd.DataFrame(known, columns=COLUMNS).astype(kinds)
        if table.duplicated(["step", "scope", "group"]).any():
            raise ValueError("a group occurs twice in a probe")
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: damaged ({error!s:.80}); {_REMEDY}") from error
    scopes = table.groupby("step").scope.transform("nunique")
    table = table[scopes == len(_TENSORBOARD_COLUMNS)].reset_index(drop=True)
    if table.empty:
        raise InputError(f"{path}: the file has no probes; train for at least one step")
    return table


class Recorder(Hooks):
    """Probes batches before the model trains on them, and writes the results to the run folder.

    The first probe is before the first step. `rates` returns the learning rates, embedding and
    dense, of the next step; `wait` waits until the device has finished all steps.
    """

    def __init__(
        self,
        probe: Callable[[PackedBatch], RowNorms],
        deciles: Deciles,
        *,
        every: int,
        rates: Callable[[], tuple[float, float]],
        wait: Callable[[], object],
        folder: Path,
    ) -> None:
        super().__init__(every)
        self._probe, self._deciles = probe, deciles
        self._rates, self._wait, self._folder = rates, wait, folder
        self._seconds, self._rows_before = 0.0, -1  # of training since the last probe
        self._since: float | None = None  # when the clock was started

    def open(self, step: int, board: TensorBoard) -> None:
        """Start at this step, and delete earlier results of this and later steps."""
        start_file(self._folder, before=step)
        self._board = board

    def before_step(self, batch: PackedBatch, *, step: int, epoch: int, rows: int) -> None:
        """Probe a batch, if its step is a multiple of `every`."""
        if step % self.every == 0:
            self._wait()
            self.pause()
            records = probe_records(self._probe(batch), self._deciles, step=step, epoch=epoch)
            records[0] |= self._speeds(rows)
            append_records(self._folder, records)
            self._board.write(step, tensorboard_scalars(records))
        if self._since is None:
            self._since = time.perf_counter()

    def pause(self) -> None:
        """Stop the clock until the next step, for a probe, an evaluation or a checkpoint."""
        if self._since is not None:
            self._seconds += time.perf_counter() - self._since
            self._since = None

    def _speeds(self, rows: int) -> dict[str, float]:
        """Return the learning rates, and the rows per second since the last probe, if any."""
        embedding_lr, dense_lr = self._rates()
        found = {"embedding_lr": embedding_lr, "dense_lr": dense_lr}
        seconds, before = self._seconds, self._rows_before
        self._seconds, self._rows_before = 0.0, rows
        return found | ({"rows_per_second": (rows - before) / seconds} if before >= 0 else {})


def make_recorder(trainer: Trainer, data: PreparedData, *, every: int) -> Recorder:
    """Make the recorder of a run whose trainer is ready for its first step.

    Raises:
        InputError: if the folder's counts of ids are missing, or do not match the vocabulary.
    """
    from cowclip_merlin.contrib.diagnostics.probe import make_probe  # it imports TensorFlow

    size = trainer.settings.batch_size
    counts = [_counts(data, field) for field in data.tables]
    probe = make_probe(trainer.model, trainer.optimizer, trainer.data)
    one_step = trainer.steps_per_execution == 1
    return Recorder(
        # If a call takes the rows of several batches, probe the first batch.
        probe if one_step else lambda rows: probe(rows[:size]),
        compute_deciles(counts, rows=data.fitted_rows, batch_size=size),
        every=every,
        rates=lambda: trainer.optimizer.learning_rates,
        wait=trainer.wait,
        folder=trainer.folder,
    )
