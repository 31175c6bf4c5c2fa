"""A DeepFM of FuxiCTR's layers, for `peers.py`.

The package on PyPI has FuxiCTR's layers, data loaders and training step, but not its DeepFM, which
this module builds. The continuous values enter the MLP directly, as in the other contestants.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fuxictr
import numpy as np
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.dataloaders.npz_dataloader import NpzDataLoader
from fuxictr.pytorch.layers import (
    FeatureEmbedding,
    InnerProductInteraction,
    LogisticRegression,
    MLP_Block,
)
from fuxictr.pytorch.models import BaseModel

from contestants.job import SCORING_BATCH, Clock, Job, by_name, names, read_job, report

Batch = dict[str, torch.Tensor]


def feature_map(field_rows: list[int], numbers: list[str], folder: Path) -> FeatureMap:
    """Describe the columns for FuxiCTR."""
    known = FeatureMap("peers", str(folder))
    ids = {
        name: {"type": "categorical", "vocab_size": size, "source": ""}
        for name, size in zip(names(len(field_rows), "C"), field_rows)
    }
    raw = {name: {"type": "numeric", "source": ""} for name in numbers}
    known.features, known.labels = OrderedDict({**ids, **raw}), ["label"]
    known.num_fields = known.get_num_fields()
    known.set_column_index()
    return known


class FuxiDeepFM(BaseModel):
    """Linear part, second-order part and MLP on shared embeddings."""

    def __init__(self, field_rows: list[int], numbers: list[str], job: Job) -> None:
        folder = job.predictions.parent
        super().__init__(
            feature_map(field_rows, numbers, folder),
            gpu=0 if torch.cuda.is_available() else -1,
            verbose=0,
            model_root=str(folder),
            metrics=["AUC"],
        )
        ids = feature_map(field_rows, [], folder)
        self.ids, self.numbers = list(ids.features), numbers
        initial = f"partial(nn.init.normal_, std={job.init_std})"
        self.embedding = FeatureEmbedding(ids, job.embedding_dim, embedding_initializer=initial)
        self.linear = LogisticRegression(ids, use_bias=True)
        self.pairs = InnerProductInteraction(len(field_rows), output="product_sum")
        width = len(field_rows) * job.embedding_dim + len(numbers)
        self.mlp = MLP_Block(width, hidden_units=list(job.widths), output_dim=1)
        self._max_gradient_norm = 10.0  # its `fit` sets this
        self.compile("adam", "binary_crossentropy", job.lr)
        self.reset_parameters()
        self.model_to_device()

    def forward(self, inputs: Batch) -> dict[str, torch.Tensor]:
        """Return the click probabilities of a batch."""
        columns = self.get_inputs(inputs)
        ids = {name: columns[name] for name in self.ids}
        v = self.embedding(ids)
        x = torch.stack([columns[name].float() for name in self.numbers], dim=1)
        z = self.mlp(torch.cat([v.flatten(start_dim=1), x], dim=1))
        return {"y_pred": self.output_activation(z + self.pairs(v) + self.linear(ids))}


class MemoryLoader:
    """Slice batches from tensors on the device, instead of FuxiCTR's row-by-row loader."""

    def __init__(self, columns: Batch, *, batch: int, shuffle: bool) -> None:
        self.columns, self.batch, self.shuffle = columns, batch, shuffle

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of one epoch."""
        first = next(iter(self.columns.values()))
        count, device = len(first), first.device
        order = torch.randperm if self.shuffle else torch.arange
        for rows in order(count, device=device).split(self.batch):
            yield {name: values[rows] for name, values in self.columns.items()}


def tensors(ids: np.ndarray, continuous: np.ndarray, device: Any) -> Batch:
    """Copy the columns to the device."""
    return {k: torch.from_numpy(v).to(device) for k, v in by_name(ids, continuous).items()}


def train_loader(model: FuxiDeepFM, rows: Any, job: Job, kind: str) -> Any:
    """Batches of the training rows."""
    if kind == "memory":
        columns = tensors(rows["ids"], rows["continuous"], model.device)
        columns["label"] = torch.from_numpy(rows["label"]).to(model.device)
        return MemoryLoader(columns, batch=job.batch, shuffle=True)
    file = job.predictions.with_name("fuxictr-rows.npz")
    np.savez(file, label=rows["label"], **by_name(rows["ids"], rows["continuous"]))
    return NpzDataLoader(model.feature_map, str(file), batch_size=job.batch, shuffle=True)


def train(model: FuxiDeepFM, loader: Any, job: Job) -> float:
    """Train with FuxiCTR's step; return rows per second."""
    clock = Clock(torch.cuda.synchronize if torch.cuda.is_available() else lambda: None)
    model.train()
    for _ in range(job.epochs):
        for batch in loader:
            model.train_step(batch).item()  # its own loop reads the loss, too
            clock.tick(len(batch["label"]))
    return clock.rate()


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loader", choices=("fuxictr", "memory"), default="fuxictr")
    job, args = read_job(parser)
    torch.manual_seed(job.seed)
    with np.load(job.rows_file) as rows:
        numbers = names(rows["continuous"].shape[1], "I")
        model = FuxiDeepFM(rows["field_rows"].tolist(), numbers, job)
        rate = train(model, train_loader(model, rows, job, args.loader), job)
        held_out = tensors(rows["test_ids"], rows["test_continuous"], model.device)
        scoring = MemoryLoader(held_out, batch=SCORING_BATCH, shuffle=False)
        versions = {"fuxictr": fuxictr.__version__, "torch": torch.__version__}
        report(job, model.predict(scoring), rate, versions)


if __name__ == "__main__":
    main()
