"""Start the workers of a training on this machine."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing

from cowclip_merlin.launcher.call import TERMINAL, WorkerCall, worker_environment
from cowclip_merlin.launcher.child import Child
from cowclip_merlin.launcher.gpus import one_gpu_each, visible_gpus
from cowclip_merlin.launcher.outcome import Ended, Outcome
from cowclip_merlin.launcher.watch import Patience, watch
from cowclip_merlin.system.ports import free_ports

WORKER = ("-m", "cowclip_merlin.launcher.worker")
"""Arguments of Python that start a worker."""


class _LocalProcess:
    """A worker on this machine."""

    def __init__(self, rank: int, child: Child) -> None:
        self._rank, self._child = rank, child
        self.new_output, self.send = child.new_output, child.send

    def poll(self) -> Ended | None:
        """Return how it ended; None while it runs."""
        code = self._child.poll()
        if code is None:
            return None
        return Ended(self._rank, socket.gethostname(), code, self._child.tail() if code else "")


def run_locally(
    call: WorkerCall, *, workers: int, command: Sequence[str] | None, patience: Patience
) -> Outcome:
    """Run one attempt of a training on this machine; return how its workers ended.

    Args:
        call: the training.
        workers: number of processes.
        command: program and arguments of a worker; None: `cowclip_merlin.launcher.worker`.
        patience: how long the launcher waits.

    Raises:
        InputError: if there are fewer GPUs than workers.
    """
    visible = [visible_gpus(os.environ)] * workers
    gpus = one_gpu_each(visible, call.device, "this machine")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    with ExitStack() as stack:
        processes = []
        for rank in range(workers):
            environment = worker_environment(call, addresses, rank, gpus[rank])
            if rank == 0:
                environment |= _terminal()
            child = Child(command or [sys.executable, *WORKER], environment)
            stack.enter_context(closing(child))
            processes.append(_LocalProcess(rank, child))
        return watch(processes, patience)


def _terminal() -> dict[str, str]:
    """Return the variables that let worker 0 show its progress bar in our terminal."""
    if not sys.stderr.isatty():
        return {}
    return {TERMINAL: "1", "COLUMNS": str(os.get_terminal_size(sys.stderr.fileno()).columns)}
