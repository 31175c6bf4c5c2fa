"""Training steps by the number of ids, and the updates that they postpone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, product
from math import gcd
from pathlib import Path

import numpy as np

from cowclip_merlin import choices, compat
from cowclip_merlin.bench.random_data import criteo_fields, random_rows
from cowclip_merlin.bench.settings import vocabulary_option
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import ColumnArrays, DeviceData
from cowclip_merlin.loading.placement import free_memory
from cowclip_merlin.settings import Settings, device_option, option
from cowclip_merlin.system.machine import bytes_left
from cowclip_merlin.types import Array, JsonObject
from harness import Benchmark, batch_sizes, layers, table, updates
from steps import Case, Trained, timed

POOL = 32  # batches of the largest size before rows repeat
SECONDS = 5.0  # after which a turn ends early, once it has three steps
BYTES_NEEDED = 8 * 4 * 11  # free memory for each id: eight times the weights


@dataclass(frozen=True, kw_only=True)
class VocabularySettings(Settings):
    """What is measured."""

    vocabularies: tuple[int, ...] = vocabulary_option(
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
        if needed <= free:
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


class Turns:
    """The turns of all cases, on the same batches."""

    def __init__(self, settings: VocabularySettings) -> None:
        self.smallest = criteo_fields(settings.vocabularies[0])
        self.settings, most = settings, max(settings.batches)
        self.rows = random_rows(POOL * most, self.smallest)
        self.backends: dict[str, str] = {}

    def turn(self, case: Case) -> float:
        """Build a model, train it, free it; return milliseconds of a step, or of a missed one."""
        try:
            return self._flush(case) if case.what == "flush" else self._step(case)
        finally:
            compat.release_models()

    def _model(self, case: Case, update: str) -> tuple[Trained, Callable[[int], None]]:
        """Return a model, and what trains a batch of so many rows."""
        fields, made = criteo_fields(case.vocabulary), count()
        data = DeviceData(spread_ids(self.rows, fields))
        run = Trained(data, fields, update, mlp=self.settings.mlp)
        self.backends[update] = run.optimizer.backend

        def train(batch: int) -> None:
            first = next(made) * batch
            run.step(np.arange(first, first + batch) % len(self.rows))
            run.wait()

        return run, train

    def _step(self, case: Case) -> float:
        _, train = self._model(case, case.what)
        for _ in range(self.settings.warm_up if case.what == "exact" else 2):
            train(case.batch)
        started, spent = time.perf_counter(), 0.0
        for step in range(1, self.settings.steps + 1):
            train(case.batch)
            spent = time.perf_counter() - started
            if spent > SECONDS and step >= 3:
                break
        return 1e3 * spent / step

    def _flush(self, case: Case) -> float:
        run, train = self._model(case, "exact")
        for step in range(self.settings.missed):  # some of full batches, which leave other rows
            train(case.batch if step < self.settings.warm_up else 1)
        return 1e3 * run.flush() / self.settings.missed


def distinct_rows(ids: Array, fields: Mapping[str, int], batches: Sequence[Array]) -> float:
    """Return the mean number of table rows that a batch reads.

    >>> ids = np.array([[0, 0], [0, 1], [0, 0]])
    >>> distinct_rows(ids, {"C1": 1, "C2": 2}, [[0, 1], [0, 2]])
    2.5
    """
    offsets = np.cumsum([0, *fields.values()])[:-1]
    return float(np.mean([len(np.unique(ids[batch] + offsets)) for batch in batches]))


def measure_vocabulary(settings: VocabularySettings) -> JsonObject:
    """Measure milliseconds per training step by number of ids, for every `update`.

    It trains a DeepFM with embeddings of 10 and the wide part, each in one fused table, with
    CowClip and Adam. All vocabularies train on the same batches. Ids are drawn once, from a power
    law over the smallest vocabulary. A one-to-one map spreads them over the larger tables. So the
    distinct rows of a batch, and the steps that each row has missed, are equal. Only the size of
    the tables differs.

    Each case has one turn in every round. A turn builds the model, warms it up, times it, and frees
    it. The value of a turn is its mean. Medians and ratios are over the rounds, with ratios within
    a round. "dense" updates every row at every step. "exact" and "lazy" update the rows of the
    batch.

    "exact" gives the numbers of "dense", because it replays the missed steps later. A step replays
    them for the rows of its batch (rows miss steps during the warm-up). The end of an epoch replays
    them for all other rows. No step includes that last part, so a flush is timed separately, as
    another case: after --missed steps, the last of them on batches of one row. Its value is the
    milliseconds per missed step. For an epoch of N steps, add N times that. Part of a flush does
    not depend on the number of missed steps, so this value falls with --missed. This benchmark
    never reads ids beyond the smallest vocabulary. In a log with such ids, steps take over part of
    the flush.

    A vocabulary is omitted if the free memory is less than eight times its weights. Training needs
    six times (weights, Adam's moments, and the temporaries of a dense step).
    """
    # TensorFlow warns about every rebuilt model, and every round rebuilds the models.
    compat.tensorflow().get_logger().setLevel("ERROR")
    turns, chosen = Turns(settings), fitting(settings)
    if not chosen:
        raise InputError("no vocabulary fits into the free memory; use smaller --vocabularies")
    kinds = [*settings.updates, *(("flush",) if "exact" in settings.updates else ())]
    cases = [Case(*x) for x in product(kinds, settings.batches, chosen)]
    for case in cases[:: len(chosen)]:  # compiles kernels for the later turns
        turns.turn(case)
    rows = timed(
        {case: partial(turns.turn, case) for case in cases},
        settings.rounds,
        base=lambda case: case._replace(vocabulary=chosen[0]),
        warm_up=0,
    )
    batches = {b: np.arange(8 * b).reshape(8, b) for b in settings.batches}
    return {
        "what": "training step, milliseconds, by vocabulary",
        **{name: getattr(settings, name) for name in ("warm_up", "steps", "missed", "mlp")},
        "distinct_rows": [
            {"batch": b, "rows": distinct_rows(turns.rows.ids, turns.smallest, numbers)}
            for b, numbers in batches.items()
        ],
        "backends": turns.backends,
        "results": rows,
    }


def vocabulary_text(result: JsonObject) -> str:
    """Format steps and flushes as Markdown."""
    steps = {
        "batch": "{batch:,}",
        "update": "{what}",
        "ids": "{vocabulary:,}",
        "ms per step, flush: per missed step (min to max)":
            "{median:.2f} ({least:.2f} to {most:.2f})",
        "to the smallest": "{ratio:.2f}",
    }  # fmt: skip
    distinct = {"batch": "{batch:,}", "distinct rows": "{rows:,.0f}"}
    order = sorted(result["results"], key=lambda r: (r["batch"], r["what"], r["vocabulary"]))
    return f"{table(steps, order)}\n\n{table(distinct, result['distinct_rows'])}"


def draw(settings: VocabularySettings, result: JsonObject) -> None:
    """Draw milliseconds per step by ids if a file is given: a panel for each batch size."""
    if settings.figure is None:
        return
    from matplotlib.ticker import LogFormatter

    from cowclip_merlin.plotting.colors import BLACK, BLUE, SKY_BLUE, VERMILION
    from cowclip_merlin.plotting.style import new_figure, save_figure

    found = {(r["what"], r["batch"], r["vocabulary"]): r for r in result["results"]}
    known = sorted({vocabulary for *_, vocabulary in found})
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
            if (update, batch, known[0]) not in found:
                continue
            ms, least, most = (
                np.array([found[update, batch, ids][key] for ids in known])
                for key in ("median", "least", "most")
            )
            more = np.zeros(len(known))
            if name.endswith("flush"):
                more += [found["flush", batch, ids]["median"] for ids in known]
            axes.errorbar(
                known, ms + more, yerr=[ms - least, most - ms], fmt=style, color=color, label=name,
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


VOCABULARY = Benchmark(
    settings=VocabularySettings, measure=measure_vocabulary, text=vocabulary_text, finish=draw
)
