"""Train DeepFM in PyTorch on a folder of `cowclip prepare`, with CowClip.

    python examples/torch_deepfm.py DATA --epochs 3

It needs PyTorch, NumPy and numba, and neither TensorFlow nor Merlin nor pandas. The first run on a
folder also needs PyArrow, unless `cowclip train` has read the folder before.

The model and the steps are those of `cowclip train DATA --model deepfm` with the same rates. Small
rates are of batch 1024; `--rule` scales them to `--batch-size`, and with the rule cowclip it clips
and warms up for one epoch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from cowclip_merlin import Hyperparameters, InputError, log_loss, roc_auc, scale
from cowclip_merlin.choices import UPDATES
from cowclip_merlin.errors import exit_code
from cowclip_merlin.loading import ColumnArrays, open_columns
from cowclip_merlin.scaling import RULES
from cowclip_merlin.targets import only_clicks
from cowclip_merlin.torch import CowClip  # before torch, so that waiting threads do not spin
from cowclip_merlin.workflows import PreparedData

# isort: split
import torch
from torch import Tensor, nn

DIM, HIDDEN, SCORED_AT_ONCE = 10, (400, 400, 400), 8192


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


def open_folder(path: Path) -> tuple[PreparedData, Split, Split]:
    """Open the train and test rows of a prepared folder.

    Raises:
        InputError: the folder is none, or has columns that this model does not read.
    """
    data = PreparedData.load(path)
    log = data.log_format
    if log.multi or log.weight or log.vectors or not only_clicks(data.targets):
        raise InputError(
            f"{path}: has lists, vectors, weights, or other labels than one of clicks; this "
            "example reads none of them, so prepare the log without"
        )
    train, test = (Split.of(open_columns(data, split)) for split in ("train", "test"))
    return data, train, test


def scores(model: DeepFM, split: Split) -> np.ndarray:
    """Click probabilities [n] of the rows."""
    model.eval()
    with torch.no_grad():
        parts = split.batches(SCORED_AT_ONCE)
        found = torch.cat([model(part.ids, part.x) for part in parts])
    model.train()
    return torch.sigmoid(found).numpy()


def train(path: Path, values: Hyperparameters, *, epochs: int, update: str, seed: int) -> float:
    """Train, print a line for each epoch, and return the last test AUC."""
    data, rows, test = open_folder(path)
    torch.manual_seed(seed)
    model = DeepFM(list(data.cardinalities.values()), rows.x.shape[1], values.init_std)
    optimizer = CowClip.of(model, values, update=update)
    steps = -(-len(rows.label) // values.batch_size)
    warm_up = round((values.warmup_epochs or 0) * steps)
    rates = [lambda _: 1.0, lambda step: min(1.0, step / warm_up) if warm_up else 1.0]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rates)  # of tables, and of the others
    loss_of = nn.functional.binary_cross_entropy_with_logits
    auc = float("nan")
    for epoch in range(1, epochs + 1):
        started, total = time.perf_counter(), 0.0
        for part in rows.batches(values.batch_size, torch.randperm(len(rows.label))):
            optimizer.zero_grad()
            loss = loss_of(model(part.ids, part.x), part.label)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(part.label)
        optimizer.flush()  # only so that the time below has all steps
        seconds = time.perf_counter() - started
        found, label = scores(model, test), test.label.numpy()
        auc = roc_auc(label, found)
        print(
            f"epoch {epoch}: train loss {total / len(rows.label):.5f}, test AUC {auc:.5f}, "
            f"log loss {log_loss(label, found):.5f}, {seconds:.1f} s",
            flush=True,
        )
    return auc


def main(argv: Sequence[str] | None = None) -> int:
    """Train; return 2 if the input is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of cowclip prepare")
    parser.add_argument("--batch-size", type=int, default=1024, metavar="N")
    parser.add_argument("--epochs", type=int, default=3, metavar="N")
    parser.add_argument("--rule", choices=tuple(RULES), default="sde", help="default: %(default)s")
    parser.add_argument("--lr", type=float, default=1e-3, metavar="X", help="both rates")
    parser.add_argument("--l2", type=float, default=1e-5, metavar="X", help="of the tables")
    parser.add_argument("--update", choices=UPDATES, default="exact")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    args = parser.parse_args(argv)

    def run() -> None:
        if args.epochs < 1:
            raise InputError(f"--epochs {args.epochs}: give 1 or more")
        small = Hyperparameters(batch_size=1024, embedding_lr=args.lr, dense_lr=args.lr, l2=args.l2)
        values = scale(small, to=args.batch_size, rule=args.rule)
        train(args.data, values, epochs=args.epochs, update=args.update, seed=args.seed)

    return exit_code("torch_deepfm", run)


if __name__ == "__main__":
    sys.exit(main())
