"""Other packages with their own defaults, for `defaults.py`; a process trains one of them.

python -m contestants.with_defaults CONTESTANT ROWS PREDICTIONS SEED EPOCHS

It runs in the other packages' environment, reads the rows of `write_rows`, and writes the
probabilities of the test rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from contestants.job import SCORING_BATCH, Rows, read_rows

VALIDATION = 0.1
"""Share of the training rows that early stopping scores."""
FOLDS, SMOOTHING = 5, 10
"""Of target encoding; a rate takes the mean of all rows as so many more rows."""
BITS = 22
"""The hash of the logistic regressions has 2^22 values, so that pairs rarely collide."""


def take(rows: Rows, which: np.ndarray) -> Rows:
    """Some of the rows."""
    return Rows(rows.ids[which], rows.numbers[which], rows.label[which], rows.field_rows)


def held_out(rows: Rows, seed: int) -> tuple[Rows, Rows]:
    """Split off a random share of the rows for validation."""
    order = np.random.default_rng(seed).permutation(len(rows.label))
    count = int(VALIDATION * len(order))
    return take(rows, np.sort(order[count:])), take(rows, np.sort(order[:count]))


def lightgbm(train: Rows, test: Rows, seed: int, _: int) -> np.ndarray:
    """LightGBM's classifier, with the ids as columns of pandas's type `category`."""
    from lightgbm import LGBMClassifier

    model = LGBMClassifier(random_state=seed).fit(_frame(train), train.label)
    return model.predict_proba(_frame(test))[:, 1]


def lightgbm_stopped(train: Rows, test: Rows, seed: int, _: int) -> np.ndarray:
    """The same, up to 10,000 trees, until 50 trees in a row bring no better validation loss."""
    from lightgbm import LGBMClassifier, early_stopping

    fitted, scored = held_out(train, seed)
    model = LGBMClassifier(random_state=seed, n_estimators=10_000)
    valid = [(_frame(scored), scored.label)]
    model.fit(_frame(fitted), fitted.label, eval_set=valid, callbacks=[early_stopping(50)])
    return model.predict_proba(_frame(test))[:, 1]


def _frame(rows: Rows) -> Any:
    import pandas as pd

    columns = {
        f"C{j}": pd.Categorical.from_codes(rows.ids[:, j], np.arange(count))
        for j, count in enumerate(rows.field_rows)
    }
    return pd.DataFrame(columns | {f"I{j}": x for j, x in enumerate(rows.numbers.T)})


def lightgbm_te(train: Rows, test: Rows, seed: int, _: int) -> np.ndarray:
    """The same with rate 0.05 on numbers: of each id its click rate out of fold, and its count."""
    from lightgbm import LGBMClassifier, early_stopping

    fitted, scored = held_out(train, seed)
    folds = np.random.default_rng(seed).integers(FOLDS, size=len(fitted.label))
    x = encoded(fitted, fitted)
    for fold in range(FOLDS):
        mine = folds == fold
        x[mine] = encoded(take(fitted, ~mine), take(fitted, mine))
    counts = slice(len(train.field_rows), 2 * len(train.field_rows))
    x[:, counts] = encoded(fitted, fitted)[:, counts]
    model = LGBMClassifier(random_state=seed, n_estimators=10_000, learning_rate=0.05)
    valid = [(encoded(fitted, scored), scored.label)]
    model.fit(x, fitted.label, eval_set=valid, callbacks=[early_stopping(50)])
    return model.predict_proba(encoded(fitted, test))[:, 1]


def encoded(known: Rows, rows: Rows) -> np.ndarray:
    """Of each id its click rate in the known rows, smoothed, and its count; then the numbers."""
    mean, rates, counts = known.label.mean(), [], []
    for ids, of_known, size in zip(rows.ids.T, known.ids.T, known.field_rows):
        count = np.bincount(of_known, minlength=size)
        clicks = np.bincount(of_known, known.label, minlength=size)
        rates.append(((clicks + SMOOTHING * mean) / (count + SMOOTHING))[ids])
        counts.append(count[ids])
    return np.column_stack([*rates, *counts, rows.numbers])


def logistic_ids(train: Rows, test: Rows, seed: int, _: int) -> np.ndarray:
    """Logistic regression of scikit-learn on one-hot ids, L2 of C = 1."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(random_state=seed, max_iter=1000).fit(one_hot(train), train.label)
    return model.predict_proba(one_hot(test))[:, 1]


def one_hot(rows: Rows) -> Any:
    """A sparse matrix: a one for each id, and the numbers."""
    from scipy.sparse import csr_matrix, hstack

    n, count = rows.ids.shape
    first = np.cumsum([0, *rows.field_rows])
    places = (rows.ids + first[:-1]).ravel()
    starts = np.arange(0, n * count + 1, count)
    ids = csr_matrix((np.ones(n * count), places, starts), shape=(n, first[-1]))
    return hstack([ids, csr_matrix(rows.numbers)], format="csr")


