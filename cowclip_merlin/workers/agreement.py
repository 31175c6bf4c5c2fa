"""Let workers agree: wait for each other, compare what they have, and fail together.

With one process, for which `workers` is None, these functions do nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError, WorkerLost
from cowclip_merlin.types import Array
from cowclip_merlin.workers.group import Workers


def arrays_of_all(workers: Workers | None, own: Array) -> list[Array]:
    """Return the arrays that the workers give here, by rank.

    Args:
        workers: this process and the others.
        own: numbers of 8 bytes, [n] with any n.
    """
    if workers is None:
        return [own]
    from cowclip_merlin.workers.collectives import gather_arrays

    bits = np.ascontiguousarray(own).view(np.int32).reshape(-1, 2)
    parts = gather_arrays(workers, bits, "arrays")
    return [part.reshape(-1).view(own.dtype) for part in parts]


def texts_of_all(workers: Workers | None, text: str) -> list[str]:
    """Return the texts that the workers give here, by rank."""
    codes = np.array([ord(letter) for letter in text], np.int64)
    return ["".join(map(chr, each)) for each in arrays_of_all(workers, codes)]


def numbers_of_all(workers: Workers | None, number: float) -> list[float]:
    """Return the numbers that the workers give here, float64, by rank."""
    if workers is None:
        return [number]
    tf = compat.tensorflow()
    from cowclip_merlin.workers.collectives import gather

    bits = tf.constant(np.array([number], np.float64).view(np.int32))
    with tf.device("CPU:0"):
        every = gather(workers, bits, "numbers", host=True).numpy()
    return np.ascontiguousarray(every).view(np.float64).tolist()


def wait_for_all(workers: Workers | None) -> None:
    """Wait until all workers are here."""
    numbers_of_all(workers, 0.0)


@contextmanager
def raising_together(workers: Workers | None) -> Iterator[None]:
    """Raise the error of any worker in the block on all workers, at the end of the block.

    Raises:
        InputError: another worker has failed; the message names it.
    """
    if workers is None:
        yield
        return
    own: Exception | None = None
    try:
        yield
    except Exception as error:
        own = error
    told = texts_of_all(workers, "" if own is None else f"{type(own).__name__}: {own}")
    if own is not None:
        raise own
    for rank, text in enumerate(told):
        if text:
            kind, _, message = text.partition(": ")
            words = message if kind == InputError.__name__ else text
            raise InputError(f"worker {rank} ({workers.addresses[rank]}): {words}")


@contextmanager
def refusing_together(workers: Workers | None) -> Iterator[None]:
    """Raise the InputError of any worker in the block on all workers, at the end of the block.

    Another error, such as that of a disk, ends its own worker, and says nothing about the input.

    Raises:
        InputError: another worker has refused the input.
    """
    own: InputError | None = None
    try:
        yield
    except InputError as error:
        own = error
    told = texts_of_all(workers, "" if own is None else str(own))
    if own is not None:
        raise own
    if refused := next(filter(None, told), None):
        raise InputError(refused)


def check_alike(workers: Workers | None, facts: Mapping[str, object]) -> None:
    """Check that all workers give the same facts.

    Args:
        workers: this process and the others.
        facts: plain values by name.

    Raises:
        InputError: on all workers, if a worker gives another value than worker 0.
    """
    if workers is None:
        return
    every = [json.loads(text) for text in texts_of_all(workers, json.dumps(dict(facts)))]
    for rank, each in enumerate(every):
        for name, value in every[0].items():
            if each.get(name) != value:
                raise InputError(
                    f"worker {rank} ({workers.addresses[rank]}) has {name} {each.get(name)}, "
                    f"worker 0 ({workers.addresses[0]}) has {value}; all workers need the same"
                )


_TASK = re.compile(r"/job:worker/(?:replica:0/)?task:(\d+)")


@contextmanager
def naming_lost_workers(workers: Workers | None) -> Iterator[None]:
    """Turn the errors of TensorFlow's exchange into one that names the worker that was lost.

    Raises:
        WorkerLost: another worker has ended, or does not answer.
    """
    if workers is None:
        yield
        return
    errors = compat.tensorflow().errors
    try:
        yield
    except (
        errors.UnavailableError,
        errors.AbortedError,
        errors.CancelledError,
        errors.DeadlineExceededError,
        errors.InternalError,
    ) as error:
        raise WorkerLost(_message(workers, str(error))) from error


def _message(workers: Workers, text: str) -> str:
    others = {int(number) for number in _TASK.findall(text)} - {workers.rank}
    named = min((n for n in others if n < workers.size), default=None)
    who = "another worker" if named is None else f"worker {named} ({workers.addresses[named]})"
    return f"{workers}: lost {who}; see its messages, and go on with `resume`"
