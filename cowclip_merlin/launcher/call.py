"""A call of `train` as plain values, and the processes and GPUs that it needs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Protocol

from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.training.checkpoint import has_checkpoint
from cowclip_merlin.training.run_settings import RunOptions
from cowclip_merlin.types import Json

VARIABLE = "COWCLIP_TRAIN_CALL"
"""Environment variable with the call of a worker process."""

TERMINAL = "COWCLIP_TERMINAL"
"""Environment variable: whether the standard error of worker 0 ends in a terminal."""


class WorkerCall(Protocol):
    """What each worker process of a launch does."""

    @property
    def out(self) -> str:
        """The run folder."""

    @property
    def device(self) -> str:
        """Device of the workers: "auto", "cpu" or "gpu"."""

    @property
    def resumes(self) -> bool:
        """Whether the call goes on from what the folder holds."""

    saved: ClassVar[str]
    """What a run goes on from, for messages."""

    to_resume: ClassVar[str]
    """What the user does to go on, for messages."""

    def can_resume(self) -> bool:
        """Return whether the run folder holds something to go on from."""

    def again(self) -> WorkerCall:
        """Return the call that goes on after a failure, if it can."""

    def to_json(self) -> str:
        """Return the call as JSON, for the worker process."""

    def with_absolute_paths(self) -> WorkerCall:
        """Return the call for processes with another working folder."""


@dataclass(frozen=True, kw_only=True)
class TrainCall:
    """The arguments of `cowclip_merlin.training.train`, with paths as text.

    Attributes:
        data: the prepared folder.
        settings: `RunSettings.as_dict()`.
        out: the run folder.
        options: how each process runs it.
    """

    saved: ClassVar[str] = "the last checkpoint"
    to_resume: ClassVar[str] = "repeat the command with `resume`"

    data: str
    settings: Mapping[str, Json]
    out: str
    options: RunOptions = field(default_factory=RunOptions)

    @property
    def device(self) -> str:
        """Device of the workers: "auto", "cpu" or "gpu"."""
        return self.options.device

    @property
    def resumes(self) -> bool:
        """Whether the call goes on from a checkpoint."""
        return self.options.resume

    def can_resume(self) -> bool:
        """Return whether the run folder has a checkpoint."""
        return has_checkpoint(Path(self.out))

    def again(self) -> TrainCall:
        """Return the call that goes on from the last checkpoint, if there is one."""
        resume = self.options.resume or self.can_resume()
        return replace(self, options=replace(self.options, resume=resume))

    def to_json(self) -> str:
        """Return the call as JSON.

        >>> call = TrainCall(data="DATA", settings={"model": "dcn", "mlp": [8]}, out="RUN")
        >>> TrainCall.from_json(call.to_json()) == call
        True
        """
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrainCall:
        """Build a call from the text that `to_json` returned."""
        values = json.loads(text)
        return cls(**values | {"options": RunOptions(**values["options"])})

    def with_absolute_paths(self) -> TrainCall:
        """Return the call for processes with another working folder."""
        return replace(self, data=os.path.abspath(self.data), out=os.path.abspath(self.out))


@dataclass(frozen=True, kw_only=True)
class LaunchSettings(Settings):
    """The processes of one training.

    Raises:
        InputError: if a number is out of range, or restarts are of no use.
    """

    workers: int | None = option(
        None,
        "processes that share every batch, each with a GPU of its own if there are GPUs",
        shown="1, or with --scheduler all of its workers",
        at_least=1,
    )
    scheduler: str | None = option(
        None, "running Dask scheduler whose workers train", metavar="ADDRESS"
    )
    restarts: int = option(
        0,
        "how often to restart all workers from the last checkpoint after one fails",
        metavar="K",
        at_least=0,
    )

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.restarts and not self.needed:
            raise InputError(
                f"`restarts` is {self.restarts}, but there is one process only; add `workers` with "
                "at least 2, or `scheduler`"
            )

    @property
    def needed(self) -> bool:
        """Whether other processes train, not the one that calls `train`."""
        return self.workers not in (None, 1) or self.scheduler is not None


def worker_environment(
    call: WorkerCall, addresses: Sequence[str], rank: int, gpu: str
) -> dict[str, str]:
    """Return the variables that make a process one worker of a training.

    Args:
        call: the training.
        addresses: "host:port" of every worker, by rank.
        rank: number of this worker.
        gpu: the device that it may use, as in `CUDA_VISIBLE_DEVICES`; "": none.
    """
    cluster = {
        "cluster": {"worker": list(addresses)},
        "task": {"type": "worker", "index": rank},
    }
    return {
        "TF_CONFIG": json.dumps(cluster),
        "CUDA_VISIBLE_DEVICES": gpu,
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8:backslashreplace",  # as the launcher reads the output
        # As with the command `cowclip`, a file in the working folder must not hide a module.
        "PYTHONSAFEPATH": "1",
        VARIABLE: call.to_json(),
    }


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that CUDA programs may use here, as `CUDA_VISIBLE_DEVICES` names them.

    Args:
        environment: variables such as those of `os.environ`.
    """
    count = compat.gpu_count()
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None or count == 0:
        return [str(index) for index in range(count)]
    names = [name.strip() for name in named.split(",")]
    # CUDA ignores everything from the first invalid name on.
    invalid = next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))
    return names[:invalid]


def one_gpu_each(visible: Sequence[Sequence[str]], device: str, host: str) -> list[str]:
    """Choose a GPU for every worker on one machine; "" where there is none to use.

    Args:
        visible: for each worker, the GPUs that its starter sees. A dask-cuda worker sees all of
            them, its own first.
        device: "auto", "cpu" or "gpu".
        host: name of the machine, for the error.

    Raises:
        InputError: if there are fewer GPUs than workers.

    >>> one_gpu_each([["0", "1"], ["0", "1"]], "auto", "this machine")
    ['0', '1']
    >>> one_gpu_each([["2", "3", "2"], ["3", "2"]], "gpu", "node1")
    ['2', '3']
    >>> one_gpu_each([[], []], "auto", "this machine")
    ['', '']
    """
    if device == "cpu" or not any(visible):
        return [""] * len(visible)
    first = [names[0] for names in visible if names]
    if len(set(first)) == len(visible):
        return first
    every = list(dict.fromkeys(name for names in visible for name in names))
    if len(every) < len(visible):
        raise InputError(
            f"`workers`: {host} has {len(every)} visible GPUs for {len(visible)} workers, and each "
            "needs its own; use fewer workers, or `device` cpu"
        )
    return every[: len(visible)]
