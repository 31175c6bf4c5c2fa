"""Train on a stream in a run folder, or go on there."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path

from cowclip_merlin import workers
from cowclip_merlin.addresses import Address, FilePath, upload_file
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import LogFeatures, load_features
from cowclip_merlin.online.logs.open_log import log_identity, open_log, refuse_one_log
from cowclip_merlin.online.new_columns import held
from cowclip_merlin.online.report import MonitoringSettings
from cowclip_merlin.online.run_config import (
    CONFIG,
    Changes,
    changes_of_run,
    online_config,
)
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.training.loop import StreamTrainer
from cowclip_merlin.online.training.run_snapshots import SNAPSHOTS
from cowclip_merlin.online.training.settings import StreamSettings
from cowclip_merlin.online.training.start import OfflineStart, Start, named_start
from cowclip_merlin.online.training.status_report import NUMBERS
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.online.training.workers import ShardTrainer
from cowclip_merlin.system.files import read_json, write_json
from cowclip_merlin.system.folders import check_out, lock_folder, refuse_other_files
from cowclip_merlin.tables.snapshot import numbers
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.training.run_folder import check_shared, run_log
from cowclip_merlin.training.run_logs import run_logger
from cowclip_merlin.training.run_settings import RunSettings
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workers.agreement import check_alike, naming_lost_workers, texts_of_all


def train_stream(
    events: str,
    features: str | FilePath | LogFeatures,
    settings: OnlineSettings,
    stream: StreamSettings,
    *,
    out: str | Path,
    servers: str | None = None,
    start: Start | None = None,
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
        "start": [named_start(path) for path in start or ()],
    }
    group = workers.current()
    with naming_lost_workers(group):
        check_alike(group, {**config, **asdict(stream), "to": servers is not None})
        if group is not None:
            _refuse_for_workers(stream, columns)
        return _train(events, columns, settings, stream, out, servers, start, monitoring, config)


def _refuse_for_workers(stream: StreamSettings, features: LogFeatures) -> None:
    if features.more_labels:
        raise InputError(
            f"labels {', '.join(features.labels)}: several workers train on one label; use one "
            "worker, or one label"
        )
    if stream.snapshots is not None:
        raise InputError(
            "`snapshots` of several workers is not supported: copy the run folder, or use one"
        )


def _train(
    events: str,
    columns: LogFeatures,
    settings: OnlineSettings,
    stream: StreamSettings,
    out: Path,
    servers: str | None,
    start: Start | None,
    monitoring: MonitoringSettings,
    config: JsonObject,
) -> int:
    """Train in one process, or as one of several workers."""
    group = workers.current()
    leads = group is None or group.is_first
    if leads:
        _check_folder(out, config)
        refuse_one_log(**{"from": events, "to": servers})
    with ExitStack() as stack:
        if leads:
            endpoint = stack.enter_context(monitoring.endpoint("cowclip_train", NUMBERS))
        source = stack.enter_context(closing(open_log(events, several=True)))
        if group is None:
            set_up_tensorflow(settings.run.seed, "cpu")
        if leads:
            target = open_log(servers, create=True) if servers else None
            stack.enter_context(lock_folder(out, "another process trains there; use another `out`"))
            lines = run_logger(out / "train.log", log_format=monitoring.log_format)
            log = stack.enter_context(lines)
            changes = _check_folder(out, config)  # again: another process may have worked since
            texts_of_all(group, "")  # the others need the folder
        else:
            target = None
            texts_of_all(group, "")  # worker 0 has made the folder
            check_shared(out, group)
            log = stack.enter_context(run_log(out))
        trainer = _trainer(settings, columns, stream, out)
        new = not numbers(out / SNAPSHOTS)
        if leads and new and stream.snapshots and (Address(stream.snapshots) / CONFIG).exists():
            raise InputError(f"{stream.snapshots}: holds another run; use another `snapshots`")
        offline = OfflineStart(*start, trainer) if start and new else None
        work = StreamTrainer(
            trainer,
            source,
            target,
            stream,
            out,
            log,
            start=offline and offline.apply,
            group=group,
            is_served=servers is not None,
        )
        if leads:
            if any(changes) or not (out / CONFIG).exists():
                write_json(out / CONFIG, config)
            if new and stream.snapshots:  # refuse a wrong address before anything else
                upload_file(out / CONFIG, str(Address(stream.snapshots) / CONFIG))
            _say_what_is_read(log, source.name, target and target.name)
            _say_rates(log, settings.run)
            for change in (*changes.columns, *changes.others):
                log.info("changed since the start before: %s", change)
            endpoint.tell(work.status, log.info)
        work.run()
        return work.trained


def _trainer(
    settings: OnlineSettings, columns: LogFeatures, stream: StreamSettings, out: Path
) -> OnlineTrainer:
    catch_up, group = stream.catch_up, workers.current()
    if group:
        trainer = ShardTrainer(settings, columns, group, catch_up=catch_up)
    else:
        trainer = OnlineTrainer(settings, columns, catch_up=catch_up)
    known = held(out / SNAPSHOTS) or columns.inputs
    if lacking := [name for name in columns.inputs if name not in known]:
        trainer.new_weights(lacking)  # refuses columns that the model cannot get
    return trainer


def _check_folder(out: Path, config: JsonObject) -> Changes:
    """Refuse a folder of something else; return what changed since its last start."""
    check_out(out, ())
    known = out / CONFIG
    if known.exists():
        return changes_of_run(out, read_json(known), config, held(out / SNAPSHOTS))
    if numbers(out / SNAPSHOTS):
        raise InputError(f"{out}: has snapshots but no {CONFIG}; use another `out`")
    refuse_other_files(out, ("train.log",))
    return Changes([], [])


def _say_what_is_read(log: logging.Logger, source: str, target: str | None) -> None:
    log.info("reads %s%s", source, f", syncs to {target}" if target else "")


def _say_rates(log: logging.Logger, run: RunSettings) -> None:
    """Say what the scaling rule makes of the rates, which are given at the base batch size."""
    values = run.hyperparameters("table")
    log.info(
        "batch %d = %g x %d, rule %s: embedding lr %.6g, dense lr %.6g, l2 %.6g",
        run.batch_size,
        run.batch_size / run.base_batch_size,
        run.base_batch_size,
        run.rule,
        values.embedding_lr,
        values.dense_lr,
        values.l2,
    )
