"""Which columns a model needs: the AUC that it loses when the values of one are shuffled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin.addresses import path_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import ColumnArrays, open_columns
from cowclip_merlin.loading.column_arrays import vector_places
from cowclip_merlin.metrics import roc_auc
from cowclip_merlin.system.console import progress
from cowclip_merlin.training.evaluation import check_both_labels
from cowclip_merlin.training.scoring.scorer import Scorer
from cowclip_merlin.types import Array
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.raw.frames import Frame, is_frame
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.readers import check_input_files
from cowclip_merlin.workflows.read_log import LogReader, RawRows, paths_of

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 50_000
"""Rows that are scored at most, chosen at random: of these the AUC is known to 0.005 or better."""


@dataclass(frozen=True, kw_only=True)
class LabeledRows:
    """Rows to score again and again.

    Attributes:
        columns: their ids and numbers, without weights.
        labels: 0 or 1, [n].
        weights: [n]; None: all rows weigh the same.
        target: which prediction of the model belongs to the labels.
    """

    columns: ColumnArrays
    labels: Array
    weights: Array | None
    target: int


def importance(
    run: str | Path | Scorer,
    rows: Frame | str | Path | Sequence[str | Path] | None = None,
    *,
    seed: int = 0,
    repeats: int = 1,
    max_rows: int = MAX_ROWS,
    data: str | Path | None = None,
    device: str = "auto",
) -> pd.DataFrame:
    """Measure the AUC that a run loses when the values of one column are shuffled.

    A column of lists or of vectors moves as a whole, and a date with its hour and weekday. The
    model is not trained again, so of two columns that tell the same each may lose little. Several
    targets: the first label of 0 and 1.

    Args:
        run: the run folder, or its `Scorer`.
        rows: raw values with their labels as for `cc.score`, or a prepared folder, whose test rows
            it takes; None: the test rows of the folder that the run was trained on.
        seed: of the shuffles, and of the choice of rows.
        repeats: shuffles of each column; the result is their mean.
        max_rows: score at most so many rows, chosen at random.
        data: the folder that the run was trained on; None: where it was then.
        device: "auto", "cpu" or "gpu".

    Returns:
        One row for each column, the largest loss first: `column`, `auc_lost`, and `std`, the
        standard deviation of the loss over the repeats, NaN of one. Its `attrs` have "auc", that of
        the rows as they are, and "rows", their number.

    Raises:
        InputError: if an input is wrong, or the rows do not have both labels.
    """
    import pandas as pd

    for name, value in (("repeats", repeats), ("max_rows", max_rows)):
        if value < 1:
            raise InputError(f"`{name}` is {value}; it must be at least 1")
    if rows is not None and not hasattr(rows, "columns") and not _is_folder(rows):
        check_input_files(paths_of(rows))  # before the run is loaded
    if not isinstance(run, Scorer):
        folder = data if data is not None or not _is_folder(rows) else rows
        run = Scorer(run, folder, device=device)
    scorer, some = run, np.random.default_rng(seed)
    given = _labeled_rows(scorer, rows, max_rows, some)
    before = _auc(scorer, given, given.columns)
    layout = scorer.data.log_format
    groups = _columns_by_source(layout)
    lost = {name: np.empty(repeats) for name in groups}
    bar = progress(repeats * len(lost), desc="shuffle", unit="column")
    for k in range(repeats):
        order = np.random.default_rng((seed, k)).permutation(len(given.labels))
        for name, values in lost.items():
            values[k] = before - _auc(
                scorer, given, _shuffled(scorer, given.columns, groups[name], order)
            )
            bar.update()
    bar.close()
    table = {
        "column": [*lost],
        "auc_lost": [values.mean() for values in lost.values()],
        "std": [values.std(ddof=1) if repeats > 1 else np.nan for values in lost.values()],
    }
    found = pd.DataFrame(table).sort_values("auc_lost", ascending=False, kind="stable")
    found = found.reset_index(drop=True)
    found.attrs = {"auc": before, "rows": len(given.labels)}
    return found


def _auc(scorer: Scorer, given: LabeledRows, columns: ColumnArrays) -> float:
    predicted = scorer.predict(columns)[:, given.target]
    return roc_auc(given.labels, predicted, sample_weight=given.weights)


def _shuffled(
    scorer: Scorer, columns: ColumnArrays, names: Sequence[str], order: npt.NDArray[np.int64]
) -> ColumnArrays:
    """Return the rows with the values of some columns in another order."""
    data, moved = scorer.data, columns.take(order)
    others = [
        (moved if each in names else columns).column(j) for j, each in enumerate(data.categorical)
    ]
    found = _with_columns(scorer, others, columns.continuous.copy())
    places_of = _places(data.log_format)
    for places in (places_of[name] for name in names if name in places_of):
        found.continuous[:, places] = columns.continuous[order, places]
    return found


def _columns_by_source(layout: LogFormat) -> dict[str, tuple[str, ...]]:
    """Return the columns of the log, and which columns of a model are made of each.

    >>> time = {"time": "at", "categorical": ("user", "at_hour", "at_weekday")}
    >>> _columns_by_source(LogFormat(kind="table", label="y", **time))
    {'user': ('user',), 'at': ('at_hour', 'at_weekday')}
    """
    source = {made: each.name for each in layout.sources for made in each.made_values}
    found: dict[str, tuple[str, ...]] = {}
    for name in (*layout.categorical, *layout.widths):
        of = source.get(name, name)
        found[of] = (*found.get(of, ()), name)
    return found


def _with_columns(
    scorer: Scorer, ids: Sequence[tuple[Array, Array]], numbers: Array
) -> ColumnArrays:
    """Return rows of these ids, each column's with their lengths, and numbers."""
    multi = scorer.data.log_format.multi
    names = scorer.data.categorical
    found = scorer.empty_columns(len(numbers))
    found = found.with_ids([x if n in multi else x[0] for n, x in zip(names, ids)])
    found.continuous[:] = numbers
    found.label[:] = 0
    return found


