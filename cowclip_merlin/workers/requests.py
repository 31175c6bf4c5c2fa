"""Ask the workers that have them for the rows of ids, on the host, before a step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.types import Array
from cowclip_merlin.workers.collectives import all_to_all, gather, padded_size
from cowclip_merlin.workers.group import Workers


class Asked(NamedTuple):
    """What the workers have asked for.

    Attributes:
        received: what was sent to this worker, by rank of the sender, int64 [m, k].
        places: place of each of them in the answers, [N, size], as one number, int32 [m].
        sent: place in the answers that this worker gets of each of its own questions, int32 [n].
        size: answers for one worker, with padding, int32.
        step: number of that size, int32.
    """

    received: Array
    places: Array
    sent: Array
    size: Array
    step: Array


def ask(workers: Workers, questions: Array, owners: Array) -> Asked:
    """Send numbers to the workers that own them, and receive those of this worker.

    Args:
        workers: this process and the others.
        questions: int64 [n, k].
        owners: rank of the worker that gets each of them, int64 [n].
    """
    tf, width = compat.tensorflow(), 2 * questions.shape[1]
    order = np.argsort(owners, kind="stable")
    sends = np.bincount(owners, minlength=workers.size)
    with tf.device("CPU:0"):
        counts = tf.constant(sends, tf.int32)
        every = gather(workers, counts, "counts of requests", host=True).numpy()
        every = every.reshape(workers.size, workers.size)  # [from, to]
        size, step = (int(x) for x in padded_size(int(every.max())))
        first = np.cumsum(sends) - sends
        place = owners[order] * size + np.arange(len(owners)) - first[owners[order]]
        bits = np.zeros((workers.size * size, width), np.int32)
        bits[place] = np.ascontiguousarray(questions[order]).view(np.int32)
        bits = tf.constant(bits.reshape(workers.size, size, width))
        answered = all_to_all(workers, bits, step, "requests", host=True).numpy()
    here = np.flatnonzero((np.arange(size) < every[:, workers.rank, None]).reshape(-1))
    received = np.ascontiguousarray(answered.reshape(-1, width)[here]).view(np.int64)
    sent = np.empty(len(owners), np.int32)
    sent[order] = place
    return Asked(received, here.astype(np.int32), sent, np.int32(size), np.int32(step))
