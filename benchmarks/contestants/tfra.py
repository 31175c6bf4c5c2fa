"""TensorFlow Recommenders-Addons' hash table, for `rows.py tables`: the same ids, one thread.

python -m contestants.tfra FILE.npz BATCH

It runs in an environment of its own. It reads the arrays `ids`, `known` and `zipf`, int64, and
prints a line of JSON with ids per second.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_recommenders_addons.dynamic_embedding as de


def rates(call: Callable[[Any], Any], ids: Any, batch: int) -> dict[str, Any]:
    """Ids per second, by the clock and by the process's CPU time."""
    clock, cpu = time.perf_counter(), time.process_time()
    for first in range(0, len(ids), batch):
        call(tf.constant(ids[first : first + batch].ravel()))
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    found = {"ids_per_second": ids.size / clock, "ids_per_cpu_second": ids.size / cpu}
    return {"n": ids.size, **{name: round(rate) for name, rate in found.items()}}


def main(file: str, batch: str) -> None:
    """Insert the ids of the file into a new table, and look up known ones."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    arrays, size = np.load(file), int(batch)
    table = de.CuckooHashTable(tf.int64, tf.int64, default_value=tf.constant([-1], tf.int64))
    table.insert(tf.constant([5], tf.int64), tf.constant([[5]], tf.int64))
    results = {
        "insert": rates(lambda x: table.insert(x, x[:, None]), arrays["ids"], size),
        "lookup": rates(table.lookup, arrays["known"], size),
        "zipf": rates(table.lookup, arrays["zipf"], size),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
