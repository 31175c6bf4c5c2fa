"""Start online training from a run that was trained on a prepared folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from cowclip_merlin.addresses import FilePath, is_address
from cowclip_merlin.batch import Ids
from cowclip_merlin.errors import InputError
from cowclip_merlin.models.embedding import look_up
from cowclip_merlin.online.events.values import MISSING, NumberScaling, text_ids
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.targets import described, only_clicks
from cowclip_merlin.training.run_config import RunConfig, local_run
from cowclip_merlin.training.starting.warm_start import scoring_weights
from cowclip_merlin.training.trained_run import load_run
from cowclip_merlin.types import Array
from cowclip_merlin.workflows import PreparedData
from cowclip_merlin.workflows.prepared.counts import SPECIAL, read_counts

if TYPE_CHECKING:
    from cowclip_merlin.models.embedding import FusedEmbedding
    from cowclip_merlin.online.events.features import LogFeatures


_ARCHITECTURE = ("model", "embedding_dim", "mlp", "continuous", "precision", "multi_task")
_ARCHITECTURE += ("cross_layers", "activation", "batch_norm", "experts")


Start: TypeAlias = "tuple[str | FilePath, str | FilePath]"
"""A run, and the prepared folder that it was trained on."""


def named_start(path: str | FilePath) -> str:
    """Return where a folder to start from is, for the settings of a run."""
    return str(path if is_address(path) else Path(path).resolve())


class OfflineStart:
    """Weights of a run for an online trainer: embedding rows by value, and dense weights.

    The optimizer's state starts as that of new rows does.

    Args:
        run: folder of the run, trained with any update.
        data: the prepared folder that it was trained on.
        trainer: the new trainer; its model and columns must be those of the run.

    Raises:
        InputError: the run or the folder is damaged, or does not fit the trainer.
    """

    def __init__(self, run: str | FilePath, data: str | FilePath, trainer: OnlineTrainer) -> None:
        self._run, self._data, self._trainer = local_run(run), PreparedData.load(data), trainer
        self._refuse_other_targets(trainer.features)
        self._refuse_other_columns(trainer.features)
        self._refuse_other_model()

    def apply(self, now: int) -> None:
        """Give the trainer's table a row for each value of the vocabularies, and set all weights.

        Args:
            now: event time at which the values count as seen.

        Raises:
            InputError: the table has too few rows for all values.
        """
        model = load_run(self._run, self._data.path, device="cpu")
        layers = model.row_sync.layers
        for field, name in enumerate(self._trainer.features.tables):
            numbers, ids = ids_of_table(self._data, name)
            column = self._data.categorical.index(name)
            own = self._trainer.table.takes(np.full(len(ids), field), ids)
            numbers, ids = numbers[own], ids[own]
            rows = self._trainer.table.insert(np.full(len(ids), field), ids, now)
            if self._trainer.settings.absent == "trained":
                numbers, rows = np.append(numbers, SPECIAL["oov"]), np.append(rows, field)
            for layer, memory in zip(layers, self._trainer.table.memory, strict=True):
                for part in parts(len(rows)):
                    memory.w[rows[part]] = read_rows(layer, column, numbers[part])
        mine, theirs = self._trainer.dense_variables, scoring_weights(model)
        for variable, trained in zip(mine, theirs, strict=True):
            variable.assign(trained)

    def _refuse_other_targets(self, features: LogFeatures) -> None:
        theirs, mine = self._data.targets, features.targets
        if only_clicks(theirs) and only_clicks(mine):  # the label may have another name
            return
        if theirs != mine:
            raise InputError(
                f"{self._data.path}: its labels are {described(theirs)}, but those of the features "
                f"file are {described(mine)}; name the same `label` and `regression`"
            )
        if {n: tuple(x) for n, x in features.scales.items()} != self._data.statistics.scales:
            raise InputError(
                f"{self._data.path}: numbers to predict are in units of their spread there; write "
                "`prepared: FOLDER` into the features file, with the path of that folder"
            )

    def _refuse_other_columns(self, features: LogFeatures) -> None:
        wanted = {"categorical": self._data.categorical, "continuous": self._data.continuous}
        for kind, names in wanted.items():
            mine = tuple(column.name for column in getattr(features, kind))
            if mine != names:
                raise InputError(
                    f"{self._data.path}: its {kind} columns are {', '.join(names) or 'none'}, but "
                    f"those of the features file are {', '.join(mine) or 'none'}; name the same "
                    "ones in the same order"
                )
        theirs = self._data.log_format.vectors
        if [*theirs.items()] != [*features.lengths.items()]:
            raise InputError(
                f"{self._data.path}: its vectors are {_lengths(theirs)}, but those of the features "
                f"file are {_lengths(features.lengths)}; give the same `vectors` in the same order"
            )
        self._refuse_other_tables(features)
        self._refuse_other_lists(features)
        for column in features.categorical:
            if not column.table and column.text != self._data.log_format.keeps_text(column.name):
                raise InputError(
                    f"{self._data.path}: in column {column.name!r}, 47.0 is "
                    f"{'47' if column.text else 'text'}; "
                    f"{'remove `text`' if column.text else 'write `text: true`'} in the features "
                    "file"
                )
            if column.buckets is not None:
                raise InputError(
                    f"column {column.name!r} has buckets, but {self._data.path} has a row for each "
                    "value; remove `buckets` from the features file"
                )
        for column in features.continuous:
            if column.scaling != NumberScaling.from_prepared(self._data, column.name):
                raise InputError(
                    f"column {column.name!r} is not transformed as in {self._data.path}; write "
                    f"`prepared: FOLDER` into the features file, with the path of that folder"
                )

    def _refuse_other_tables(self, features: LogFeatures) -> None:
        """Refuse other columns that share a table."""
        for name in self._data.categorical:
            theirs, mine = self._data.log_format.table_of(name), features.shared.get(name, name)
            if mine != theirs:
                remedy = "remove its `table`" if theirs == name else f"write `table: {theirs}`"
                raise InputError(
                    f"{self._data.path}: column {name!r} has the ids of {theirs!r}, not of "
                    f"{mine!r}; {remedy} in the features file"
                )

    def _refuse_other_lists(self, features: LogFeatures) -> None:
        """Refuse other columns with several values per row, or other combiners of them."""
        multi = self._data.log_format.multi
        combiners = RunConfig.load(self._run).settings.combiners(multi)
        several = {True: "several values per row", False: "one value per row"}
        for column in features.categorical:
            name, mine = column.name, column.lists is not None
            if mine != (name in multi):
                raise InputError(
                    f"{self._data.path}: column {name!r} has {several[not mine]}, but by the "
                    f"features file {several[mine]}; {'remove' if mine else 'add'} its `separator`"
                )
            if mine and column.lists.combiner != combiners[name]:
                raise InputError(
                    f"{self._run}: combines column {name!r} by {combiners[name]}, not "
                    f"{column.lists.combiner}; set `combiner` in the features file"
                )

    def _refuse_other_model(self) -> None:
        theirs, mine = RunConfig.load(self._run).settings, self._trainer.settings.run
        if theirs.frozen:
            raise InputError(
                f"{self._run}: embeddings of {theirs.frozen[0]!r} are frozen, but a stream trains "
                "all; train the run without `freeze_embeddings`"
            )
        for name in _ARCHITECTURE:
            old, new = getattr(theirs, name), getattr(mine, name)
            if old != new:
                raise InputError(
                    f"{self._run}: was trained with {name} {old}, not {new}; use the same"
                )


def _lengths(vectors: Mapping[str, int]) -> str:
    """Describe columns of vectors.

    >>> _lengths({"text": 64, "image": 128}), _lengths({})
    ('text (64), image (128)', 'none')
    """
    return ", ".join(f"{name} ({length})" for name, length in vectors.items()) or "none"


def ids_of_table(data: PreparedData, name: str) -> tuple[Array, Array]:
    """Return the row numbers of a run's table, and the 64-bit ids of their values, both [n]."""
    counts, log_format = read_counts(data, name), data.log_format
    known = counts.filter(counts["value"].is_valid())
    how = {"keep_text": log_format.keeps_text(name)}
    ids = [text_ids(chunk, **how) for chunk in known["value"].chunks]  # not joined: 2 GiB each
    numbers, ids = np.asarray(known["id"]), np.concatenate([np.empty(0, np.int64), *ids])
    if set(log_format.tables[name]) <= set(log_format.multi):  # a list has no missing value
        return numbers, ids
    return np.append(numbers, SPECIAL["null"]), np.append(ids, MISSING)


def parts(n: int, size: int = 1 << 18) -> Iterator[slice]:
    """Cut n rows into slices that fit into memory several times."""
    return (slice(start, start + size) for start in range(0, n, size))


def read_rows(layer: FusedEmbedding, column: int, numbers: Array) -> Array:
    """Rows of one column's ids in a fixed table, float32 [n, d]."""
    ids = np.zeros((len(numbers), len(layer.field_of_column)), np.int64)
    ids[:, column] = numbers
    (found,) = look_up([layer], Ids(ids), False, None)
    return found[:, column].numpy()
