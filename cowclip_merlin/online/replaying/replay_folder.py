"""Run a replay in a folder of its own, or resume one there, and write its results."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cowclip_merlin.addresses import FilePath, expand, output_folder, size_of
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.event_log import EventLog
from cowclip_merlin.online.events.features import LogFeatures, load_features
from cowclip_merlin.online.replaying import replay_results
from cowclip_merlin.online.replaying.replay import Replay
from cowclip_merlin.online.replaying.settings import ReplaySettings
from cowclip_merlin.online.run_config import CONFIG, online_config, refuse_difference
from cowclip_merlin.online.settings import OnlineSettings
from cowclip_merlin.online.training.start import OfflineStart, Start, named_start
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.system.files import read_json, write_json
from cowclip_merlin.system.folders import check_out, lock_folder, refuse_other_files
from cowclip_merlin.system.machine import hardware, peak_megabytes, versions
from cowclip_merlin.system.records import write_rows
from cowclip_merlin.tables.snapshot import numbers
from cowclip_merlin.targets import refuse_several
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.training.run_logs import run_logger
from cowclip_merlin.types import JsonObject

Row = dict[str, Any]

_STARTED = ("predictions", "snapshots", "replay.log", "damaged.tsv")
"""What a replay that was killed at its start leaves."""


def replay_log(
    files: Sequence[str | FilePath],
    features: str | FilePath | LogFeatures,
    settings: OnlineSettings,
    replay: ReplaySettings,
    *,
    out: str | FilePath,
    start: Start | None = None,
    resume: bool = False,
    max_bad_fraction: float = 0.001,
) -> list[Row]:
    """Train a log's first days, then score each event with serving copies and train on it.

    Args:
        files: the log, sorted by time: plain or compressed text, or parquet; also patterns.
        features: its features file, or the columns read from it.
        settings: of the model and its training.
        replay: days to train first, and the sync intervals.
        out: folder to write; it must not hold a replay yet, unless `resume`. One at an address is
            made in `TMPDIR` and uploaded at the end or when the replay stops.
        start: a run, and the prepared folder that it was trained on, to start from.
        resume: go on from the last snapshot in `out`.
        max_bad_fraction: share of damaged rows above which the replay stops.

    Returns:
        One row for each sync interval, as in `replay.csv`: sync, auc, log_loss, rows.

    Raises:
        InputError: an input is wrong; the error names it in one line.
        Stopped: after SIGINT or SIGTERM; a snapshot is written first.
    """
    columns = features if isinstance(features, LogFeatures) else load_features(features)
    remedy = "name one in the features file, or train on a stream"
    refuse_several("a replay", columns.targets, remedy)
    with output_folder(out, CONFIG, resume=resume, what="replay") as folder:
        config = _config(files, columns, settings, replay, start)
        source = EventLog(
            files, columns, max_bad_fraction=max_bad_fraction, quarantine=folder / "damaged.tsv"
        )
        _check_folder(folder, config, resume)
        set_up_tensorflow(settings.run.seed, "cpu")
        created = not folder.exists()
        with lock_folder(folder, "another process writes a replay there; use another `out`"):
            _check_folder(folder, config, resume)  # again: another process may have worked since
            try:
                with run_logger(folder / "replay.log") as log:
                    trainer = OnlineTrainer(settings, columns)
                    work = _new_replay(source, trainer, replay, folder, log, start)
                    write_json(folder / CONFIG, config)
                    work.resume()
                    # The log is read from its start again, with its damaged rows.
                    source.quarantine.unlink(missing_ok=True)
                    work.run()
                    return _write_results(work, source, replay, folder, log)
            except BaseException:
                if not has_snapshot(folder):
                    _forget(folder, created)
                raise


def has_snapshot(out: Path) -> bool:
    """Whether a folder holds a snapshot."""
    return bool(numbers(out / "snapshots"))


def _forget(out: Path, created: bool) -> None:
    """Remove what a replay without a snapshot left, except the list of damaged rows."""
    if created and not (out / "damaged.tsv").exists():
        shutil.rmtree(out, ignore_errors=True)
    (out / CONFIG).unlink(missing_ok=True)


def _config(
    files: Sequence[str | FilePath],
    columns: LogFeatures,
    settings: OnlineSettings,
    replay: ReplaySettings,
    start: Start | None,
) -> JsonObject:
    """What must be the same when a replay is resumed."""
    paths = expand(files)
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: no such file; check the path")
    return {
        "log": [{"name": path.name, "bytes": size_of(path)} for path in paths],
        **online_config(settings, columns),
        "batch_days": replay.batch_days,
        "sync": list(replay.sync),
        "start": [named_start(path) for path in start or ()],
    }


def _check_folder(out: Path, config: JsonObject, resume: bool) -> None:
    check_out(out, ())
    known = out / CONFIG
    before = read_json(known) if known.exists() else None
    if known.exists() and not (isinstance(before, dict) and "log" in before):
        raise InputError(f"{out}: holds another kind of run; use another `out`")
    if not resume:
        if known.exists() or has_snapshot(out):
            raise InputError(f"{out}: already holds a run; use `resume` or another `out`")
        refuse_other_files(out, _STARTED)
        return
    if not known.exists():
        raise InputError(f"{out}: no replay to resume; check `out`, or remove `resume`")
    refuse_difference(out, before, config)


def _new_replay(
    source: EventLog,
    trainer: OnlineTrainer,
    replay: ReplaySettings,
    out: Path,
    log: logging.Logger,
    start: Start | None,
) -> Replay:
    run = trainer.settings.run
    values = run.hyperparameters("table")
    log.info(
        "%s, batch %d, %s, embedding lr %.6g, dense lr %.6g, l2 %.6g, clip %s (%s)",
        run.model,
        run.batch_size,
        values.optimizer_words,
        values.embedding_lr,
        values.dense_lr,
        values.l2,
        run.effective_clip,
        trainer.optimizer.backend,
    )
    # A snapshot holds what the run gave.
    needed = start is not None and not has_snapshot(out)
    apply = OfflineStart(*start, trainer).apply if needed else None
    return Replay(trainer, source, replay, out, log, apply)


def _write_results(
    work: Replay, source: EventLog, replay: ReplaySettings, out: Path, log: logging.Logger
) -> list[Row]:
    predictions = work.predictions.read()
    rows = replay_results.total_rows(predictions, replay.sync)
    if rows[0]["auc"] == "":
        log.warning("all scored events have one label, so there is no AUC; use a longer log")
    for period in replay_results.PERIODS:
        over_time = replay_results.period_rows(predictions, replay.sync, period)
        write_rows(out / f"auc_by_{period}.csv", list(over_time[0]), over_time)
        figure = out / f"auc_by_{period}.svg"
        replay_results.draw_auc(figure, over_time, replay.sync, period)
    statistics = work.trainer.table.statistics()
    speed = work.trained / work.seconds
    write_json(
        out / "replay.json",
        {
            "events": work.trained,
            "scored": work.predictions.rows,
            "damaged": source.damaged.count,
            "seconds": round(work.seconds, 3),
            "rows_per_second": round(speed, 1),
            "peak_megabytes": round(peak_megabytes(), 1),
            "table": asdict(statistics),
            "hardware": hardware(),
            "versions": versions(),
        },
    )
    write_rows(out / "replay.csv", list(rows[0]), rows)
    log.info(
        "%s events, %s of them scored, %s damaged; %s rows/s; %s ids in the table, %s expired, "
        "%s evicted; %s MB at most",
        *(f"{n:,}" for n in (work.trained, work.predictions.rows, source.damaged.count)),
        f"{speed:,.0f}",
        *(f"{n:,}" for n in (sum(statistics.rows), statistics.expired, statistics.evicted)),
        f"{peak_megabytes():,.0f}",
    )
    return rows
