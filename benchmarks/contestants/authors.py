"""Run the code of the paper's authors for `peers.py`: model, clip and optimizers of a checkout.

Their logging, per-batch AUC and distribution strategy are omitted, which only makes it faster.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import numpy as np

from contestants.job import Job, Rows, read_job, read_rows


def build(train: Any, job: Job, rows: Rows) -> Any:
    """Compile their DeepFM with their step: an Adam for the embeddings, one for the rest."""
    tf, adam = train.tf, train.tf.keras.optimizers.Adam
    ids, numbers = rows.names()
    largest = {name: np.array([size - 1]) for name, size in zip(ids, rows.field_rows.tolist())}
    _, deep, linear = train.get_feature_column(largest, ids, numbers)
    penalties = {"l2_reg_linear": job.l2, "l2_reg_embedding": job.l2}
    known = {"dnn_hidden_units": job.widths, "dnn_dropout": 0, "seed": job.seed, **penalties}
    model = train.DeepFM(linear, deep, keras_model=train.CustomModel, **known)
    warm_up = round(job.warmup_epochs * -(-len(rows.label) // job.batch))
    schedule = tf.keras.optimizers.schedules.PolynomialDecay
    rate = schedule(0.0, warm_up, job.lr, power=1) if warm_up else job.lr
    tables = [layer for layer in model.layers if "sparse_emb_" in layer.name]
    others = [layer for layer in model.layers if "sparse_emb_" not in layer.name]
    both = [(adam(job.embedding_lr), tables), (adam(rate), others)]
    model.compile(train.tfa.optimizers.MultiOptimizer(both), "binary_crossentropy")
    return model


def main() -> None:
    """Train once, by their script with the settings of the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", required=True)
    job, args = read_job(parser)
    os.chdir(args.checkout)
    sys.path.insert(0, args.checkout)
    import train

    options = {
        "seed": job.seed, "bs": job.batch, "epoch": job.epochs, "lr": job.lr, "l2": job.l2,
        "sparse_embed_dim": job.embedding_dim, "lr_embed": job.embedding_lr, "clip": job.r,
        "bound": job.zeta, "init_stddev": job.init_std, "log_freq": 10**9,
    }  # fmt: skip
    sys.argv = ["train.py", *(f"--{name}={value}" for name, value in options.items())]
    train.args = train.parseargs()
    from contestants.keras_fit import fit_and_report

    train.tf.random.set_seed(job.seed)
    rows = read_rows(job.rows_file)
    fit_and_report(build(train, job, rows[0]), rows, job)


if __name__ == "__main__":
    main()
