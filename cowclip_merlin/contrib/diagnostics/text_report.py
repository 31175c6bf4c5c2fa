"""Format the text of `cowclip inspect`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cowclip_merlin import choices
from cowclip_merlin.training.run_logs import target_metrics

if TYPE_CHECKING:
    import pandas as pd

    from cowclip_merlin.training.run_config import RunConfig

LINES = 10  # maximum number of probes in the table
FEW = 3  # with fewer probes, the text says how to get more


def format_report(
    config: RunConfig, epochs: Sequence[Mapping[str, str]], table: pd.DataFrame
) -> str:
    """Format settings, metrics and diagnostics of a run as text.

    Args:
        config: the run's configuration.
        epochs: rows of `metrics.csv`.
        table: the table that `read_diagnostics` returns.
    """
    last = int(table.step.max())
    probe = table[table.step == last]
    split = config.settings.scored_split
    parts = [format_settings(config), _epochs(epochs, split), "clip by step\n" + _steps(table)]
    probes = table.step.nunique()
    if probes < FEW:
        parts.append(
            f"{probes} probe{'s' * (probes > 1)} in total; for more, train with a smaller "
            "--diagnostics-every"
        )
    clip = config.settings.effective_clip
    if choices.CLIPS[clip].acts_on == "update":
        parts.append(
            f"the clip {clip} bounds steps, not gradients; the table of epochs shows by how much"
        )
    parts.append(f"fields at step {last:,}, most clipped first\n" + _fields(probe))
    parts.append(
        f"norms at step {last:,} by frequency of the id, means over the batch's rows\n"
        + _deciles(probe)
    )
    return "\n\n".join(parts)


def format_settings(config: RunConfig) -> str:
    """Format settings and scaled hyper-parameters in one line."""
    settings, values = config.settings, config.values
    return (
        f"{settings.model}, batch {settings.batch_size:,}, rule {settings.rule}, clip "
        f"{settings.effective_clip}, update {settings.update}, seed {settings.seed}: embedding lr "
        f"{values.embedding_lr:.4g}, dense lr {values.dense_lr:.4g}, l2 {values.l2:.4g}, "
        f"r {values.r:g}, zeta {values.zeta:g}, {values.optimizer_words}"
    )


def _epochs(epochs: Sequence[Mapping[str, str]], split: str) -> str:
    if not epochs:
        return "no epoch is finished"
    scores = _scores(epochs[0], split)
    cells = [
        (f"{float(row['epoch']):.6g}", f"{float(row['train_loss'] or 'nan'):.5f}",
         *(f"{float(row[column]):.5f}" for column in scores.values()),
         f"{float(row['rows_per_second']):,.0f}",
         _percent(float(row["clipped_share"])), f"{float(row['mean_clip_factor']):.4f}")
        for row in epochs
    ]  # fmt: skip
    head = ("epoch", "train loss", *scores, "rows/s", "clipped", "mean factor")
    return format_table(head, cells)


def _scores(row: Mapping[str, str], split: str) -> dict[str, str]:
    """Map the heading of each score in the table of epochs to its column of `metrics.csv`."""
    if row.get(f"{split}_auc"):
        return {f"{split} AUC": f"{split}_auc", f"{split} log loss": f"{split}_log_loss"}
    return {
        f"{split} {name} {kind.upper()}": f"{split}_{name}_{kind}"
        for name, found in target_metrics(row, split).items()
        for kind in ("auc", "rmse")
        if kind in found
    }


def _steps(table: pd.DataFrame) -> str:
    every = table[table.scope == "all"]
    positions = np.unique(np.linspace(0, len(every) - 1, LINES).round().astype(int))
    cells = [
        (f"{row.step:,}", f"{row.rows:,.0f}", _percent(row.clipped_share),
         _number(row.mean_clip_factor, ".4f"), f"{row.dense_lr:.3g}",
         _number(row.rows_per_second, ",.0f"))
        for row in every.iloc[positions].itertuples()
    ]  # fmt: skip
    head = ("step", "distinct rows", "clipped", "mean factor", "dense lr", "rows/s")
    return format_table(head, cells)


def _fields(probe: pd.DataFrame) -> str:
    fields = probe[probe.scope == "field"]
    fields = fields.sort_values(["clipped_share", "mean_clip_factor"], ascending=[False, True])
    cells = [
        (row.group, f"{row.rows:,.0f}", f"{row.occurrences / row.rows:,.1f}",
         _percent(row.clipped_share), _number(row.mean_clip_factor, ".4f"))
        for row in fields.itertuples()
    ]  # fmt: skip
    return format_table(("field", "distinct rows", "cnt, mean", "clipped", "mean factor"), cells)


def _deciles(probe: pd.DataFrame) -> str:
    cells = [
        (row.group, f"{row.least_count:,.0f} to {row.most_count:,.0f}", f"{row.rows:,.0f}",
         f"{row.w_norm:.3e}", f"{row.g_norm:.3e}", f"{row.g_norm_per_cnt:.3e}",
         _percent(row.clipped_share))
        for row in probe[probe.scope == "decile"].itertuples()
    ]  # fmt: skip
    head = ("decile", "seen in training", "distinct rows", "||w||", "||g||", "||g||/cnt", "clipped")
    return format_table(head, cells)


def _number(value: float, form: str) -> str:
    return "-" if np.isnan(value) else format(value, form)


def _percent(share: float) -> str:
    return _number(share, ".2%")


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table with right-aligned cells.

    >>> print(format_table(("a", "long"), [("10", "2")]))
       a  long
      10     2
    """
    widths = [max(map(len, cells)) for cells in zip(head, *rows)]
    lines = ["  " + "  ".join(c.rjust(w) for c, w in zip(row, widths)) for row in (head, *rows)]
    return "\n".join(lines)