def _places(log_format: LogFormat) -> dict[str, slice]:
    """Return which numbers of a row are those of a column."""
    numbers = {name: slice(j, j + 1) for j, name in enumerate(log_format.continuous)}
    return numbers | vector_places(log_format)


def _is_folder(rows: object) -> bool:
    return isinstance(rows, str | Path) and path_of(rows).is_dir()


def _like(prepared: PreparedData, data: PreparedData) -> PreparedData:
    """Return a folder whose ids and labels are those of another one.

    Raises:
        InputError: if they are not.
    """
    if (prepared.vocabulary, prepared.targets) != (data.vocabulary, data.targets):
        raise InputError(
            f"{prepared.path}: its ids, scaled numbers or labels have other meanings than in "
            f"{data.path}; prepare it with `like` {data.path}"
        )
    return prepared


def _labeled_rows(
    scorer: Scorer,
    rows: Frame | str | Path | Sequence[str | Path] | None,
    most: int,
    rng: np.random.Generator,
) -> LabeledRows:
    """Return at most `most` rows whose first label of 0 and 1 is known.

    Raises:
        InputError: if there is no such label, or the rows do not have both.
    """
    data = scorer.data
    target = next((t for t, each in enumerate(data.targets) if not each.regression), None)
    if target is None:
        raise InputError(f"{data.path}: has no label of 0 and 1, whose AUC columns could change")
    if rows is None or _is_folder(rows):
        prepared = data if rows is None else _like(PreparedData.load(rows), data)
        columns, labels, weights = _of_folder(scorer, prepared, target, most, rng)
        where = prepared.path
    else:
        columns, labels, weights = _of_log(scorer, rows, target, most, rng)
        where = Path("the frame" if is_frame(rows) else paths_of(rows)[0])
    weighed = labels if weights is None else labels[weights > 0]
    check_both_labels(where, "scored", weighed, remedy="give more rows")
    return LabeledRows(columns=columns, labels=labels, weights=weights, target=target)


Found = tuple[ColumnArrays, Array, "Array | None"]
"""Columns, labels and weights of some rows."""


def _of_folder(
    scorer: Scorer, prepared: PreparedData, target: int, most: int, rng: np.random.Generator
) -> Found:
    if not prepared.rows["test"]:
        raise InputError(f"{prepared.path}: no rows in the test split; give raw rows with labels")
    every = open_columns(prepared, "test")
    numbers = np.flatnonzero(~np.isnan(every.labels[:, target]))
    if len(numbers) > most:
        numbers = np.sort(rng.choice(numbers, most, replace=False))
    some = every.take(numbers)
    ids = [some.column(j) for j in range(len(prepared.categorical))]
    return (
        _with_columns(scorer, ids, every.continuous[numbers]),
        some.labels[:, target],
        some.weights,
    )


def _of_log(
    scorer: Scorer,
    rows: Frame | str | Path | Sequence[str | Path],
    target: int,
    most: int,
    rng: np.random.Generator,
) -> Found:
    layout = scorer.data.log_format
    reader = LogReader(layout)
    pieces = reader.frame(rows) if is_frame(rows) else reader.files(paths_of(rows))
    kept = _sample(pieces, layout.labels[target], most, rng)
    weights = np.asarray(kept.table[layout.weight]) if layout.weight else None
    labels = np.asarray(kept.table[layout.labels[target]])
    return scorer.columns(kept), labels, weights


def _sample(pieces: Iterable[RawRows], label: str, most: int, rng: np.random.Generator) -> RawRows:
    """Return at most `most` of the rows that have a label, at random, without more memory."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: list[pa.Table] = []
    keys = positions = np.empty(0)
    for piece in pieces:
        labels = pc.cast(piece.table[label], pa.float64()).to_numpy(zero_copy_only=False)
        known = ~np.isnan(labels)
        found.append(piece.table.filter(pa.array(known)))
        keys = np.concatenate([keys, rng.random(known.sum())])
        positions = np.concatenate([positions, piece.positions[known]])
        if len(keys) > most:
            first = np.sort(np.argpartition(keys, most)[:most])
            found = [pa.concat_tables(found).take(first)]
            keys, positions = keys[first], positions[first]
    if not found:
        raise InputError("no rows; give rows with their labels")
    table = pa.concat_tables(found)
    return RawRows(table=table, kept=table.select([]), positions=positions.astype(np.int64))