def logistic(train: Rows, test: Rows, seed: int, _: int) -> np.ndarray:
    """Logistic regression of scikit-learn on hashed ids and pairs of ids, L2 of C = 1."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(random_state=seed).fit(crossed(train), train.label)
    return model.predict_proba(crossed(test))[:, 1]


def crossed(rows: Rows, bits: int = BITS) -> Any:
    """A sparse matrix: a one for each id and each pair of ids by their hash, and the numbers."""
    from scipy.sparse import csr_matrix

    n, count = rows.ids.shape
    numbers = rows.numbers.shape[1]
    groups = [(j,) for j in range(count)] + list(combinations(range(count), 2))
    width = len(groups) + numbers
    indices, data = np.empty((n, width), np.int32), np.ones((n, width), np.float32)
    for k, group in enumerate(groups):
        indices[:, k] = hashed(group, rows.ids[:, group], bits)
    indices[:, len(groups) :] = (1 << bits) + np.arange(numbers)
    data[:, len(groups) :] = rows.numbers
    starts = np.arange(0, n * width + 1, width)
    shape = (n, (1 << bits) + numbers)
    return csr_matrix((data.ravel(), indices.ravel(), starts), shape=shape)


def hashed(columns: tuple[int, ...], ids: np.ndarray, bits: int) -> np.ndarray:
    """Hash the ids of each row, [n, columns], together with the columns' numbers."""
    found = np.zeros(len(ids), np.uint64)
    for each in (*columns, *ids.T.astype(np.uint64)):
        found = (found ^ np.uint64(each)) * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(32)
    return (found >> np.uint64(8)) & np.uint64((1 << bits) - 1)


def vowpal_wabbit(train: Rows, test: Rows, seed: int, _: int) -> np.ndarray:
    """Vowpal Wabbit in one pass, with all pairs of columns."""
    from vowpalwabbit import Workspace

    words = f"--quiet --loss_function logistic --link logistic -q :: -b {BITS}"
    model = Workspace(f"{words} --random_seed {seed}")
    order = np.random.default_rng(seed).permutation(len(train.label))
    for line in _lines(take(train, order)):
        model.learn(line)
    return np.array([model.predict(line) for line in _lines(test)])


def _lines(rows: Rows) -> Iterator[str]:
    """Each row as text: a namespace for each column."""
    labels = np.where(rows.label > 0, "1", "-1") if len(rows.label) else [""] * len(rows.ids)
    letters = [chr(ord("a") + j) for j in range(rows.ids.shape[1])]
    for label, ids, numbers in zip(labels, rows.ids, rows.numbers):
        parts = [f"|{letter} {each}" for letter, each in zip(letters, ids)]
        parts += [f"|N{j} x:{each:g}" for j, each in enumerate(numbers)]
        yield f"{label} {' '.join(parts)}"


def fuxictr(train: Rows, test: Rows, seed: int, epochs: int) -> np.ndarray:
    """FuxiCTR's DeepFM as DeepFM_default of its model zoo, and its own training loop.

    Embeddings of 40, MLP 300-300-300, batch 10,000, Adam of 0.001, up to 100 epochs. An epoch
    without a better validation score divides the rate by 10, and the second in a row ends it.
    """
    import logging

    import torch
    from fuxictr.pytorch.layers import FactorizationMachine, FeatureEmbedding, MLP_Block
    from fuxictr.pytorch.models import BaseModel

    from contestants.fuxictr import MemoryLoader, feature_map

    class DeepFM(BaseModel):
        def __init__(self, folder: Path) -> None:
            known, monitor = feature_map(train, folder), {"AUC": 1, "logloss": -1}
            given = {"metrics": ["logloss", "AUC"], "monitor": monitor, "verbose": 0}
            super().__init__(known, model_id="DeepFM", model_root=str(folder), **given)
            (folder / known.dataset_id).mkdir()
            self.embedding_layer = FeatureEmbedding(known, 40)
            self.fm = FactorizationMachine(known)
            width = 40 * len(known.features)
            self.mlp = MLP_Block(width, hidden_units=[300] * 3, output_dim=1)
            self.compile("adam", "binary_crossentropy", 1e-3)
            self.reset_parameters()

        def forward(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            columns = self.get_inputs(inputs)
            v = self.embedding_layer(columns)
            z = self.fm(columns, v) + self.mlp(v.flatten(start_dim=1))
            return {"y_pred": self.output_activation(z)}

    def loader(rows: Rows, batch: int = SCORING_BATCH, *, shuffle: bool = False) -> MemoryLoader:
        return MemoryLoader(rows, "cpu", batch=batch, shuffle=shuffle)

    logging.basicConfig(level=logging.INFO)  # the validation scores of each epoch
    torch.manual_seed(seed)
    fitted, scored = held_out(train, seed)
    with TemporaryDirectory() as name:
        model, batches = DeepFM(Path(name)), loader(fitted, 10_000, shuffle=True)
        model.fit(batches, epochs=epochs, validation_data=loader(scored))
        return model.predict(loader(test))


Contestant = Callable[[Rows, Rows, int, int], np.ndarray]
CONTESTANTS: Mapping[str, tuple[Contestant, str]] = {
    "lightgbm": (lightgbm, "lightgbm"),
    "lightgbm-stopped": (lightgbm_stopped, "lightgbm"),
    "lightgbm-te": (lightgbm_te, "lightgbm"),
    "logistic": (logistic, "scikit-learn"),
    "logistic-ids": (logistic_ids, "scikit-learn"),
    "vowpal-wabbit": (vowpal_wabbit, "vowpalwabbit"),
    "fuxictr": (fuxictr, "fuxictr"),
}
"""Name -> what trains it, and the package whose version is recorded."""


def main() -> None:
    """Train once, and print the version of the package."""
    name, rows, predictions, seed, epochs = sys.argv[1:]
    train, package = CONTESTANTS[name]
    np.save(predictions, train(*read_rows(Path(rows)), int(seed), int(epochs)))
    print(json.dumps({package: version(package)}))


if __name__ == "__main__":
    main()
