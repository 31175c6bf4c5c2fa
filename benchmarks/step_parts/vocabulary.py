"""Measure milliseconds per training step by number of ids, for every `update`.

    python benchmarks/step.py vocabulary [--vocabularies 100000,1000000,10000000,40000000]
        [--batch-sizes 1024,8192] [--updates dense,exact,lazy] [--model deepfm]
        [--mlp 400,400,400] [--embedding-dim 10] [--rounds 5] [--steps 10] [--seconds 5]
        [--warm-up 20] [--missed 100] [--memory-factor 8] [--device auto|cpu|gpu]
        [--json FILE] [--overwrite] [--figure FILE.svg]

By default it trains a DeepFM with embeddings of 10 and the wide part, each in one fused table, with
CowClip and Adam. All vocabularies train on the same batches. Ids are drawn once, from a power law
over the smallest vocabulary. A one-to-one map spreads them over the larger tables. So the distinct
rows of a batch, and the steps that each row has missed, are equal. Only the size of the tables
differs.

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

A vocabulary is omitted if the free memory is less than --memory-factor times its weights. Training
needs six times (weights, Adam's moments, and the temporaries of a dense step).
"""

from __future__ import annotations

import statistics
from functools import partial
from itertools import product

from cowclip_merlin import compat
from cowclip_merlin.bench.random_data import criteo_fields
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import ColumnArrays
from cowclip_merlin.loading.placement import free_memory
from cowclip_merlin.system.machine import bytes_left
from cowclip_merlin.types import JsonObject
from harness.benchmark import Benchmark
from harness.rounds import in_turn, ratios
from harness.tables import markdown
from step_parts.vocabulary_figure import draw_figure
from step_parts.vocabulary_settings import VocabularySettings
from step_parts.vocabulary_training import TrainedModel, distinct_rows, draw, spread

IN_JSON = ("model", "embedding_dim", "warm_up", "steps", "seconds")

Records = list[JsonObject]


def fitting(settings: VocabularySettings) -> list[int]:
    """Return the vocabularies that fit into memory; print the others."""
    of_gpu, chosen = free_memory(), []
    free = bytes_left() if of_gpu is None else of_gpu
    for vocabulary in settings.vocabularies:
        needed = settings.memory_factor * settings.table_bytes(vocabulary)
        if free is None or needed <= free:
            chosen.append(vocabulary)
        else:
            print(
                f"omitted: {vocabulary:,} ids need {needed / 1e9:.1f} GB of free memory, but "
                f"{free / 1e9:.1f} GB are free"
            )
    return chosen


def turn(
    settings: VocabularySettings, update: str, vocabulary: int, rows: ColumnArrays
) -> tuple[Records, JsonObject | None]:
    """Build a model, time it at each batch size, and its flush if it has one; then free it."""
    try:
        return _turn(settings, TrainedModel(settings, update, vocabulary, rows), update)
    finally:
        compat.release_models()


def _turn(
    settings: VocabularySettings, model: TrainedModel, update: str
) -> tuple[Records, JsonObject | None]:
    found = []
    for batch in settings.batches:
        model.train(batch, settings.warm_up if update == "exact" else 2)
        steps, seconds = model.train(batch, settings.steps, settings.seconds)
        found.append(
            {"ms_per_step": 1000 * seconds / steps, "steps": steps, "backend": model.backend}
        )
    if update != "exact":
        return found, None
    while model.made < settings.missed:
        model.train(1, 1)
    return found, {"missed_steps": model.made, "seconds": model.flush()}


def measure(settings: VocabularySettings) -> JsonObject:
    """Measure every configuration in turn, round by round; return a result for JSON."""
    # TensorFlow warns about every rebuilt model, and every round rebuilds the models.
    compat.tensorflow().get_logger().setLevel("ERROR")
    rows, chosen = draw(settings), fitting(settings)
    if not chosen:
        raise InputError("no vocabulary fits into the free memory; use smaller --vocabularies")
    rounds, flushes = _rounds(settings, chosen, rows)
    return {
        "what": "training step, milliseconds, by vocabulary",
        **{name: getattr(settings, name) for name in IN_JSON},
        "mlp": list(settings.mlp),
        "distinct_rows": _distinct(settings, chosen, rows),
        "results": [_result(key, rounds) for key in rounds],
        "flushes": [_flush_result(v, found) for v, found in flushes.items() if found],
    }


