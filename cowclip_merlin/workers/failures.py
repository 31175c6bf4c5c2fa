"""Name the worker that was lost, when an exchange fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from cowclip_merlin import compat
from cowclip_merlin.errors import WorkerLost
from cowclip_merlin.workers.group import Workers

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
