"""A DeepFM of FuxiCTR's layers, for `peers.py`: python -m contestants.fuxictr LOADER JOB

The package on PyPI has FuxiCTR's layers, data loaders and training step, but not its DeepFM, which
this module builds. The continuous values enter the MLP directly, as in the other contestants.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fuxictr
import numpy as np
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch import layers
from fuxictr.pytorch.dataloaders.npz_dataloader import NpzDataLoader
from fuxictr.pytorch.models import BaseModel

from contestants.job import SCORING_BATCH, Clock, Job, Rows, read_job, read_rows, report

Batch = dict[str, torch.Tensor]


def feature_map(rows: Rows, folder: Path, *, with_numbers: bool = True) -> FeatureMap:
    """Describe the columns for FuxiCTR."""
    known, (names, numbers) = FeatureMap("peers", str(folder)), rows.names()
    sizes = zip(names, rows.field_rows.tolist())
    ids = {n: {"type": "categorical", "vocab_size": size, "source": ""} for n, size in sizes}
    raw = {n: {"type": "numeric", "source": ""} for n in numbers if with_numbers}
    known.features, known.labels = OrderedDict({**ids, **raw}), ["label"]
    known.num_fields = known.get_num_fields()
    known.set_column_index()
    return known


class FuxiDeepFM(BaseModel):
    """Linear part, second-order part and MLP on shared embeddings."""

    def __init__(self, rows: Rows, job: Job) -> None:
        folder, gpu = job.predictions.parent, 0 if torch.cuda.is_available() else -1
        known = {"gpu": gpu, "verbose": 0, "model_root": str(folder), "metrics": ["AUC"]}
        super().__init__(feature_map(rows, folder), **known)
        self.ids, self.numbers = rows.names()
        ids, initial = feature_map(rows, folder, with_numbers=False), f"std={job.init_std}"
        self.embedding = layers.FeatureEmbedding(
            ids, job.embedding_dim, embedding_initializer=f"partial(nn.init.normal_, {initial})"
        )
        self.linear = layers.LogisticRegression(ids, use_bias=True)
        self.pairs = layers.InnerProductInteraction(len(self.ids), output="product_sum")
        width = len(self.ids) * job.embedding_dim + len(self.numbers)
        self.mlp = layers.MLP_Block(width, hidden_units=list(job.widths), output_dim=1)
        self._max_gradient_norm = 10.0  # its `fit` sets this
        self.compile("adam", "binary_crossentropy", job.lr)
        self.reset_parameters()
        self.model_to_device()

    def forward(self, inputs: Batch) -> Batch:
        """Return the click probabilities of a batch."""
        columns = self.get_inputs(inputs)
        ids = {name: columns[name] for name in self.ids}
        v = self.embedding(ids)
        x = torch.stack([columns[name].float() for name in self.numbers], dim=1)
        z = self.mlp(torch.cat([v.flatten(start_dim=1), x], dim=1))
        return {"y_pred": self.output_activation(z + self.pairs(v) + self.linear(ids))}


class MemoryLoader:
    """Slice batches from tensors on the device, instead of FuxiCTR's row-by-row loader."""

    def __init__(self, rows: Rows, device: Any, *, batch: int, shuffle: bool) -> None:
        columns = rows.columns() | ({"label": rows.label} if len(rows.label) else {})
        self.columns = {name: torch.from_numpy(x).to(device) for name, x in columns.items()}
        self.count, self.batch, self.shuffle = len(rows.ids), batch, shuffle

    def __len__(self) -> int:
        """Count the batches, which FuxiCTR's `fit` asks for."""
        return -(-self.count // self.batch)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of one epoch."""
        device = next(iter(self.columns.values())).device
        order = torch.randperm if self.shuffle else torch.arange
        for rows in order(self.count, device=device).split(self.batch):
            yield {name: values[rows] for name, values in self.columns.items()}


def main() -> None:
    """Train once with FuxiCTR's step."""
    _, loader_name, text = sys.argv
    job = read_job(text)
    torch.manual_seed(job.seed)
    rows, test = read_rows(job.rows_file)
    model = FuxiDeepFM(rows, job)
    if loader_name == "memory":
        loader = MemoryLoader(rows, model.device, batch=job.batch, shuffle=True)
    else:
        file = job.predictions.with_name("fuxictr-rows.npz")
        np.savez(file, label=rows.label, **rows.columns())
        loader = NpzDataLoader(model.feature_map, str(file), batch_size=job.batch, shuffle=True)
    clock = Clock(torch.cuda.synchronize if torch.cuda.is_available() else lambda: None)
    model.train()
    for _ in range(job.epochs):
        for batch in loader:
            model.train_step(batch).item()  # its own loop reads the loss, too
            clock.tick(len(batch["label"]))
    rate = clock.rate()
    scores = model.predict(MemoryLoader(test, model.device, batch=SCORING_BATCH, shuffle=False))
    report(job, scores, rate, fuxictr=fuxictr.__version__, torch=torch.__version__)


if __name__ == "__main__":
    main()
