"""Train DeepFM in PyTorch on a folder of `cowclip prepare`, with CowClip.

    python examples/torch_deepfm.py DATA --epochs 3

It needs PyTorch, NumPy and numba, and neither TensorFlow nor Merlin nor pandas. The first run on a
folder also needs PyArrow, unless `cowclip train` has read the folder before.

The model and the steps are those of `cowclip train DATA --model deepfm` with the same rates. Small
rates are of batch 1024; `--rule` scales them to `--batch-size`, and with the rule cowclip it clips
and warms up for one epoch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from prepared_deepfm import DIM, HIDDEN, SCORED_AT_ONCE, main, open_folder, print_epoch

from cowclip_merlin import Hyperparameters
from cowclip_merlin.loading import ColumnArrays
from cowclip_merlin.torch import CowClip  # before torch, so that waiting threads do not spin

# isort: split
import torch
from torch import Tensor, nn


class DeepFM(nn.Module):
    """DeepFM (Guo et al., arXiv 1703.04247): first-order weights, pairs of fields, hidden layers.

    Args:
        cardinalities: rows of the embedding table of each field.
        continuous: number of continuous columns; the hidden layers read them.
        init_std: standard deviation of the initial embeddings.
    """

    def __init__(self, cardinalities: Sequence[int], continuous: int, init_std: float) -> None:
        super().__init__()
        rows, starts = sum(cardinalities), np.cumsum([0, *cardinalities])[:-1]
        self.register_buffer("starts", torch.as_tensor(starts))  # all fields share a table
        self.wide = nn.Embedding(rows, 1, sparse=True)
        self.embedding = nn.Embedding(rows, DIM, sparse=True)
        nn.init.zeros_(self.wide.weight)
        nn.init.normal_(self.embedding.weight, std=init_std)
        widths = (len(cardinalities) * DIM + continuous, *HIDDEN, 1)
        layers = [nn.Linear(n, m) for n, m in pairwise(widths)]
        for layer in layers:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
        hidden = [part for layer in layers[:-1] for part in (layer, nn.ReLU())]
        self.hidden = nn.Sequential(*hidden, layers[-1])

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        """Compute logits [b] from ids [b, F] of the fields and numbers [b, C]."""
        rows = ids + self.starts
        v = self.embedding(rows)
        pairs = (v.sum(1) ** 2 - (v**2).sum(1)).sum(1) / 2
        deep = self.hidden(torch.cat([v.flatten(1), x], dim=1))
        return self.wide(rows).sum((1, 2)) + pairs + deep[:, 0]


@dataclass(frozen=True)
class Split:
    """Rows of one split: ids [n, F], numbers [n, C], labels [n]."""

    ids: Tensor
    x: Tensor
    label: Tensor

    @classmethod
    def of(cls, columns: ColumnArrays) -> Split:
        """Copy the columns, which are mapped from files read-only."""
        arrays = (columns.ids, columns.continuous, columns.label)
        return cls(*(torch.as_tensor(np.array(x)) for x in arrays))

    def batches(self, size: int, order: Tensor | None = None) -> Iterator[Split]:
        """Yield the rows in parts, in this order."""
        order = torch.arange(len(self.label)) if order is None else order
        for rows in order.split(size):
            yield Split(self.ids[rows], self.x[rows], self.label[rows])


def logits_of(model: DeepFM, split: Split) -> np.ndarray:
    """Logits [n] of the rows."""
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part.ids, part.x) for part in split.batches(SCORED_AT_ONCE)])
    model.train()
    return found.numpy()


def train(path: Path, values: Hyperparameters, *, epochs: int, update: str, seed: int) -> None:
    """Train, and print a line for each epoch."""
    cardinalities, *splits = open_folder(path)
    rows, test = map(Split.of, splits)
    torch.manual_seed(seed)
    model = DeepFM(cardinalities, rows.x.shape[1], values.init_std)
    optimizer = CowClip.of(model, values, update=update)
    steps = -(-len(rows.label) // values.batch_size)
    warm_up = round((values.warmup_epochs or 0) * steps)
    rates = [lambda _: 1.0, lambda step: min(1.0, step / warm_up) if warm_up else 1.0]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rates)  # of tables, and of the others
    loss_of = nn.functional.binary_cross_entropy_with_logits
    for epoch in range(1, epochs + 1):
        total = 0.0
        for part in rows.batches(values.batch_size, torch.randperm(len(rows.label))):
            optimizer.zero_grad()
            loss = loss_of(model(part.ids, part.x), part.label)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(part.label)
        logits = logits_of(model, test)
        print_epoch(epoch, total / len(rows.label), test.label.numpy(), logits)


if __name__ == "__main__":
    sys.exit(main("torch_deepfm", __doc__.splitlines()[0], train, None))
