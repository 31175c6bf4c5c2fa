"""HugeCTR's DeepFM, for `peers.py`, on a folder of `cowclip prepare --hugectr`.

It has never run, because HugeCTR needs a GPU. Only the calls were checked, against the signatures
in the source of 23.12 and 24.06 (tests/benchmarks/hugectr_fake.py). It is meant for the images
nvcr.io/nvidia/merlin/merlin-hugectr:23.12 and 24.06: python3 -m contestants.hugectr UPDATE JOB

UPDATE says which rows Adam updates (HugeCTR/src/optimizers/sparse_optimizer.cu):

Global  all rows at every step, like `update="dense"`
Local   the rows of the batch, like `update="lazy"`

The arithmetic is float32 without TF32. HugeCTR reads the rows in the order of the files and starts
the embeddings of a slot with n rows from the uniform distribution on +-sqrt(1 / n)
(HugeCTR/src/embeddings/init_embedding_functor.cu), the first-order weights as well. It has no
CowClip.

The layers have the weights of this project's DeepFM with `continuous="deep"`. The first-order
weight of an id is one more column of its embedding, like in HugeCTR's sample
`samples/deepfm/deepfm_parquet.py`. HugeCTR copies a tensor that several layers read
(`Model::graph_analysis` in `HugeCTR/src/pybind/model_compile.cpp`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hugectr
import numpy as np
import pyarrow.parquet as pq
from mpi4py import MPI  # noqa: F401 - HugeCTR's samples import it, which initializes MPI

from contestants.job import SCORING_BATCH, Clock, Job, read_job, report

LABEL, LOGIT = "label", "logit"  # the tensors that are copied


def read_folder(folder: Path) -> dict[str, Any]:
    """Enter the folder, because its lists name files relative to it; read `hugectr.json`."""
    os.chdir(folder)
    return json.loads(Path("hugectr.json").read_text(encoding="utf-8"))


def files_of(source: str) -> list[str]:
    """Return the names in a file list."""
    return Path(source).read_text(encoding="utf-8").split("\n")[1:-1]


def rows_of(source: str) -> int:
    """Count the rows of a file list."""
    return sum(pq.read_metadata(name).num_rows for name in files_of(source))


def build(data: Mapping[str, Any], job: Job, *, update: str) -> Any:
    """Build and compile a DeepFM that reads each split once, in order, on the first GPU."""
    solver = hugectr.CreateSolver(
        model_name="deepfm",
        seed=job.seed,
        lr=job.lr,
        batchsize=job.batch,
        batchsize_eval=SCORING_BATCH,
        max_eval_batches=-(-rows_of(data["eval_source"]) // SCORING_BATCH),
        vvgpu=[[0]],
        repeat_dataset=False,
        i64_input_key=True,
        drop_incomplete_batch=False,
    )
    reader = hugectr.DataReaderParams(
        data_reader_type=hugectr.DataReaderType_t.Parquet,
        source=[data["train_source"]],
        eval_source=data["eval_source"],
        check_type=hugectr.Check_t.Non,
        slot_size_array=data["slot_size_array"],
    )
    optimizer = hugectr.CreateOptimizer(
        optimizer_type=hugectr.Optimizer_t.Adam,
        update_type=getattr(hugectr.Update_t, update),
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-7,
    )
    model = hugectr.Model(solver=solver, reader_params=reader, opt_params=optimizer)
    slots = len(data["slot_names"])
    ids = hugectr.DataReaderSparseParam(
        top_name="ids", nnz_per_slot=data["nnz_per_slot"], is_fixed_length=False, slot_num=slots
    )
    model.add(
        hugectr.Input(
            label_dim=data["label_dim"],
            label_name=LABEL,
            dense_dim=data["dense_dim"],
            dense_name="x",
            data_reader_sparse_param_array=[ids],
        )
    )
    model.add(
        hugectr.SparseEmbedding(
            embedding_type=hugectr.Embedding_t.LocalizedSlotSparseEmbeddingHash,
            embedding_vec_size=job.embedding_dim + 1,
            combiner="sum",  # of one value
            sparse_embedding_name="embedding",
            bottom_name="ids",
            slot_size_array=data["slot_size_array"],
            optimizer=optimizer,
        )
    )
    _add_layers(model, job, slots)
    model.compile()
    return model


def _add_layers(model: Any, job: Job, slots: int) -> None:
    """Add the layers and the loss, as in docs/reference.md."""
    dim, zero = job.embedding_dim, hugectr.Initializer_t.Zero

    def layer(kind: str, bottoms: str, tops: str, **options: Any) -> None:
        names = {"bottom_names": bottoms.split(), "top_names": tops.split()}
        kinds = {"layer_type": getattr(hugectr.Layer_t, kind)}
        model.add(hugectr.DenseLayer(**kinds, **names, **options))

    def linear(bottom: str, top: str, width: int) -> None:
        # HugeCTR's default would start the bias at random.
        layer("InnerProduct", bottom, top, num_output=width, bias_init_type=zero)

    # Split the embeddings into the vectors and the sum of the first-order weights.
    layer("Reshape", "embedding", "table_rows", leading_dim=dim + 1)
    layer("Slice", "table_rows", "vectors weights", ranges=[(0, dim), (dim, dim + 1)])
    layer("Reshape", "vectors", "v", leading_dim=slots * dim)
    layer("Reshape", "weights", "weights_by_slot", leading_dim=slots)
    layer("ReduceSum", "weights_by_slot", "first_order", axis=1)
    layer("Concat", "v x", "hidden0")
    for number, width in enumerate(job.widths, 1):
        linear(f"hidden{number - 1}", f"sums{number}", width)
        layer("ReLU", f"sums{number}", f"hidden{number}")
    linear(f"hidden{len(job.widths)}", "deep", 1)
    layer("FmOrder2", "v", "pairs_by_column", out_dim=dim)
    layer("ReduceSum", "pairs_by_column", "pairs", axis=1)
    layer("Add", "deep first_order pairs", LOGIT)
    layer("BinaryCrossEntropyLoss", f"{LOGIT} {LABEL}", "loss")


def train(model: Any, data: Mapping[str, Any], job: Job) -> float:
    """Train step by step, as `Model.fit` does; return rows per second."""
    rows = rows_of(data["train_source"])
    clock = Clock(model.get_current_loss)  # waits for the GPU: Network::get_loss synchronizes
    schedule, reader = model.get_learning_rate_scheduler(), model.get_data_reader_train()
    for _ in range(job.epochs):
        reader.set_source(data["train_source"])
        left = rows
        while _step(model, schedule):
            clock.tick(min(job.batch, left))
            left -= job.batch
        if not -job.batch < left <= 0:
            raise RuntimeError(f"HugeCTR read another number of rows than the {rows} in the files")
    return clock.rate()


def _step(model: Any, schedule: Any) -> bool:
    model.set_learning_rate(schedule.get_next())
    return model.train()  # False at the end of the files


def score(model: Any, data: Mapping[str, Any]) -> np.ndarray:
    """Return the click probabilities of the held-out rows, in the order of the files.

    In evaluation, HugeCTR's loss replaces each logit by its probability in the same tensor
    (`BinaryCrossEntropy_Kernel` in HugeCTR/src/loss.cu).
    """
    column = data["label_name"]
    tables = [pq.read_table(name, columns=[column]) for name in files_of(data["eval_source"])]
    label = np.concatenate([table[column].to_numpy() for table in tables])
    model.get_data_reader_eval().set_source(data["eval_source"])
    batches = []
    for first in range(0, len(label), SCORING_BATCH):
        if not model.eval():
            raise RuntimeError(f"HugeCTR scored {first} of {len(label)} rows")
        model.get_current_loss()  # waits for the GPU; a tensor's copy alone does not
        batches.append([_tensor(model, name, len(label) - first) for name in (LOGIT, LABEL)])
    probability, seen = (np.concatenate(parts) for parts in zip(*batches))
    if not np.array_equal(seen, label):
        raise RuntimeError("HugeCTR returned the rows in another order than the files")
    if ((probability < 0) | (probability > 1)).any():
        raise RuntimeError("HugeCTR returned logits, not probabilities")
    return probability


def _tensor(model: Any, name: str, rows: int) -> np.ndarray:
    """Copy a tensor of the last evaluated batch; the last batch of the files is shorter."""
    whole = model.check_out_tensor(tensor_name=name, tensor_type=hugectr.Tensor_t.Evaluate)
    return np.array(whole).ravel()[:rows]


def main() -> None:
    """Train once."""
    _, update, text = sys.argv
    job = read_job(text)
    data = read_folder(job.rows_file)
    model = build(data, job, update=update)
    rate = train(model, data, job)
    report(job, score(model, data), rate, hugectr=hugectr.__version__)


if __name__ == "__main__":
    main()
