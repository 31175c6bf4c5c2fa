"""Start the workers of a stream on this machine: each runs the command that the user gave."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cowclip_merlin import workers
from cowclip_merlin.errors import InputError
from cowclip_merlin.launcher import LaunchSettings, launch
from cowclip_merlin.launcher.call import VARIABLE
from cowclip_merlin.tables.snapshot import numbers
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.workers.environment import cluster_of

_ONE = ("--workers", "1", "--restarts", "0")  # what a worker starts; the last options count


@dataclass(frozen=True)
class StreamRun:
    """What the launcher asks about the run of a stream; a `WorkerCall`.

    Attributes:
        out: the run folder.
    """

    device: ClassVar[str] = "cpu"
    saved: ClassVar[str] = "the newest snapshot"
    to_resume: ClassVar[str] = "repeat the command"

    out: str

    @property
    def resumes(self) -> bool:
        """Whether the workers go on from a snapshot."""
        return self.can_resume()

    def can_resume(self) -> bool:
        """Return whether the run folder has a snapshot."""
        return bool(numbers(Path(self.out) / "snapshots"))

    def again(self) -> StreamRun:
        """Return what to run after a failure: the same command goes on."""
        return self

    def to_json(self) -> str:
        """Return nothing: the words of the command say all."""
        return "{}"

    def with_absolute_paths(self) -> StreamRun:
        """Return the same: the workers have the working folder of the command."""
        return self


def start_workers(
    words: Sequence[str], processes: LaunchSettings, *, out: str, batch_size: int
) -> None:
    """Run a command in several processes, which find each other by `TF_CONFIG`.

    Args:
        words: of the command, behind `cowclip`.
        processes: how many workers to start on this machine.
        out: folder of the run.
        batch_size: events of a step.

    Raises:
        InputError: an input is wrong; the error names it in one line.
        WorkerLost: a worker failed, and no restart is left.
        Stopped: after SIGINT or SIGTERM; a snapshot is written first.
    """
    if processes.scheduler is not None:
        raise InputError(
            f"`scheduler` is {processes.scheduler}, but the workers of a stream run on this "
            "machine or under TF_CONFIG; use `workers`"
        )
    if (processes.workers or 1) > batch_size:
        raise InputError(
            f"`workers` is {processes.workers}, but a batch has {batch_size} events; use fewer"
        )
    command = [sys.executable, "-m", "cowclip_merlin", *words, *_ONE]
    launch(StreamRun(out), processes, command=command)


def was_started() -> bool:
    """Return whether `start_workers` has started this process, and says how it ended."""
    return VARIABLE in os.environ


def join_workers(seed: int) -> None:
    """Join the workers that `TF_CONFIG` or `srun` names, if any; before TensorFlow starts.

    Args:
        seed: of TensorFlow.
    """
    if cluster_of(os.environ):
        set_up_tensorflow(seed, "cpu")
        workers.join()
