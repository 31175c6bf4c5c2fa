"""Measure milliseconds per training step by number of ids, for every `update`.

It trains a DeepFM with embeddings of 10 and the wide part, each in one fused table, with CowClip
and Adam. All vocabularies train on the same batches. Ids are drawn once, from a power law over the
smallest vocabulary. A one-to-one map spreads them over the larger tables. So the distinct rows of a
batch, and the steps that each row has missed, are equal. Only the size of the tables differs.

Each vocabulary and each update has one turn in every round. A turn builds the model, warms it up,
times it at each batch size, and frees it. The value of a turn is its mean. Medians and ratios are
over the rounds, with ratios within a round. "dense" updates every row at every step. "exact" and
"lazy" update the rows of the batch.

"exact" gives the numbers of "dense", because it replays the missed steps later. A step replays them
for the rows of its batch (rows miss steps during the warm-up). The end of an epoch replays them for
all other rows. No step includes that last part, so `optimizer.flush()` is timed separately, after
at least --missed steps (the last of them on batches of one row). For an epoch of N steps, add N
times "ms per missed step". Part of a flush does not depend on the number of missed steps, so this
value falls with --missed. This benchmark never reads ids beyond the smallest vocabulary. In a log
with such ids, steps take over part of the flush.

A vocabulary is omitted if the free memory is less than eight times its weights. Training needs six
times (weights, Adam's moments, and the temporaries of a dense step).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import gcd, inf
from pathlib import Path

import numpy as np

from cowclip_merlin import choices, compat
from cowclip_merlin.bench.random_data import criteo_fields, random_rows
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import ColumnArrays, DeviceData
from cowclip_merlin.loading.placement import free_memory
from cowclip_merlin.settings import device_option, option
from cowclip_merlin.system.machine import bytes_left
from cowclip_merlin.types import JsonObject
from harness import Benchmark, in_turn, ratios, table
from step_parts.trained import (
    Trained,
    VocabulariesChecked,
    batch_sizes,
    distinct_rows,
    layers,
    updates,
)

POOL = 32  # batches of the largest size before rows repeat
SECONDS = 5.0  # after which a turn ends early, once it has three steps
BYTES_NEEDED = 8 * 4 * 11  # free memory for each id: eight times the weights
Records = list[JsonObject]


@dataclass(frozen=True, kw_only=True)
class VocabularySettings(VocabulariesChecked):
    """What is measured."""

    vocabularies: tuple[int, ...] = option(
        (100_000, 1_000_000, 10_000_000, 40_000_000), "ids of all fields together, ascending"
    )
    batches: tuple[int, ...] = batch_sizes(1024, 8192)
    updates: tuple[str, ...] = updates(*choices.UPDATES)
    mlp: tuple[int, ...] = layers()
    rounds: int = option(5, "turns of every configuration", at_least=1)
    steps: int = option(10, "timed steps of a turn", at_least=1)
    warm_up: int = option(20, "untimed steps of a turn with exact; others have two", at_least=1)
    missed: int = option(100, "steps before a flush, at least", at_least=1)
    figure: Path | None = option(
        None, "draw it as SVG here", kind=Path, metavar="FILE", output=True
    )
    device: str = device_option()

    def __post_init__(self) -> None:
        """Check each value, and that the vocabularies rise."""
        super().__post_init__()
        if list(self.vocabularies) != sorted(set(self.vocabularies)):
            given = ",".join(map(str, self.vocabularies))
            raise InputError(f"--vocabularies {given}: give them rising, every one once")


def fitting(settings: VocabularySettings) -> list[int]:
    """Return the vocabularies that fit into memory; print the others."""
    of_gpu, chosen = free_memory(), []
    free = bytes_left() if of_gpu is None else of_gpu
    for vocabulary in settings.vocabularies:
        needed = BYTES_NEEDED * vocabulary
        if free is None or needed <= free:
            chosen.append(vocabulary)
        else:
            print(
                f"omitted: {vocabulary:,} ids need {needed / 1e9:.1f} GB of free memory, but "
                f"{free / 1e9:.1f} GB are free"
            )
    return chosen


def spread_ids(rows: ColumnArrays, fields: Mapping[str, int]) -> ColumnArrays:
    """Map the ids of the rows one to one to ids spread over larger fields.

    >>> ids = np.arange(4, dtype=np.int32)[:, None]
    >>> spread_ids(ColumnArrays(ids, ids, ids), {"C1": 10}).ids[:, 0].tolist()
    [0, 7, 4, 1]
    """
    mapped = np.empty_like(rows.ids)
    for column, size in enumerate(fields.values()):
        factor = max(1, round(0.618034 * size))  # near the golden ratio: far apart and evenly
        while gcd(factor, size) > 1:
            factor += 1
        mapped[:, column] = rows.ids[:, column].astype(np.int64) * factor % size
    return replace(rows, ids=mapped)


def turn(
    settings: VocabularySettings, update: str, vocabulary: int, rows: ColumnArrays
) -> tuple[Records, Records]:
    """Build a model, time it at each batch size, and its flush if it has one; then free it."""
    try:
        return _turn(settings, update, vocabulary, rows)
    finally:
        compat.release_models()


def _turn(
    settings: VocabularySettings, update: str, vocabulary: int, rows: ColumnArrays
) -> tuple[Records, Records]:
    fields, made = criteo_fields(vocabulary), 0
    run = Trained(DeviceData(spread_ids(rows, fields)), fields, update, mlp=settings.mlp)

    def train(batch: int, steps: int, most: float = inf) -> tuple[int, float]:
        """Return steps and seconds; stop early after three steps if the time is up."""
        nonlocal made
        started = time.perf_counter()
        for step in range(1, steps + 1):
            run.step(np.arange(made * batch, (made + 1) * batch) % len(rows))
            made += 1
            run.wait()
            spent = time.perf_counter() - started
            if spent > most and step >= 3:
                break
        return step, spent

    found, flushes = [], []
    for batch in settings.batches:
        train(batch, settings.warm_up if update == "exact" else 2)
        steps, seconds = train(batch, settings.steps, SECONDS)
        ms, backend = 1000 * seconds / steps, run.optimizer.backend
        found.append({"ms_per_step": ms, "steps": steps, "backend": backend})
    if update == "exact":
        while made < settings.missed:
            train(1, 1)
        flushes.append({"missed_steps": made, "seconds": run.flush()})
    return found, flushes


def measure(settings: VocabularySettings) -> JsonObject:
    """Measure every configuration in turn, round by round; return a result for JSON."""
    # TensorFlow warns about every rebuilt model, and every round rebuilds the models.
    compat.tensorflow().get_logger().setLevel("ERROR")
    smallest = criteo_fields(settings.vocabularies[0])
    rows, chosen = random_rows(POOL * max(settings.batches), smallest), fitting(settings)
    if not chosen:
        raise InputError("no vocabulary fits into the free memory; use smaller --vocabularies")
    for update in settings.updates:  # compiles kernels for the later turns
        turn(settings, update, chosen[0], rows)
    cases = {
        (vocabulary, update): partial(turn, settings, update, vocabulary, rows)
        for vocabulary, update in product(chosen, settings.updates)
    }
    turns = in_turn(cases, settings.rounds)
    rounds = {
        (v, batch, u): [found[i] for found, _ in turns[v, u]]
        for v, (i, batch), u in product(chosen, enumerate(settings.batches), settings.updates)
    }
    flushes = {v: [x for u in settings.updates for _, f in turns[v, u] for x in f] for v in chosen}
    batches = {b: np.arange(8 * b).reshape(8, b) for b in settings.batches}
    return {
        "what": "training step, milliseconds, by vocabulary",
        **{name: getattr(settings, name) for name in ("warm_up", "steps")},
        "mlp": list(settings.mlp),
        "distinct_rows": [
            {"batch": b, "rows": distinct_rows(rows.ids, smallest, numbers)}
            for b, numbers in batches.items()
        ],
        "results": [_result(key, rounds) for key in rounds],
        "flushes": [_flush_result(v, found) for v, found in flushes.items() if found],
    }


def _result(key: tuple[int, int, str], rounds: Mapping[tuple, Records]) -> JsonObject:
    vocabulary, batch, update = key
    smallest = min(v for v, *_ in rounds)
    mine, base = (
        [r["ms_per_step"] for r in rounds[v, batch, update]] for v in (vocabulary, smallest)
    )
    return {
        "vocabulary": vocabulary,
        "batch": batch,
        "update": update,
        "ms_per_step": statistics.median(mine),
        "fastest": min(mine),
        "slowest": max(mine),
        "ratio_to_smallest": statistics.median(ratios(mine, base)),
        "rounds": rounds[key],
    }


def _flush_result(vocabulary: int, rounds: Records) -> JsonObject:
    seconds = [r["seconds"] for r in rounds]
    each = [1000 * r["seconds"] / r["missed_steps"] for r in rounds]
    return {
        "vocabulary": vocabulary,
        "missed_steps": rounds[0]["missed_steps"],
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "ms_per_missed_step": statistics.median(each),
        "rounds": rounds,
    }


STEPS = {
    "batch": "{batch:,}",
    "update": "{update}",
    "ids": "{vocabulary:,}",
    "ms per step (min to max)": "{ms_per_step:.1f} ({fastest:.1f} to {slowest:.1f})",
    "to the smallest": "{ratio_to_smallest:.2f}",
}
FLUSHES = {
    "ids": "{vocabulary:,}",
    "steps missed": "{missed_steps:,}",
    "flush, seconds (min to max)": "{seconds:.2f} ({fastest:.2f} to {slowest:.2f})",
    "ms per missed step": "{ms_per_missed_step:.2f}",
}
DISTINCT = {"batch": "{batch:,}", "distinct rows": "{rows:,.0f}"}


def text(result: JsonObject) -> str:
    """Format steps and flushes as Markdown."""
    order = sorted(result["results"], key=lambda r: (r["batch"], r["update"], r["vocabulary"]))
    tables = (STEPS, order), (FLUSHES, result["flushes"]), (DISTINCT, result["distinct_rows"])
    return "\n\n".join(table(*each) for each in tables)


def draw(settings: VocabularySettings, result: JsonObject) -> None:
    """Draw milliseconds per step by ids if a file is given: a panel for each batch size."""
    if settings.figure is None:
        return
    from matplotlib.ticker import LogFormatter

    from cowclip_merlin.plotting.colors import BLACK, BLUE, SKY_BLUE, VERMILION
    from cowclip_merlin.plotting.style import new_figure, save_figure

    flushes = {r["vocabulary"]: r["ms_per_missed_step"] for r in result["flushes"]}
    # Markers and lines distinguish the curves in print.
    curves = {
        "dense": ("dense", VERMILION, "s-"),
        "exact": ("exact", BLUE, "o-"),
        "lazy": ("lazy", BLACK, "^:"),
        "exact and its flush": ("exact", SKY_BLUE, "D--"),
    }
    figure = new_figure(0.8 + 3.6 * len(settings.batches), 3.8)
    panels = figure.subplots(1, len(settings.batches), sharey=True, squeeze=False)[0]
    for axes, batch in zip(panels, settings.batches, strict=True):
        for name, (update, color, style) in curves.items():
            rows = [r for r in result["results"] if (r["batch"], r["update"]) == (batch, update)]
            ids = np.array([r["vocabulary"] for r in rows])
            ms, least, most = (
                np.array([r[key] for r in rows]) for key in ("ms_per_step", "fastest", "slowest")
            )
            more = [flushes[i] for i in ids.tolist()] if name.endswith("flush") else 0
            axes.errorbar(
                ids, ms + more, yerr=[ms - least, most - ms], fmt=style, color=color, label=name,
                linewidth=1.3, markersize=4, capsize=2, elinewidth=0.8,
            )  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="ids", title=f"batch {batch:,}")
        # 40, not 4 x 10^1, because readers read milliseconds from this axis.
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        axes.grid(True, which="major", linewidth=0.4, alpha=0.5)
    panels[0].set_ylabel("ms per step")
    panels[0].legend(title="update", fontsize=8)
    save_figure(figure, settings.figure)


BENCHMARK = Benchmark(
    about=__doc__, settings=VocabularySettings, measure=measure, text=text, finish=draw
)
