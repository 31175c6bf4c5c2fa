"""Rows in memory with labels of two classes, and the files that a training reads of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cowclip_merlin.checks import near
from cowclip_merlin.errors import InputError
from cowclip_merlin.types import Array
from cowclip_merlin.workflows.guess import guess_columns
from cowclip_merlin.workflows.raw.frames import Frame, arrow_table, is_frame

if TYPE_CHECKING:
    import pyarrow as pa

NO_IDS = "no_ids"
"""Column of one id for rows that have none, which the models need."""


@dataclass(frozen=True, kw_only=True)
class Labeled:
    """Rows with labels.

    Attributes:
        table: the rows, with the label and the weight.
        classes: the two labels, sorted.
        names: of the columns without label and weight; None: they have none.
        label: name of the column with 0 for the first class and 1 for the second.
        weight: name of the column with the weights; "": there is none.
    """

    table: pa.Table
    classes: Array
    names: list[str] | None
    label: str
    weight: str

    @property
    def features(self) -> int:
        """Number of columns without label and weight."""
        return self.table.num_columns - 1 - bool(self.weight)

    @classmethod
    def of(
        cls, X: Frame | Array, y: npt.ArrayLike | str, sample_weight: npt.ArrayLike | None
    ) -> Labeled:
        """Put rows and labels together.

        Raises:
            InputError: if there are not two classes, or the numbers of rows differ.
        """
        import pyarrow as pa

        table, names = table_of(X)
        if isinstance(y, str):
            if y not in table.column_names:
                hint = near(y, table.column_names) or "; give the name of the labels"
                raise InputError(f"the frame has no column {y!r}{hint}")
            y, table = np.asarray(table[y]), table.drop_columns([y])
            names = table.column_names
        labels = _labels(y)
        weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        for what, values in (("y", labels), ("sample_weight", weights)):
            if values is not None and values.shape != (table.num_rows,):
                raise InputError(
                    f"`{what}` has the shape {values.shape}, but there are {table.num_rows} rows; "
                    "give one value for each"
                )
        if weights is not None and not (weights > 0).any():
            raise InputError("all weights in `sample_weight` are zero; give some above 0")
        classes = np.unique(labels)
        if len(classes if weights is None else np.unique(labels[weights > 0])) < 2:
            raise InputError("the rows have labels of only one class; a classifier needs two")
        if len(classes) > 2:
            kind = "continuous" if _is_continuous(classes) else "multiclass"
            words = "Unknown label type: continuous. " if kind == "continuous" else ""
            raise InputError(
                f"{words}Only binary classification is supported. The type of the target is {kind}"
                f": {len(classes)} different labels"
            )
        label, weight = (_free(name, table.column_names) for name in ("label", "weight"))
        table = table.append_column(label, pa.array((labels == classes[1]).astype(np.int8)))
        if weights is not None:
            table = table.append_column(weight, pa.array(weights))
        weight = "" if weights is None else weight
        return cls(table=table, classes=classes, names=names, label=label, weight=weight)

    def write(
        self, folder: Path, fraction: float, seed: int, roles: Mapping[str, Sequence[str]]
    ) -> tuple[Path, Path, dict[str, Sequence[str]]]:
        """Write the rows to train on and those to hold out; return both files, and all roles.

        A share of each class is held out; a class of one row has it in both files.

        Args:
            folder: for the files.
            fraction: share of the rows to hold out.
            seed: chooses them.
            roles: role -> columns that have it, whatever they look like.
        """
        import pyarrow.parquet as pq

        labels, random = np.asarray(self.table[self.label]), np.random.RandomState(seed)
        held_out = np.zeros(len(labels), bool)
        train = np.ones(len(labels), bool)
        weighs = np.asarray(self.table[self.weight]) > 0 if self.weight else train
        for label in (0, 1):
            rows = np.flatnonzero((labels == label) & weighs)
            some = random.permutation(rows)[: max(1, round(fraction * len(rows)))]
            held_out[some] = True
            train[some] = len(some) == len(rows)
        files, found = (folder / "train.parquet", folder / "validation.parquet"), dict(roles)
        found |= {"weight": (self.weight,)} if self.weight else {}
        for file, rows in zip(files, (train, held_out)):
            pq.write_table(self.table.take(np.flatnonzero(rows)), file)
        guess = guess_columns(files[:1], self.label, found)
        if not any(guess.names(role) for role in ("categorical", "multi", "time")):
            for file in files:
                pq.write_table(self.with_ids(pq.read_table(file), [NO_IDS]), file)
            found["categorical"] = (NO_IDS,)
        return *files, found

    @staticmethod
    def with_ids(table: pa.Table, categorical: Collection[str]) -> pa.Table:
        """Return rows with the column `NO_IDS`, if a model has it and they do not."""
        import pyarrow as pa

        if NO_IDS not in categorical or NO_IDS in table.column_names:
            return table
        return table.append_column(NO_IDS, pa.array(["-"] * table.num_rows, pa.string()))


def table_of(X: Frame | Array) -> tuple[pa.Table, list[str] | None]:
    """Return rows in memory as a table, and the names of the columns if they have names."""
    if not is_frame(X):
        return _matrix_table(X), None
    if hasattr(X, "iloc") and not any(isinstance(name, str) for name in X.columns):
        return _matrix_table(X), None  # pandas numbers them
    table = arrow_table(X)
    return table, table.column_names


def _matrix_table(X: Any) -> pa.Table:
    """Return a matrix as a table with the columns x0, x1, and so on.

    Raises:
        InputError: if it is no matrix of real numbers or texts.

    >>> _matrix_table([[1, 2.5], [3, 4.5]]).to_pydict()
    {'x0': [1.0, 3.0], 'x1': [2.5, 4.5]}
    """
    import pandas as pd

    if hasattr(X, "tocsr"):
        raise InputError("X is a sparse matrix; give a dense one, with ids as they are")
    found = np.asarray(X)
    if found.dtype.kind == "c":
        raise InputError("Complex data not supported: X has complex numbers")
    if found.ndim != 2:
        raise InputError(
            f"Expected 2D array, got {found.ndim}D array instead. Reshape your data: give X a row "
            "for each example"
        )
    rows, columns = found.shape
    if not rows or not columns:
        what = f"{rows} sample(s)" if not rows else f"{columns} feature(s)"
        raise InputError(f"{what} (shape={found.shape}) while a minimum of 1 is required.")
    frame = pd.DataFrame(found).infer_objects()
    return arrow_table(frame.set_axis([f"x{j}" for j in range(columns)], axis=1))


def _labels(y: npt.ArrayLike) -> Array:
    """Return labels as an array, also those of pandas's own types; NaN and infinity are none.

    Raises:
        InputError: if there are some, or there are no labels, or they cannot be sorted.
    """
    import pandas as pd

    if y is None:
        raise InputError("requires y to be passed, but the target y is None")
    if hasattr(y, "tocsr"):
        raise InputError("y is a sparse matrix; give a dense array, as of y.toarray()")
    labels = np.asarray(y)
    labels = labels.ravel() if labels.ndim == 2 and labels.shape[1] == 1 else labels
    missing = labels.dtype == object and pd.isna(labels).any()
    if labels.dtype == object and labels.ndim == 1 and not missing:
        labels = pd.Series(labels).infer_objects().to_numpy()
        kinds = sorted({type(each).__name__ for each in labels.tolist()})
        if len(kinds) > 1:
            raise InputError(f"y has labels of the types {', '.join(kinds)}; give one type")
    if missing or (labels.dtype.kind == "f" and not np.isfinite(labels).all()):
        raise InputError("y has missing labels (None, NaN or infinity); leave these rows out")
    return labels


def _is_continuous(classes: Array) -> bool:
    return classes.dtype.kind == "f" and bool((classes != np.floor(classes)).any())


def _free(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name
