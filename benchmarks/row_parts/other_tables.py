"""The same ids in the tables of other packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cowclip_merlin.errors import InputError
from row_parts.id_timing import Result, in_batches, speed


def tfra_speeds(python: str, size: int, *, batch: int, **arrays: np.ndarray) -> list[Result]:
    """The same ids in the table of TensorFlow Recommenders-Addons, in a process of its own.

    Args:
        python: interpreter that has the package.
        size: ids in the table.
        batch: events of a batch.
        arrays: ids to insert, and known ones to look up; see `contestants.tfra`.

    Raises:
        InputError: its process failed.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder) / "ids.npz"
        np.savez(file, **arrays)
        done = subprocess.run(
            [
                Path(shutil.which(python)).absolute(),
                *("-m", "contestants.tfra", str(file), "--batch", str(batch)),
            ],
            cwd=Path(__file__).parents[1],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise InputError(f"--tfra-python failed: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])["results"]
    return [{"what": f"tfra {what}", "ids": size} | each for what, each in found.items()]


def dense_speeds(size: int, ids: np.ndarray, known: np.ndarray, batch: int) -> list[Result]:
    """The same ids in TensorFlow's own hash table."""
    from cowclip_merlin import compat

    tf = compat.tensorflow()
    table = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.int64, default_value=-1, empty_key=-1, deleted_key=-2
    )
    table.insert(tf.constant([5], tf.int64), tf.constant([5], tf.int64))

    def insert(x: np.ndarray) -> None:
        table.insert(tf.constant(x.ravel()), tf.constant(x.ravel()))

    def find(x: np.ndarray) -> None:
        table.lookup(tf.constant(x.ravel()))

    return [
        speed("dense insert", size, ids.size, lambda: in_batches(insert, ids, batch)),
        speed("dense lookup", size, known.size, lambda: in_batches(find, known, batch)),
    ]
