"""Models of PyTorch with tables, and batches of skewed ids."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "kernels"))  # emulated_cupy
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before PyTorch starts its threads
ROWS, DIM, FIELDS = 60, 3, 4


@pytest.fixture(scope="session")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def model_of(torch):
    """`model_of(sparse=True, bag=None)`: a table, and a dense layer on what it gives.

    A bag is a mode of `nn.EmbeddingBag`, or "weighted": a sum with a weight for each occurrence.
    """

    class Weighted(torch.nn.EmbeddingBag):
        def forward(self, ids):
            weights = torch.linspace(0.5, 2, ids.numel()).reshape(ids.shape)
            return super().forward(ids, per_sample_weights=weights)

    def make(*, sparse=True, bag=None, rows=ROWS):
        torch.manual_seed(1)
        nn = torch.nn
        if bag == "weighted":
            layer, width = Weighted(rows, DIM, mode="sum", sparse=sparse), DIM
        elif bag is not None:
            layer, width = nn.EmbeddingBag(rows, DIM, mode=bag, sparse=sparse), DIM
        else:
            layer, width = nn.Embedding(rows, DIM, sparse=sparse), FIELDS * DIM
        with torch.no_grad():
            layer.weight *= 0.1
        return nn.Sequential(layer, nn.Flatten(), nn.Linear(width, 1))

    return make


@pytest.fixture
def batches(torch):
    """`batches(n)`: pairs of ids [b, 4], few of them frequent, and labels [b, 1]."""

    def make(n, *, size=8, seed=0, rows=ROWS):
        rng = np.random.default_rng(seed)
        for _ in range(n):
            ids = np.minimum(rng.zipf(1.4, (size, FIELDS)) - 1, rows - 1)
            yield torch.as_tensor(ids), torch.as_tensor(rng.random((size, 1)) < 0.3).float()

    return make


@pytest.fixture
def train(torch):
    """Make a step for each batch."""

    def run(model, optimizer, batches, schedule=None):
        loss_of = torch.nn.functional.binary_cross_entropy_with_logits
        for ids, labels in batches:
            optimizer.zero_grad()
            loss_of(model(ids), labels).backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()

    return run
