"""Format the list of all runs on the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cowclip_merlin.experiments.results.replay_result import ReplayResult
from cowclip_merlin.experiments.results.result import Result

RUN_COLUMNS = (
    "run", "variant", "model", "batch", "rule", "clip", "update", "embedding lr", "dense lr", "L2",
    "r, zeta", "init, warm-up", "epochs", "seed", "AUC %", "its standard error",
    "best AUC % (epoch)", "log loss", "rows/s", "minutes",
)  # fmt: skip

REPLAY_COLUMNS = (
    "run", "synced every", "log", "admit", "ttl, s", "model", "batch", "rule", "clip",
    "embedding lr", "dense lr", "L2", "r, zeta", "init", "seed", "AUC %", "log loss", "scored",
    "ids kept", "expired", "rows/s", "minutes",
)  # fmt: skip


def run_rows(runs: Sequence[Result]) -> list[list[str]]:
    """Format every run as text, in the order of `RUN_COLUMNS`."""
    several = len({run.data_fingerprint for run in runs}) > 1
    return [_row(run, f"{run.data} {run.variant}" if several else run.variant) for run in runs]


def _row(run: Result, variant: str) -> list[str]:
    best = f"{_percent(run.best_auc)} ({run.best_epoch})" if run.best_epoch else ""
    ended = run.status != "diverged"
    return [
        run.run_id,
        variant,
        f"{run.model}, {run.optimizer}",
        f"{run.batch_size:,}",
        run.rule,
        run.clip,
        run.update,
        f"{run.embedding_lr:.4g}",
        f"{run.dense_lr:.4g}",
        f"{run.l2:.4g}",
        f"{run.r:g}, {run.zeta:g}",
        f"{run.init_std:g}, {run.warmup_epochs:g}",
        str(run.epochs),
        str(run.seed),
        _percent(run.auc) if ended else "diverged",
        "" if run.auc_error is None else _percent(run.auc_error),
        best,
        f"{run.log_loss:.5f}" if ended and math.isfinite(run.log_loss) else "",
        f"{run.rows_per_second:,.0f}",
        f"{run.seconds / 60:.1f}",
    ]


def _percent(auc: float) -> str:
    return f"{100 * auc:.3f}" if math.isfinite(auc) else ""


def replay_rows(replays: Sequence[ReplayResult]) -> list[list[str]]:
    """Format every replay and sync interval as text, in the order of `REPLAY_COLUMNS`."""
    return [_replay_row(replay) for replay in replays]


def _replay_row(replay: ReplayResult) -> list[str]:
    ended = replay.status == "done"
    return [
        replay.run_id,
        replay.sync,
        replay.data,
        replay.admit,
        replay.ttl,
        f"{replay.model}, {replay.mlp}",
        f"{replay.batch_size:,}",
        replay.rule,
        replay.clip,
        f"{replay.embedding_lr:.4g}",
        f"{replay.dense_lr:.4g}",
        f"{replay.l2:.4g}",
        f"{replay.r:g}, {replay.zeta:g}",
        f"{replay.init_std:g}",
        str(replay.seed),
        _percent(replay.auc) if ended else "diverged",
        f"{replay.log_loss:.5f}" if ended else "",
        f"{replay.scored:,}",
        f"{replay.ids_kept:,}",
        f"{replay.expired:,}",
        f"{replay.rows_per_second:,.0f}",
        f"{replay.seconds / 60:.1f}",
    ]
