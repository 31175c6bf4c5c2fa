"""TensorFlow Recommenders-Addons' hash table, for `rows.py tables`: the same ids, one thread.

Runs in an environment of its own: `pip install tensorflow-recommenders-addons tensorflow==2.16.2`.
It reads the arrays `ids`, `known` and `zipf`, int64, of a .npz file, and prints a line of JSON with
millions of ids per second.
"""

from __future__ import annotations

import argparse
import json
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
    return {
        "n": ids.size,
        "ids_per_second": round(ids.size / clock),
        "ids_per_cpu_second": round(ids.size / cpu),
    }


def main() -> None:
    """Insert the ids of the file into a new table, and look up known ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--batch", type=int, required=True)
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    arrays = np.load(args.file)
    table = de.CuckooHashTable(tf.int64, tf.int64, default_value=tf.constant([-1], tf.int64))
    table.insert(tf.constant([5], tf.int64), tf.constant([[5]], tf.int64))
    results = {
        "insert": rates(lambda x: table.insert(x, x[:, None]), arrays["ids"], args.batch),
        "lookup": rates(table.lookup, arrays["known"], args.batch),
        "zipf": rates(table.lookup, arrays["zipf"], args.batch),
    }
    version = __import__("tensorflow_recommenders_addons").__version__
    print(json.dumps({"versions": [version, tf.__version__], "results": results}))


if __name__ == "__main__":
    main()
