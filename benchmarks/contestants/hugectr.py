"""HugeCTR's W&D, DeepFM or DCN, for `peers.py`, on a folder of `cowclip prepare --hugectr`.

It has never run, because HugeCTR needs a GPU. Only the calls were checked, against the signatures
in the source of 23.12 and 24.06 (tests/benchmarks/hugectr_fake.py). It is meant for the images
nvcr.io/nvidia/merlin/merlin-hugectr:23.12 and 24.06:

    cd benchmarks
    python3 -m contestants.hugectr --rows-file DATA --predictions FILE.npy --batch 8192 --epochs 1
        --lr 0.001 --embedding-dim 10 --mlp 400,400,400 --seed 1234 --model deepfm --update Local

`--update` says which rows Adam updates (HugeCTR/src/optimizers/sparse_optimizer.cu):

Global      all rows at every step, like `update="dense"`
Local       the rows of the batch, like `update="lazy"`
LazyGlobal  the rows of the batch; a row first gets the steps that it missed, approximately

The arithmetic is float32 without TF32. HugeCTR reads the rows in the order of the files and starts
the embeddings of a slot with n rows from the uniform distribution on +-sqrt(1 / n)
(HugeCTR/src/embeddings/init_embedding_functor.cu), the first-order weights as well. It has no
CowClip, and options for it have no effect; nor has `--init-std`.

Columns with several values per row are slots with up to `nnz_per_slot` keys. `--combiner` is for
all of them, since they share one `SparseEmbedding`; HugeCTR has no sqrtn.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import hugectr
import numpy as np
import pyarrow.parquet as pq
from mpi4py import MPI  # noqa: F401 - HugeCTR's samples import it, which initializes MPI

from contestants.hugectr_layers import LABEL, LOGIT, MODELS, add_layers
from contestants.job import SCORING_BATCH, Clock, Job, read_job, report

UPDATES = ("Local", "Global", "LazyGlobal")
COMBINERS = ("mean", "sum")
UNUSED = dict.fromkeys(("embedding_lr", "l2", "r", "zeta", "warmup_epochs", "init_std"), 0.0)


def read_folder(folder: Path) -> dict[str, Any]:
    """Enter a prepared folder, because its lists name files relative to it; read `hugectr.json`."""
    if not (folder / "hugectr.json").is_file():
        raise SystemExit(f"{folder}: has no hugectr.json; make it with cowclip prepare --hugectr")
    os.chdir(folder)
    data = json.loads(Path("hugectr.json").read_text(encoding="utf-8"))
    for source in ("train_source", "eval_source"):
        if data[source] is None:
            raise SystemExit(f"{folder}: has no rows in {source}; prepare it with a test split")
    if not data["dense_dim"]:
        raise SystemExit(f"{folder}: has no continuous columns; these models need some")
    return data


def files_of(source: str) -> list[str]:
    """Return the names in a file list."""
    return Path(source).read_text(encoding="utf-8").split("\n")[1:-1]


def rows_of(source: str) -> int:
    """Count the rows of a file list."""
    return sum(pq.read_metadata(name).num_rows for name in files_of(source))


def build(
    data: Mapping[str, Any], job: Job, *, name: str, update: str, combiner: str = "mean"
) -> Any:
    """Build and compile a model that reads each split once, in order, on the first GPU."""
    solver = hugectr.CreateSolver(
        model_name=name,
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
    add_layers(model, data, job, name=name, optimizer=optimizer, combiner=combiner)
    model.compile()
    return model


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

    Raises:
        RuntimeError: if HugeCTR's labels are not those of the files, row by row, or if a value is
            no probability.
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="deepfm")
    parser.add_argument("--update", choices=UPDATES, default=UPDATES[0])
    parser.add_argument("--combiner", choices=COMBINERS, default=COMBINERS[0])
    job, args = read_job(parser, **UNUSED)
    job = replace(job, predictions=job.predictions.absolute())
    data = read_folder(job.rows_file)
    model = build(data, job, name=args.model, update=args.update, combiner=args.combiner)
    rate = train(model, data, job)
    report(job, score(model, data), rate, {"hugectr": hugectr.__version__})


if __name__ == "__main__":
    main()
