"""Where the numbers come from: machine, versions, and every run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from cowclip_merlin.experiments.report.folder import Folder
from cowclip_merlin.experiments.results.result import Result

RUN_COLUMNS = (
    "run", "variant", "model", "batch", "rule", "clip", "update", "embedding lr", "dense lr", "L2",
    "r, zeta", "init, warm-up", "epochs", "seed", "AUC %", "best AUC % (epoch)", "log loss",
    "rows/s", "minutes",
)  # fmt: skip


def environment(folder: Folder) -> list[tuple[str, str]]:
    """Heading and text of what a results folder was made with."""
    runs = folder.results
    if not runs:
        return []
    starts = sorted(run.started for run in runs)
    loads = [run.load for run in runs if math.isfinite(run.load)]
    found = [
        ("hardware", _distinct(run.hardware for run in runs)),
        ("runs started (UTC)", _span(starts[0], starts[-1])),
        ("revision", _distinct(run.revision for run in runs)),
        ("TensorFlow", _distinct(run.tensorflow for run in runs)),
        ("running processes before a run", _range(loads)),
        ("data fingerprint", _distinct(run.data_fingerprint for run in runs)),
        ("scores of", _distinct(run.split for run in runs)),
    ]
    packages = [f"{name} {', '.join(v)}" for name, v in folder.versions.items()]
    found += [("versions", "; ".join(packages)), ("base values that sweeps chose", _tuned(folder))]
    return [(k, v) for k, v in found if v]


def _tuned(folder: Folder) -> str:
    """By group: `cowclip` and `baseline` are those of all lines, the others those of one."""
    return "; ".join(
        f"{group}{f' ({size})' if len(folder.tuned) > 1 else ''}: "
        + ", ".join(f"{name} {value:.3g}" for name, value in values.items())
        for size, tuned in folder.tuned.items()
        for group, values in tuned.items()
    )


def _distinct(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def _range(loads: Sequence[float]) -> str:
    return _span(f"{min(loads):g}", f"{max(loads):g}") if loads else ""


def run_rows(runs: Sequence[Result]) -> list[list[str]]:
    """Every run as text, in the order of `RUN_COLUMNS`."""
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
        best,
        f"{run.log_loss:.5f}" if ended and math.isfinite(run.log_loss) else "",
        f"{run.rows_per_second:,.0f}",
        f"{run.seconds / 60:.1f}",
    ]


def _percent(auc: float) -> str:
    return f"{100 * auc:.3f}" if math.isfinite(auc) else ""