def _rounds(
    settings: VocabularySettings, chosen: list[int], rows: ColumnArrays
) -> tuple[dict[tuple, Records], dict[int, Records]]:
    """Return the values of each turn, by (vocabulary, batch, update), and of each flush."""
    for update in settings.updates:  # compiles kernels for the later turns
        turn(settings, update, chosen[0], rows)
    cases = {
        (vocabulary, update): partial(turn, settings, update, vocabulary, rows)
        for vocabulary, update in product(chosen, settings.updates)
    }
    rounds: dict[tuple, Records]
    rounds = {key: [] for key in product(chosen, settings.batches, settings.updates)}
    flushes: dict[int, Records] = {vocabulary: [] for vocabulary in chosen}
    for (vocabulary, update), found in in_turn(cases, settings.rounds, progress=True).items():
        for records, flush in found:
            flushes[vocabulary] += [flush] if flush else []
            for batch, record in zip(settings.batches, records, strict=True):
                rounds[vocabulary, batch, update].append(record)
    return rounds, flushes


def _distinct(settings: VocabularySettings, chosen: list[int], rows: ColumnArrays) -> Records:
    found = []
    for vocabulary in chosen:
        fields = criteo_fields(vocabulary)
        spread_rows = spread(rows, fields)
        for batch in settings.batches:
            mean = distinct_rows(spread_rows, fields, batch)
            found.append({"vocabulary": vocabulary, "batch": batch, "rows": mean})
    return found


def _result(key: tuple, rounds: dict[tuple, list]) -> JsonObject:
    vocabulary, batch, update = key
    smallest = next(v for v, b, u in rounds if (b, u) == (batch, update))
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
    return {
        "vocabulary": vocabulary,
        "missed_steps": rounds[0]["missed_steps"],
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "ms_per_missed_step": statistics.median(
            1000 * r["seconds"] / r["missed_steps"] for r in rounds
        ),
        "rounds": rounds,
    }


def table(result: JsonObject) -> str:
    """Format the steps as Markdown."""
    head = ("batch", "update", "ids", "ms per step (min to max)", "to the smallest")
    order = sorted(result["results"], key=lambda r: (r["batch"], r["update"], r["vocabulary"]))
    rows = [
        (
            f"{r['batch']:,}",
            r["update"],
            f"{r['vocabulary']:,}",
            f"{r['ms_per_step']:.1f} ({r['fastest']:.1f} to {r['slowest']:.1f})",
            f"{r['ratio_to_smallest']:.2f}",
        )
        for r in order
    ]
    return markdown(head, "rlrrr", rows)


def flush_table(result: JsonObject) -> str:
    """Format the flushes as Markdown."""
    head = ("ids", "steps missed", "flush, seconds (min to max)", "ms per missed step")
    rows = [
        (
            f"{r['vocabulary']:,}",
            f"{r['missed_steps']:,}",
            f"{r['seconds']:.2f} ({r['fastest']:.2f} to {r['slowest']:.2f})",
            f"{r['ms_per_missed_step']:.2f}",
        )
        for r in result["flushes"]
    ]
    return markdown(head, "rrrr", rows)


def text(result: JsonObject) -> str:
    """Format the result as text."""
    flushes = f"\n{flush_table(result)}\n" if result["flushes"] else ""
    distinct = [
        f"{at['vocabulary']:,} ids, batch {at['batch']:,}: {at['rows']:,.0f} distinct rows"
        for at in result["distinct_rows"]
    ]
    return "\n".join([table(result), *([flushes] if flushes else []), *distinct])


def draw_result(settings: VocabularySettings, result: JsonObject) -> None:
    """Draw the figure if a file is given."""
    if settings.figure:
        draw_figure(result, settings.figure)


BENCHMARK = Benchmark(
    script="step.py vocabulary",
    about=__doc__,
    settings=VocabularySettings,
    measure=measure,
    text=text,
    draw=draw_result,
)
