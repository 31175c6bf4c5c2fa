"""Train on a stream in this process, or in several that this one starts or belongs to."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.launcher import LaunchSettings, launch
from cowclip_merlin.online.report import MonitoringSettings
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.online.training.shards.call import StreamCall
from cowclip_merlin.tables.snapshot import numbers
from cowclip_merlin.workers.environment import cluster_of

WORKER = ("-m", "cowclip_merlin.online.training.shards.call")
"""Arguments of Python that start a worker."""


def train_with_workers(
    processes: LaunchSettings,
    events: str,
    features: str,
    settings: OnlineSettings,
    stream: StreamSettings,
    *,
    out: str,
    servers: str | None = None,
    start: tuple[str, str] | None = None,
    monitoring: MonitoringSettings | None = None,
) -> int:
    """Train on a log of events, as `train_stream`.

    With `TF_CONFIG`, this process is one of the workers that another program has started.

    Args:
        processes: how many workers to start on this machine; 1: none.
        events: the log to read.
        features: features file of its events.
        settings: of the model and its training.
        stream: when to cut batches, sync and write snapshots.
        out: folder of the run.
        servers: the log to write; None for none.
        start: a run, and the prepared folder that it was trained on, to start from.
        monitoring: how others watch the training; None for the defaults.

    Returns:
        The number of events trained, in all processes of this run; 0 on other workers than 0.

    Raises:
        InputError: an input is wrong; the error names it in one line.
        WorkerLost: another worker failed, and no restart is left.
        Stopped: after SIGINT or SIGTERM; a snapshot is written first.
    """
    call = StreamCall(
        events=events,
        features=features,
        settings=settings.as_dict(),
        stream=asdict(stream),
        out=out,
        servers=servers,
        start=start,
        monitoring=asdict(monitoring or MonitoringSettings()),
    )
    if not processes.needed:
        if cluster_of(os.environ):
            from cowclip_merlin.online.training.shards.call import join

            join(settings.run.seed)
        return call.train()
    if processes.scheduler is not None:
        raise InputError(
            f"`scheduler` is {processes.scheduler}, but the workers of a stream run on this "
            "machine or under TF_CONFIG; use `workers`"
        )
    if processes.workers > settings.run.batch_size:
        raise InputError(
            f"`workers` is {processes.workers}, but a batch has {settings.run.batch_size} events; "
            "use fewer"
        )
    launch(call, processes, command=[sys.executable, *WORKER])
    return max(numbers(Path(out) / "snapshots"))
