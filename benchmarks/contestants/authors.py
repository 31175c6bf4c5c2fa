"""Run the code of the paper's authors for `peers.py`: model, clip and optimizers of a checkout.

Their logging, per-batch AUC and distribution strategy are omitted, which only makes it faster.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np

from contestants.job import Job, names, read_job, report
from cowclip_merlin.types import Array, KerasModel, KerasOptimizer


def load(checkout: Path, job: Job) -> ModuleType:
    """Import their training script with the settings of this job."""
    os.chdir(checkout)
    sys.path.insert(0, str(checkout))
    import train

    sys.argv = [
        "train.py",
        f"--seed={job.seed}",
        f"--bs={job.batch}",
        f"--epoch={job.epochs}",
        f"--sparse_embed_dim={job.embedding_dim}",
        f"--lr={job.lr}",
        f"--lr_embed={job.embedding_lr}",
        f"--l2={job.l2}",
        f"--clip={job.r}",
        f"--bound={job.zeta}",
        f"--init_stddev={job.init_std}",
        "--log_freq=1000000000",
    ]
    train.args = train.parseargs()
    return train


def build(train: ModuleType, job: Job, rows: Mapping[str, Array]) -> KerasModel:
    """Build their DeepFM with their training step."""
    field_rows = rows["field_rows"].tolist()
    ids, numbers = names(len(field_rows), "C"), names(rows["continuous"].shape[1], "I")
    largest = {name: np.array([size - 1]) for name, size in zip(ids, field_rows)}
    _, deep, linear = train.get_feature_column(largest, ids, numbers)
    return train.DeepFM(
        linear,
        deep,
        dnn_hidden_units=job.widths,
        dnn_dropout=0,
        l2_reg_linear=job.l2,
        l2_reg_embedding=job.l2,
        keras_model=train.CustomModel,
        seed=job.seed,
    )


def optimizer(train: ModuleType, model: KerasModel, job: Job, rows: int) -> KerasOptimizer:
    """Make one Adam for the embeddings, and one with a warm-up for the rest."""
    tf, warm_up = train.tf, round(job.warmup_epochs * -(-rows // job.batch))
    rate = job.lr
    if warm_up:
        rate = tf.keras.optimizers.schedules.PolynomialDecay(0.0, warm_up, job.lr, power=1)
    tables = [layer for layer in model.layers if "sparse_emb_" in layer.name]
    others = [layer for layer in model.layers if "sparse_emb_" not in layer.name]
    adam = tf.keras.optimizers.Adam
    return train.tfa.optimizers.MultiOptimizer(
        [(adam(job.embedding_lr), tables), (adam(rate), others)]
    )


def main() -> None:
    """Train once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True)
    job, args = read_job(parser)
    train = load(args.checkout, job)
    from contestants.keras_fit import fit, score

    train.tf.random.set_seed(job.seed)
    with np.load(job.rows_file) as rows:
        model = build(train, job, rows)
        model.compile(optimizer(train, model, job, len(rows["label"])), "binary_crossentropy")
        rate = fit(model, rows, job)
        versions = {"tensorflow": train.tf.__version__, "numpy": np.__version__}
        report(job, score(model, rows), rate, versions)


if __name__ == "__main__":
    main()
