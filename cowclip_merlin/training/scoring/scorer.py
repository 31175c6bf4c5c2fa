"""Score raw rows as `evaluate_run` does, and files of any size batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cowclip_merlin import compat
from cowclip_merlin.addresses import FilePath, is_address, uploaded_file
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import ColumnArrays, StreamedData
from cowclip_merlin.loading.column_arrays import ColumnIds, vector_places
from cowclip_merlin.loading.device_data import as_float_arrays, to_device
from cowclip_merlin.targets import only_clicks
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.training.run_config import RunConfig, data_of_run, local_run
from cowclip_merlin.training.run_logs import value_names
from cowclip_merlin.training.scoring import predicting
from cowclip_merlin.training.scoring.new_values import NewValues
from cowclip_merlin.training.scoring.predicting import check_table_file, table_file
from cowclip_merlin.training.trained_run import load_run
from cowclip_merlin.types import Array
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.raw.frames import Frame, is_frame
from cowclip_merlin.workflows.raw.log_format import LogFormat
from cowclip_merlin.workflows.raw.parsed_rows import BadLine
from cowclip_merlin.workflows.raw.readers import check_input_files, staged_columns
from cowclip_merlin.workflows.read_log import LogReader, RawRows, paths_of

if TYPE_CHECKING:
    import nvtabular as nvt
    import pandas
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class ScoredRows:
    """Some rows and their click probabilities.

    Attributes:
        rows: the raw rows.
        probabilities: of each target, with the numbers of regressions, float64 [n, T].
    """

    rows: RawRows
    probabilities: npt.NDArray[np.float64]


class Scorer:
    """Scores raw rows with the weights of a run, which it loads once.

    `load_run` tells which weights these are.

    Args:
        run: the run folder.
        data: the folder that the run was trained on; None: where it was then.
        device: "auto", "cpu" or "gpu".

    Raises:
        InputError: if the run or its prepared folder is missing, damaged, or another one.
    """

    def __init__(
        self, run: str | Path, data: str | Path | None = None, *, device: str = "auto"
    ) -> None:
        run = local_run(run)
        self.data = _data_of(run, data)
        set_up_tensorflow(RunConfig.load(run).settings.seed, device)
        model = load_run(run, self.data.path, device=device)
        self._workflow = self._workflow_of_raw_rows()
        self._logits = predicting.logits_function(model, StreamedData(self.empty_columns(0)))

    @property
    def log_format(self) -> LogFormat:
        """The columns to read, without the label."""
        return self.data.log_format.without_label()

    def score(
        self,
        rows: Frame | str | Path | Sequence[str | Path],
        *,
        allow_unknown: Sequence[str] = (),
    ) -> npt.NDArray[np.float64]:
        """Return the click probability of every row, float64 [n], or [n, T] of other targets.

        Args:
            rows: raw values, or files: text or parquet. Values are a pandas or polars frame, an
                Arrow table, or a list of dictionaries.
            allow_unknown: columns that may be far more unknown than in the test rows.

        Raises:
            InputError: if a column is missing or far more unknown, or a row is damaged.
        """
        found, pieces = NewValues(self.data, allow_unknown), self._pieces(rows)
        parts = [scored.probabilities for scored in self.score_pieces(pieces, found)]
        found.check()
        whole = np.concatenate([np.empty((0, len(self.data.targets)), np.float64), *parts])
        return whole[:, 0] if only_clicks(self.data.targets) else whole

    def inputs(self, rows: Frame | str | Path | Sequence[str | Path]) -> dict[str, Array]:
        """Return what the Keras model of the run, and its SavedModel, take for raw rows.

        Args:
            rows: as for `score`.

        Returns:
            Column -> ids, int64 [n], or numbers, float32 [n]. A column of lists is a matrix of ids,
            whose rows 0 fills up, one of vectors a matrix of their numbers.

        Raises:
            InputError: if a column is missing, or a row is damaged.
        """
        data, pieces = self.data, list(self._pieces(rows))
        columns = self.columns(_joined(pieces)) if pieces else self.empty_columns(0)
        found = {}
        for j, name in enumerate(data.categorical):
            ids, lengths = columns.column(j)
            found[name] = _matrix(ids, lengths) if name in data.log_format.multi else np.int64(ids)
        found |= {name: columns.continuous[:, j] for j, name in enumerate(data.continuous)}
        places = vector_places(data.log_format).items()
        return found | {name: columns.continuous[:, where] for name, where in places}

    def _pieces(self, rows: Frame | str | Path | Sequence[str | Path]) -> Iterable[RawRows]:
        reader = LogReader(self.data.log_format, labels=False)
        return reader.frame(rows) if is_frame(rows) else reader.files(paths_of(rows))

    def columns(self, rows: RawRows) -> ColumnArrays:
        """Return the ids and numbers of raw rows; the labels have no meaning."""
        with compat.quiet_merlin():
            return self._transform(rows, self._staged(rows))

    def predict(self, columns: ColumnArrays) -> npt.NDArray[np.float64]:
        """Return the predictions of any number of rows, [n, T]."""
        batches = StreamedData(columns).batches_in_file_order(predicting.PREDICTION_BATCH_SIZE)
        logits = np.concatenate([self._logits(batch).numpy() for batch in batches])
        return predicting.values_of(logits.astype(np.float64), self.data.targets)

    def _staged(self, rows: RawRows) -> pa.Table:
        return staged_columns(rows.table, self.log_format, {}, coded=True)

    def score_pieces(self, pieces: Iterable[RawRows], found: NewValues) -> Iterator[ScoredRows]:
        """Score rows in the batches of `evaluate_run`, so that the results are equal to the bit.

        `found` counts their values.
        """
        with compat.quiet_merlin():
            for rows in _batches(pieces, predicting.PREDICTION_BATCH_SIZE):
                table = self._staged(rows)
                columns = self._transform(rows, table)
                found.add(table, columns)
                yield ScoredRows(rows=rows, probabilities=self._predict(columns))

    def _workflow_of_raw_rows(self) -> nvt.Workflow:
        """Return the workflow for ids and single numbers."""
        layout = self.data.log_format
        known = (*layout.labels, layout.weight, *layout.vectors)
        return self.data.workflow().remove_inputs([name for name in known if name])

    def empty_columns(self, rows: int) -> ColumnArrays:
        """Return arrays for so many rows, without weights."""
        return replace(ColumnArrays.empty(self.data, rows), weight=None)

    def _predict(self, columns: ColumnArrays) -> npt.NDArray[np.float64]:
        batch = tuple(to_device(array) for array in as_float_arrays(columns))
        logits = self._logits(batch).numpy().astype(np.float64)
        return predicting.values_of(logits, self.data.targets)

    def _ids(self, values: pandas.Series, name: str) -> ColumnIds:
        """Return the ids of a column: [n], or ids and lengths of a multi-valued one."""
        if name not in self.data.log_format.multi:
            return values
        lengths = values.map(len).to_numpy(np.int32)
        return np.concatenate([np.empty(0, np.int32), *values]), lengths

    def _transform(self, rows: RawRows, table: pa.Table) -> ColumnArrays:
        """Return ids and numbers; the labels have no meaning."""
        import pyarrow.compute as pc

        data = self.data
        with np.errstate(over="ignore"):  # numbers that are too large are refused below
            single = table.drop_columns(list(data.log_format.vectors))
            ready = self._workflow.transform(single.to_pandas())
        columns = self.empty_columns(len(ready))
        columns = columns.with_ids([self._ids(ready[name], name) for name in data.categorical])
        for j, name in enumerate(data.continuous):
            columns.continuous[:, j] = ready[name]
            _check_finite(columns.continuous[:, j], rows, name)
        for name, places in vector_places(data.log_format).items():
            numbers = pc.list_flatten(table[name]).to_numpy()
            columns.continuous[:, places] = numbers.reshape(len(ready), -1)
        columns.label[:] = 0
        return columns


def score(
    run: str | Path,
    rows: Frame | str | Path | Sequence[str | Path],
    *,
    data: str | Path | None = None,
    device: str = "auto",
    allow_unknown: Sequence[str] = (),
) -> npt.NDArray[np.float64]:
    """Score raw rows with the weights of a run, as `evaluate_run` scores prepared rows.

    Rows need no label. To score often, make one `Scorer`, which loads the run once. What changed
    since the training is logged: columns that are more unknown, missing, or outside of their range.

    Args:
        run: the run folder.
        rows: raw values, or files: text or parquet. Values are a pandas or polars frame, an Arrow
            table, or a list of dictionaries. Whole numbers stand for their digits there, and NaN
            of pandas is a missing value.
        data: the folder that the run was trained on; None: where it was then.
        device: "auto", "cpu" or "gpu".
        allow_unknown: columns that may be far more unknown than in the test rows of `data`. Others
            are an error if less than half as large a share of their values is known.

    Returns:
        The click probability of every row, in its order, float64 [n]; with other targets
        [n, T], in the order of the labels, with the numbers of regressions.

    Raises:
        InputError: if a row is damaged, a column is far more unknown, or another input is wrong.
    """
    return Scorer(run, data, device=device).score(rows, allow_unknown=allow_unknown)


def _data_of(run: Path, data: str | Path | None) -> PreparedData:
    """Return the prepared folder of a run; None: where it was when the run was trained."""
    return PreparedData.load(data_of_run(run, RunConfig.load(run)) if data is None else data)


def _matrix(ids: Array, lengths: Array) -> npt.NDArray[np.int64]:
    """Return lists of ids as a matrix that 0 fills up, [n, longest].

    >>> _matrix(np.array([7, 8, 9]), np.array([1, 0, 2])).tolist()
    [[7, 0], [0, 0], [8, 9]]
    """
    found = np.zeros((len(lengths), lengths.max(initial=0)), np.int64)
    found[np.arange(found.shape[1]) < lengths[:, np.newaxis]] = ids
    return found


def _check_finite(scaled: npt.NDArray[np.float32], rows: RawRows, name: str) -> None:
    wrong = ~np.isfinite(scaled)
    if wrong.any():
        i = int(wrong.argmax())
        raise InputError(
            f"row {rows.positions[i]}, counted from 0: {name} is {rows.table[name][i]}, too large "
            "for a 32-bit number after scaling; give a smaller number"
        )


def _batches(pieces: Iterable[RawRows], size: int) -> Iterator[RawRows]:
    """Cut rows into batches of `size`; only the last one may be smaller."""
    waiting: list[RawRows] = []
    count = 0
    for piece in pieces:
        waiting.append(piece)
        count += len(piece.positions)
        while count >= size:
            whole = _joined(waiting)
            yield _part(whole, 0, size)
            waiting, count = [_part(whole, size, count)], count - size
    if count:
        yield _joined(waiting)


def _joined(pieces: Sequence[RawRows]) -> RawRows:
    import pyarrow as pa

    return RawRows(
        table=pa.concat_tables([piece.table for piece in pieces]),
        kept=_concatenated_kept(pieces),
        positions=np.concatenate([piece.positions for piece in pieces]),
    )


def _concatenated_kept(pieces: Sequence[RawRows]) -> pa.Table:
    import pyarrow as pa

    first = pieces[0].kept.schema
    for column in first:
        for piece in pieces[1:]:
            other = piece.kept.schema.field(column.name).type
            if other != column.type:
                raise InputError(
                    f"`keep` {column.name}: one file has {column.type} and another {other}; "
                    "convert the column to one type"
                )
    return pa.concat_tables([piece.kept for piece in pieces])


def _part(rows: RawRows, first: int, end: int) -> RawRows:
    return RawRows(
        table=rows.table.slice(first, end - first),
        kept=rows.kept.slice(first, end - first),
        positions=rows.positions[first:end],
    )


@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """What was scored.

    Attributes:
        rows: number of scored rows.
        damaged: number of damaged rows, which have no score.
        first_damaged: the first of them.
        unknown: categorical column -> share of its values that are unknown, in [0, 1].
        whole_floats: column -> the first text such as "47.0" that was read as a whole number.
    """

    rows: int
    damaged: int
    first_damaged: Sequence[BadLine]
    unknown: dict[str, float]
    whole_floats: dict[str, str]


def score_files(
    run: str | Path,
    files: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    data: str | Path | None = None,
    keep: Sequence[str] = (),
    max_bad_fraction: float = 0.001,
    allow_unknown: Sequence[str] = (),
    overwrite: bool = False,
    device: str = "auto",
) -> ScoreSummary:
    """Score raw files with the weights of a run; memory does not grow with the files.

    Args:
        run: the run folder.
        files: plain or compressed text, or parquet, in the order of the rows; rows need no label.
        out: parquet, .csv or .csv.gz file to write: row, the columns of `keep`, probability (of
            several targets a column for each, such as probability_click and prediction_seconds).
            `row` counts the rows of all files from 0, with damaged ones, which are left out.
        data: the folder that the run was trained on; None: where it was then.
        keep: columns of the files to copy. Those of a text file become text.
        max_bad_fraction: stop if the share of damaged rows exceeds this.
        allow_unknown: as of `score`.
        overwrite: replace `out` if the file exists.
        device: "auto", "cpu" or "gpu".

    Raises:
        InputError: if an input is wrong; nothing is written then.
    """
    paths = paths_of(files)
    if is_address(out):
        if any(str(file) == str(out) for file in paths):
            raise InputError(f"{out}: is one of the files to score; use another `out`")
        with uploaded_file(str(out), overwrite=overwrite) as file:
            return score_files(
                run,
                paths,
                out=file,
                data=data,
                keep=keep,
                max_bad_fraction=max_bad_fraction,
                allow_unknown=allow_unknown,
                device=device,
            )
    out = Path(out)
    check_table_file(out, overwrite=overwrite)
    check_input_files(paths)
    _check_apart(out, paths)
    predicting.check_kept(keep, ["probability"])
    prepared = _data_of(local_run(run), data)
    names = value_names(prepared.targets)
    predicting.check_kept(keep, names)
    reader = LogReader(
        prepared.log_format, labels=False, keep=keep, max_bad_fraction=max_bad_fraction
    )
    pieces = reader.files(paths)
    first = next(pieces)  # a column that is not there is found before the model is loaded
    scorer = Scorer(run, prepared.path, device=device)
    scored, found = 0, NewValues(prepared, allow_unknown)
    with table_file(out) as write:
        for part in scorer.score_pieces(chain([first], pieces), found):
            write(_table(part, names))
            scored += len(part.probabilities)
        found.check()
    return ScoreSummary(
        rows=scored,
        damaged=reader.damaged.count,
        first_damaged=reader.damaged.first,
        unknown=found.unknown,
        whole_floats=reader.whole_floats,
    )


def _check_apart(out: Path, files: Sequence[FilePath]) -> None:
    for file in files:
        if isinstance(file, Path) and out.exists() and out.samefile(file):
            raise InputError(f"{out}: is one of the files to score; use another `out`")


def _table(part: ScoredRows, names: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    kept = part.rows.kept
    columns = {"row": part.rows.positions, **{n: kept[n] for n in kept.column_names}}
    values = part.probabilities
    return pa.table({**columns, **{name: values[:, i] for i, name in enumerate(names)}})
