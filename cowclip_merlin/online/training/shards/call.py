"""A call of `train_stream` as plain values, and the worker processes that make it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

from cowclip_merlin import workers
from cowclip_merlin.launcher.call import VARIABLE
from cowclip_merlin.launcher.worker import exit_code_of
from cowclip_merlin.online.report import MonitoringSettings
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.tables.snapshot import numbers
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import Json


@dataclass(frozen=True, kw_only=True)
class StreamCall:
    """The arguments of `train_stream`; a `WorkerCall` of the launcher.

    Attributes:
        events: the log to read.
        features: features file.
        settings: `OnlineSettings.as_dict()`.
        stream: values of `StreamSettings`.
        out: the run folder.
        servers: the log to write; None for none.
        start: a run and its prepared folder to start from; None for none.
        monitoring: values of `MonitoringSettings`.
    """

    saved: ClassVar[str] = "the newest snapshot"
    to_resume: ClassVar[str] = "repeat the command"

    events: str
    features: str
    settings: Mapping[str, Json]
    stream: Mapping[str, Json]
    out: str
    servers: str | None = None
    start: tuple[str, str] | None = None
    monitoring: Mapping[str, Json] | None = None

    @property
    def device(self) -> str:
        """Device of the workers."""
        return "cpu"

    @property
    def resumes(self) -> bool:
        """Whether the call goes on from a snapshot."""
        return self.can_resume()

    def can_resume(self) -> bool:
        """Return whether the run folder has a snapshot."""
        return bool(numbers(Path(self.out) / "snapshots"))

    def again(self) -> StreamCall:
        """Return this call, which goes on from the newest snapshot."""
        return self

    def to_json(self) -> str:
        """Return the call as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StreamCall:
        """Build a call from the text that `to_json` returned."""
        return cls(**json.loads(text))

    def with_absolute_paths(self) -> StreamCall:
        """Return the call for processes with another working folder."""
        return replace(self, features=os.path.abspath(self.features), out=os.path.abspath(self.out))

    def train(self) -> int:
        """Train as one of the workers that have joined; return the number of events."""
        from cowclip_merlin.online.training.stream_folder import train_stream

        run = RunSettings.from_dict(self.settings["run"])
        return train_stream(
            self.events,
            self.features,
            OnlineSettings(**{**self.settings, "run": run}),
            StreamSettings(**self.stream),
            out=self.out,
            servers=self.servers,
            start=None if self.start is None else tuple(self.start),
            monitoring=MonitoringSettings(**(self.monitoring or {})),
        )


def main() -> int:
    """Train, and return the exit code; errors of the input are one line on standard error."""
    call = StreamCall.from_json(os.environ[VARIABLE])

    def work() -> None:
        join(call.settings["run"]["seed"])
        call.train()

    return exit_code_of(work, call.out)


def join(seed: int) -> workers.Workers | None:
    """Join the workers that `TF_CONFIG` or `srun` names; before TensorFlow starts in an import.

    Args:
        seed: of TensorFlow.
    """
    set_up_tensorflow(seed, "cpu")
    return workers.join()


if __name__ == "__main__":
    sys.exit(main())
