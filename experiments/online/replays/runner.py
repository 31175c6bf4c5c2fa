"""Make the replays without a result, one after the other, and record each result."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.errors import Diverged, InputError
from cowclip_merlin.experiments.online.csv_rows import append_rows
from cowclip_merlin.experiments.online.replays.result import ReplayResult, read_replays
from cowclip_merlin.experiments.online.replays.run import ReplayRun
from cowclip_merlin.experiments.online.session import LogSession
from cowclip_merlin.experiments.running.run_result import RunStart, describe_hardware
from cowclip_merlin.experiments.running.runner import hide_retracing_warnings
from cowclip_merlin.online.events.features import LogFeatures
from cowclip_merlin.online.replaying.replay import ReplaySettings
from cowclip_merlin.online.replaying.replay_folder import replay_log
from cowclip_merlin.system.files import read_json
from cowclip_merlin.system.folders import REPLAYS_CSV
from cowclip_merlin.system.hardware import hardware
from cowclip_merlin.system.versions import PACKAGES, versions
from cowclip_merlin.tables.field_rules import FieldRules

_COUNTS = ("refused", "expired", "evicted")
_PACKAGES = ("python", *PACKAGES)


def make_replays(
    runs: Sequence[ReplayRun], session: LogSession
) -> Iterator[Sequence[ReplayResult]]:
    """Make the replays, and yield the results of each once they are recorded.

    A replay that a signal stopped continues from its snapshot at the next call.

    Raises:
        InputError: if the log or a setting is wrong.
        Stopped: if a signal stops it; all results so far are recorded.
    """
    out = session.settings.out
    for run_id in {each.run_id for each in read_replays(out)}:  # where a process was killed
        _remove_snapshots(out / "runs" / run_id)
    for run in runs:
        results = make_replay(run, session)
        append_rows(out / REPLAYS_CSV, results)
        _remove_snapshots(out / "runs" / results[0].run_id)
        yield results


def _remove_snapshots(folder: Path) -> None:
    """Remove what a replay resumes from until its results are recorded.

    It takes the size of the tables and of the log.
    """
    for name in ("snapshots", "predictions"):
        shutil.rmtree(folder / name, ignore_errors=True)


def make_replay(run: ReplayRun, session: LogSession) -> list[ReplayResult]:
    """Make one replay and its results, also if it diverged."""
    folder = session.settings.out / "runs" / run.run_id(session.fingerprint)
    start = RunStart.now()
    resume = (folder / "config.json").exists()
    if folder.exists() and not resume:  # killed before it began
        shutil.rmtree(folder)
    compat.release_models()
    try:
        with redirect_stdout(io.StringIO()), hide_retracing_warnings():  # replay.log has it
            scores = replay_log(
                session.settings.files,
                run.features,
                run.settings,
                ReplaySettings(batch_days=run.batch_days, sync=run.sync),
                out=folder,
                resume=resume,
                max_bad_fraction=session.settings.max_bad_fraction,
            )
    except Diverged:
        nothing = {"auc": math.nan, "log_loss": math.nan, "rows": 0}
        scores = [{"sync": sync} | nothing for sync in run.sync]
        measured = dict.fromkeys(("events", "damaged", "seconds", "rows_per_second"), 0)
        of_run = _columns(run, session, start, "diverged", measured, _no_statistics())
    else:
        if scores[0]["auc"] == "":
            raise InputError("all scored events have one label; use a longer log, or `batch_days`")
        measured = read_json(folder / "replay.json")
        of_run = _columns(run, session, start, "done", measured, measured["table"])
    return [
        ReplayResult(
            sync=score["sync"],
            auc=score["auc"],
            log_loss=score["log_loss"],
            scored=score["rows"],
            **of_run,
        )
        for score in scores
    ]


def _no_statistics() -> dict[str, Any]:
    return {"rows": []} | dict.fromkeys(_COUNTS, 0)


def _columns(
    run: ReplayRun,
    session: LogSession,
    start: RunStart,
    status: str,
    measured: Mapping[str, Any],
    table: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the columns that all intervals of a replay share."""
    made_with = versions()
    return {
        "run_id": run.run_id(session.fingerprint),
        "config_hash": run.config_hash(session.fingerprint),
        "status": status,
        "data": session.data_name,
        "data_fingerprint": session.fingerprint,
        **_settings(run),
        **{k: measured[k] for k in ("events", "damaged", "seconds", "rows_per_second")},
        **{name: table[name] for name in _COUNTS},
        "ids_kept": sum(table["rows"]),
        "started": start.time,
        "revision": made_with.get("git_revision", made_with["cowclip_merlin"]),
        "tensorflow": made_with["tensorflow"],
        "hardware": describe_hardware(hardware() | {"gpus": 0}),  # a replay uses the CPU
        "load": start.load,
        "versions": ", ".join(f"{k} {v}" for k, v in made_with.items() if k in _PACKAGES),
    }


def _settings(run: ReplayRun) -> dict[str, Any]:
    """Return the columns with settings."""
    settings = run.settings.run
    values = settings.hyperparameters("table")
    scaled = ("embedding_lr", "dense_lr", "l2", "r", "zeta", "init_std")
    given = ("model", "embedding_dim", "rule", "batch_size", "base_batch_size", "seed")
    return {
        **{name: getattr(values, name) for name in scaled},
        **{name: getattr(settings, name) for name in given},
        "mlp": "-".join(map(str, settings.mlp)),
        "clip": settings.effective_clip,
        "batch_days": run.batch_days,
        "admit": rule_text(run.features, lambda rules: rules.admit),
        "ttl": rule_text(run.features, lambda rules: rules.ttl),
    }


def rule_text(features: LogFeatures, value: Callable[[FieldRules], int]) -> str:
    """Format a rule of all columns: one number, or one for each column where they differ."""
    values = {name: value(rules) for name, rules in features.rules.items()}
    if len(set(values.values())) == 1:
        return str(next(iter(values.values())))
    return ", ".join(f"{name} {number}" for name, number in values.items())
