"""Milliseconds of one training step against the number of ids, for every `update`.

    python benchmarks/vocabulary.py [--vocabularies 100000,1000000,10000000,40000000]
        [--batch-sizes 1024,8192] [--updates dense,exact,lazy] [--model deepfm]
        [--mlp 400,400,400] [--embedding-dim 10] [--rounds 5] [--steps 10] [--seconds 5]
        [--warm-up 20] [--missed 100] [--memory-factor 8] [--device auto|cpu|gpu]
        [--json FILE] [--overwrite] [--figure FILE.svg]

By default a DeepFM with embeddings of 10 and the wide part, each one fused table; CowClip and
Adam. All vocabularies train on the same batches: ids are drawn once, from a power law over the
smallest vocabulary, and a one-to-one map spreads them over the larger tables. So the distinct rows
of a batch, and the steps that each has missed, are equal, and only the size of the tables differs.

In every round each vocabulary and each update has its turn: the model is built, warmed up, timed
at each batch size and freed. A turn's number is its mean; medians and ratios are over the rounds,
ratios within a round. "dense" touches every row at every step, "exact" and "lazy" those of the
batch.

"exact" gives the numbers of "dense" because it makes the missed steps up later: for the rows of
the batch within the step (the warm-up lets rows miss some), for all others at the end of an
epoch. That last part is in no step, so `optimizer.flush()` is timed on its own, after --missed
steps or more (the last of them on batches of one row). Of an epoch of N steps, N times "ms a
missed step" must be added; part of a flush does not depend on the steps missed, so this number
falls with --missed. No id beyond the smallest vocabulary is ever read here; in a log where they
are, part of the flush falls into the steps instead.

A vocabulary is left out if less memory is free than --memory-factor times its weights. Training
needs six times (weights, Adam's moments, and the temporaries of a dense step).
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from circumstances import circumstances, finish, load_now
from prompt import option, orderly, parser, refuse_no_files
from vocabulary_figure import draw_figure
from vocabulary_step import Step, VocabularySettings, distinct_rows, draw, free_bytes, spread

from cowclip_merlin import compat
from cowclip_merlin.bench.random_data import field_sizes
from cowclip_merlin.checks import above_zero
from cowclip_merlin.cli.common_options import whole_numbers
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import ColumnArrays
from cowclip_merlin.loading.placement import free_memory
from cowclip_merlin.training.build import choose_device
from cowclip_merlin.training.run_settings import MODELS

FACTOR = 8.0

Records = list[dict[str, Any]]


def fitting(settings: VocabularySettings, factor: float) -> list[int]:
    """The vocabularies there is memory for; the others are named and left out."""
    of_gpu, chosen = free_memory(), []
    free = free_bytes() if of_gpu is None else of_gpu
    for vocabulary in settings.vocabularies:
        needed = factor * settings.table_bytes(vocabulary)
        if free is None or needed <= free:
            chosen.append(vocabulary)
        else:
            print(
                f"left out: {vocabulary:,} ids: {needed / 1e9:.1f} GB of free memory wanted, "
                f"{free / 1e9:.1f} GB are free"
            )
    return chosen


def turn(
    settings: VocabularySettings, update: str, vocabulary: int, rows: ColumnArrays
) -> tuple[Records, dict[str, Any] | None]:
    """One model built, timed at each batch size, and freed; then what a flush took, if it has."""
    step, found = Step(settings, update, vocabulary, rows), []
    for batch in settings.batches:
        step.train(batch, settings.warm_up if update == "exact" else 2)
        steps, seconds = step.train(batch, settings.steps, settings.seconds)
        found.append(
            {"ms_per_step": 1000 * seconds / steps, "steps": steps, "backend": step.backend}
        )
    if update != "exact":
        return found, None
    while step.made < settings.missed:
        step.train(1, 1)
    return found, {"missed_steps": step.made, "seconds": step.flush()}


def measure(settings: VocabularySettings, *, factor: float = FACTOR) -> dict[str, Any]:
    """Every configuration in turn, round by round; ready for JSON."""
    load, rows = load_now(), draw(settings)
    chosen = fitting(settings, factor)
    if not chosen:
        raise InputError("no vocabulary fits into the free memory; give smaller --vocabularies")
    rounds, flushes = _rounds(settings, chosen, rows)
    same = ("model", "embedding_dim", "warm_up", "steps", "seconds")
    return {
        "what": "training step, milliseconds, by vocabulary",
        **{name: getattr(settings, name) for name in same},
        "mlp": list(settings.mlp),
        "distinct_rows": _distinct(settings, chosen, rows),
        "results": [_result(key, rounds) for key in rounds],
        "flushes": [_flush_result(v, found) for v, found in flushes.items() if found],
        "load_before": load,
    }


def _rounds(
    settings: VocabularySettings, chosen: list[int], rows: ColumnArrays
) -> tuple[dict[tuple, Records], dict[int, Records]]:
    """What each turn found: of (vocabulary, batch, update), and of each vocabulary's flush."""
    for update in settings.updates:  # compiles kernels, which later turns find compiled
        turn(settings, update, chosen[0], rows)
    rounds: dict[tuple, Records]
    rounds = {key: [] for key in product(chosen, settings.batches, settings.updates)}
    flushes: dict[int, Records] = {vocabulary: [] for vocabulary in chosen}
    for vocabulary, update in _turns(settings, chosen):
        records, flush = turn(settings, update, vocabulary, rows)
        flushes[vocabulary] += [flush] if flush else []
        for batch, record in zip(settings.batches, records, strict=True):
            rounds[vocabulary, batch, update].append(record)
        # Models hold themselves in circles: without this, two of them would lie in memory.
        compat.tensorflow().keras.backend.clear_session()
        gc.collect()
    return rounds, flushes


