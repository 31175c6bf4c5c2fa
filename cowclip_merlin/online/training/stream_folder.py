"""Train on a stream in a run folder, or go on there."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.events.features_file import load_features
from cowclip_merlin.online.logs.open_log import log_identity, log_place, open_log
from cowclip_merlin.online.monitoring import MonitoringSettings
from cowclip_merlin.online.run_config import CONFIG, online_config, refuse_difference
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.online.training.start import OfflineStart
from cowclip_merlin.online.training.status_report import METRICS
from cowclip_merlin.online.training.stream_trainer import SNAPSHOTS, StreamTrainer
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.system.files import read_json, write_json
from cowclip_merlin.system.folders import check_out, lock_folder, refuse_other_files
from cowclip_merlin.tables.snapshot import numbers
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.training.run_logs import run_logger


def train_stream(
    events: str,
    features: str | Path | LogFeatures,
    settings: OnlineSettings,
    stream: StreamSettings,
    *,
    out: str | Path,
    servers: str | None = None,
    start: tuple[str | Path, str | Path] | None = None,
    monitoring: MonitoringSettings | None = None,
) -> int:
    """Train on a log of events, and send changes to a log that servers follow.

    A folder that holds a run of the same settings goes on from its newest snapshot.

    Args:
        events: the log to read; a folder, or the address of a Redis Stream or a Kafka topic.
        features: features file of its events, or the columns read from it.
        settings: of the model and its training.
        stream: when to cut batches, sync and write snapshots.
        out: folder of the run.
        servers: the log to write, like `events`; None for none.
        start: a run, and the prepared folder that it was trained on, to start from.
        monitoring: how others watch the training; None for the defaults.

    Returns:
        The number of events trained, in all processes of this run.

    Raises:
        InputError: an input is wrong; the error names it in one line.
        Stopped: after SIGINT or SIGTERM; a snapshot is written first.
    """
    out, monitoring = Path(out), monitoring or MonitoringSettings()
    columns = features if isinstance(features, LogFeatures) else load_features(features)
    config = {
        "events": log_identity(events),
        **online_config(settings, columns),
        "start": [str(Path(path).resolve()) for path in start or ()],
    }
    _check_folder(out, config)
    if servers and log_place(events) == log_place(servers):
        raise InputError(f"`from` and `to` are both {log_identity(events)}; use two logs")
    with ExitStack() as stack:
        endpoint = stack.enter_context(monitoring.endpoint("cowclip_train", METRICS))
        source = open_log(events)
        target = open_log(servers, create=True) if servers else None
        set_up_tensorflow(settings.run.seed, "cpu")
        stack.enter_context(lock_folder(out, "another process trains there; use another `out`"))
        lines = run_logger(out / "train.log", log_format=monitoring.log_format)
        log = stack.enter_context(lines)
        _check_folder(out, config)  # again: another process may have worked since
        trainer = OnlineTrainer(settings, columns, catch_up=stream.catch_up)
        new = not numbers(out / SNAPSHOTS)
        offline = OfflineStart(*start, trainer) if start and new else None
        work = StreamTrainer(
            trainer, source, target, stream, out, log, start=offline and offline.apply
        )
        if not (out / CONFIG).exists():
            write_json(out / CONFIG, config)
        _say_what_is_read(log, source.name, target and target.name)
        endpoint.tell(work.status, log.info)
        work.run()
        return work.trained


def _check_folder(out: Path, config: dict[str, Any]) -> None:
    check_out(out, ())
    known = out / CONFIG
    if known.exists():
        refuse_difference(out, read_json(known), config)
        return
    if numbers(out / SNAPSHOTS):
        raise InputError(f"{out}: has snapshots but no {CONFIG}; use another `out`")
    refuse_other_files(out, ("train.log",))


def _say_what_is_read(log: logging.Logger, source: str, target: str | None) -> None:
    log.info("reads %s%s", source, f", syncs to {target}" if target else "")
