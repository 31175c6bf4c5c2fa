"""Run a training with several workers; start all of them again after one is lost."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin.choices import contributed
from cowclip_merlin.errors import InputError, WorkerLost
from cowclip_merlin.launcher.call import LaunchSettings, WorkerCall
from cowclip_merlin.launcher.local import run_locally
from cowclip_merlin.launcher.watch import Outcome, Patience
from cowclip_merlin.system.folders import NewFiles, lock_folder
from cowclip_merlin.workers.environment import number_of_tasks

_PORT_TRIES = 3
_DASK_WAIT = 60.0
"""Seconds that a lost Dask worker has to come back before a restart."""


def launch(
    call: WorkerCall,
    settings: LaunchSettings,
    *,
    command: Sequence[str] | None = None,
    patience: Patience | None = None,
) -> None:
    """Train with several worker processes, and wait until they have ended.

    Args:
        call: the training.
        settings: the processes; without a scheduler they run on this machine.
        command: program and arguments of a worker; None: `cowclip_merlin.launcher.worker`.
        patience: how long to wait for the others after one has ended.

    Raises:
        InputError: if an input is wrong; the error names it in one line.
        WorkerLost: if a worker failed and no restart is left.
        Stopped: after SIGINT or SIGTERM; a checkpoint is written first.
    """
    _refuse_inside_worker(os.environ)
    place, restarts = _Place(settings, command, patience or Patience()), settings.restarts
    new, first = NewFiles.since_now(Path(call.out)), call
    for attempt in range(restarts + 1):
        outcome = place.run(call, again=attempt > 0)
        error = outcome.error(call)
        if error is None:
            return
        if not isinstance(error, WorkerLost):
            raise error
        _show_traceback(outcome)
        _remove_without_checkpoint(new, call)
        if outcome.signal_number or attempt == restarts:
            raise WorkerLost(f"{error}; {_remedy(call, restarts)}")
        call = first.again()
        print(f"cowclip: {error}; {_start(call, attempt + 1, restarts)}", file=sys.stderr)


def _refuse_inside_worker(environment: Mapping[str, str]) -> None:
    """Refuse to start workers in a process that another launcher has started as one."""
    try:
        cluster = json.loads(environment.get("TF_CONFIG") or "{}").get("cluster", {})
        count = sum(len(addresses) for addresses in cluster.values())
    except (ValueError, AttributeError, TypeError):
        raise InputError("TF_CONFIG is damaged; unset it, or omit `workers`") from None
    source = "TF_CONFIG"
    if count < 2:
        count, source = number_of_tasks(environment), "Slurm"
    if count > 1:
        raise InputError(
            f"`workers`: {source} has already started {count} workers, and this is one of them; "
            "omit `workers` and `scheduler`"
        )


@dataclass(frozen=True)
class _Place:
    """Where the workers run."""

    settings: LaunchSettings
    command: Sequence[str] | None
    patience: Patience

    def run(self, call: WorkerCall, *, again: bool) -> Outcome:
        """Run one attempt; start it again if another program took a port."""
        for _ in range(_PORT_TRIES):
            outcome = self._run(call, again)
            if not outcome.port_was_taken:
                break
            print("cowclip: another program took a port; starting again", file=sys.stderr)
        return outcome

    def _run(self, call: WorkerCall, again: bool) -> Outcome:
        if self.settings.scheduler is None:
            return run_locally(
                call,
                workers=self.settings.workers or 1,
                command=self.command,
                patience=self.patience,
            )
        return contributed("run_on_dask")(
            call,
            scheduler=self.settings.scheduler,
            workers=self.settings.workers,
            command=self.command,
            patience=self.patience,
            wait=_DASK_WAIT if again else 0.0,
        )


def _show_traceback(outcome: Outcome) -> None:
    """Show where a worker failed whose output nobody has seen; worker 0 has shown it itself."""
    failure = outcome.first_failure
    if failure is not None and failure.rank > 0 and failure.traceback:
        print(failure.traceback.rstrip(), file=sys.stderr)


def _remove_without_checkpoint(new: NewFiles, call: WorkerCall) -> None:
    """Remove the files of a run that cannot be resumed, unless another process uses them."""
    if call.can_resume() or not new.folder.is_dir():
        return
    with suppress(InputError), lock_folder(new.folder, "in use"):
        new.remove()


def _remedy(call: WorkerCall, restarts: int) -> str:
    """Return what the user can do after the last attempt."""
    done = f"after {restarts} restarts; " if restarts else ""
    again = call.to_resume if call.can_resume() else "train again"
    return f"{done}{again}, or let `restarts` {restarts + 1} do it"


def _start(call: WorkerCall, number: int, restarts: int) -> str:
    """Say what a restart does."""
    place = call.saved if call.resumes else "the beginning"
    return f"restart {number} of {restarts} from {place}"