def _turns(settings: VocabularySettings, chosen: list[int]) -> Any:
    from tqdm import tqdm

    turns = list(product(range(settings.rounds), chosen, settings.updates))
    for _, vocabulary, update in tqdm(turns, desc="turns", disable=None, leave=False):
        yield vocabulary, update


def _distinct(settings: VocabularySettings, chosen: list[int], rows: ColumnArrays) -> Records:
    found = []
    for vocabulary in chosen:
        sizes = field_sizes(vocabulary)
        spread_rows = spread(rows, sizes)
        for batch in settings.batches:
            mean = distinct_rows(spread_rows, sizes, batch)
            found.append({"vocabulary": vocabulary, "batch": batch, "rows": mean})
    return found


def _result(key: tuple, rounds: dict[tuple, list]) -> dict[str, Any]:
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
        "ratio_to_smallest": statistics.median(a / b for a, b in zip(mine, base, strict=True)),
        "rounds": rounds[key],
    }


def _flush_result(vocabulary: int, rounds: Records) -> dict[str, Any]:
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


def table(result: dict[str, Any]) -> str:
    """The steps as Markdown."""
    lines = [
        "| batch | update | ids | ms a step (min to max) | to the smallest |",
        "|--:|:--|--:|--:|--:|",
    ]
    by_line = sorted(result["results"], key=lambda r: (r["batch"], r["update"], r["vocabulary"]))
    lines += [
        f"| {r['batch']:,} | {r['update']} | {r['vocabulary']:,} | {r['ms_per_step']:.1f} "
        f"({r['fastest']:.1f} to {r['slowest']:.1f}) | {r['ratio_to_smallest']:.2f} |"
        for r in by_line
    ]
    return "\n".join(lines)


def flush_table(result: dict[str, Any]) -> str:
    """The flushes as Markdown."""
    lines = [
        "| ids | steps missed | flush, seconds (min to max) | ms a missed step |",
        "|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {r['vocabulary']:,} | {r['missed_steps']:,} | {r['seconds']:.2f} "
        f"({r['fastest']:.2f} to {r['slowest']:.2f}) | {r['ms_per_missed_step']:.2f} |"
        for r in result["flushes"]
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    made, known = parser(__doc__), VocabularySettings()
    add = partial(option, made)
    add("--vocabularies", known.vocabularies, "ids of all fields together, rising")
    add("--batch-sizes", known.batches, "rows of a step")
    add("--updates", known.updates, "some of these")
    add("--model", known.model, f"one of {', '.join(MODELS)}")
    add("--mlp", known.mlp, "widths of the hidden layers")
    add("--embedding-dim", known.embedding_dim, "length of an embedding")
    add("--rounds", known.rounds, "turns of every configuration")
    add("--steps", known.steps, "timed steps of a turn")
    add("--seconds", known.seconds, "after which a turn ends early, once it has three steps")
    add("--warm-up", known.warm_up, "untimed steps of a turn with exact; others have two")
    add("--missed", known.missed, "steps before a flush, at least")
    add("--memory-factor", FACTOR, "free memory that a vocabulary must find, in its weights")
    made.add_argument("--figure", type=Path, metavar="FILE", help="draw it as SVG here")
    return made


def settings_from(args: argparse.Namespace) -> VocabularySettings:
    """The settings that the command line asks for."""
    lists = {
        name: whole_numbers(f"--{name.replace('_', '-')}", getattr(args, name), like="1024,8192")
        for name in ("vocabularies", "batch_sizes", "mlp")
    }
    same = ("model", "embedding_dim", "rounds", "steps", "seconds", "warm_up", "missed")
    return VocabularySettings(
        vocabularies=lists["vocabularies"],
        batches=lists["batch_sizes"],
        mlp=lists["mlp"],
        **{name: getattr(args, name) for name in same},
        updates=args.updates.split(","),
    )


def shown(result: dict[str, Any]) -> str:
    """The result as text."""
    flushes = f"\n{flush_table(result)}\n" if result["flushes"] else ""
    distinct = [
        f"{at['vocabulary']:,} ids, batch {at['batch']:,}: {at['rows']:,.0f} distinct rows"
        for at in result["distinct_rows"]
    ]
    return "\n".join([table(result), *([flushes] if flushes else []), *distinct])


@orderly()
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, write JSON, draw."""
    args = _parser().parse_args(arguments)
    settings = settings_from(args)
    above_zero({"--memory-factor": args.memory_factor})
    refuse_no_files(args.json, args.figure, overwrite=args.overwrite)
    choose_device(args.device)
    # It warns of every model built anew, which is what rounds are.
    compat.tensorflow().get_logger().setLevel("ERROR")
    result = measure(settings, factor=args.memory_factor)
    result |= circumstances(__file__, arguments, result["load_before"])
    finish(result, shown(result), args.json)
    if args.figure:
        draw_figure(result, args.figure)


if __name__ == "__main__":
    main()
