"""Milliseconds of one training step against the number of ids, for every `update`.

    python benchmarks/vocabulary.py [--vocabularies 100000,1000000,10000000,40000000]
        [--batch-sizes 1024,8192] [--updates dense,exact,lazy] [--rounds 5]
        [--json FILE] [--figure FILE.svg]

A DeepFM with embeddings of 10 and the wide part, each one fused table, CowClip and Adam. All
vocabularies train on the same batches: ids are drawn once, from a power law over the smallest
vocabulary, and a one-to-one map spreads them over the larger tables. So the distinct rows of a
batch, and the steps that each has missed, are equal, and only the size of the tables differs.

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
from itertools import product
from pathlib import Path
from typing import Any

from circumstances import circumstances, load_now, numbers
from vocabulary_figure import draw_figure
from vocabulary_step import Step, VocabularySettings, distinct_rows, draw, free_bytes, spread

from cowclip_merlin import compat
from cowclip_merlin.bench import field_sizes
from cowclip_merlin.errors import InputError
from cowclip_merlin.files import write_json
from cowclip_merlin.loading import Columns
from cowclip_merlin.training.build import choose_device

FACTOR = 8.0

Records = list[dict[str, Any]]


def fitting(settings: VocabularySettings, factor: float) -> list[int]:
    """The vocabularies there is memory for; the others are named and left out."""
    free, chosen = free_bytes(), []
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
    settings: VocabularySettings, update: str, vocabulary: int, rows: Columns
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
    settings: VocabularySettings, chosen: list[int], rows: Columns
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


def _distinct(settings: VocabularySettings, chosen: list[int], rows: Columns) -> Records:
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = VocabularySettings()
    for name in ("vocabularies", "batches", "mlp"):
        flag = {"batches": "--batch-sizes"}.get(name, f"--{name}")
        default = ",".join(map(str, getattr(known, name)))
        parser.add_argument(flag, dest=name, default=default, metavar="A,B,C")
    parser.add_argument("--updates", default=",".join(known.updates), metavar="A,B,C")
    parser.add_argument("--model", default=known.model)
    parser.add_argument("--embedding-dim", type=int, default=known.embedding_dim)
    parser.add_argument("--rounds", type=int, default=known.rounds)
    parser.add_argument("--steps", type=int, default=known.steps, help="timed steps of a turn")
    parser.add_argument("--seconds", type=float, default=known.seconds, help="or so long at most")
    parser.add_argument("--warm-up", type=int, default=known.warm_up, help="steps, for exact")
    parser.add_argument("--missed", type=int, default=known.missed, help="steps before a flush")
    parser.add_argument("--memory-factor", type=float, default=FACTOR, metavar="X")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "gpu"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here, too")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw an SVG")
    return parser


def settings_from(args: argparse.Namespace) -> VocabularySettings:
    """The settings that the command line asks for."""
    lists = {name: numbers(getattr(args, name)) for name in ("vocabularies", "batches", "mlp")}
    same = ("model", "embedding_dim", "rounds", "steps", "seconds", "warm_up", "missed")
    return VocabularySettings(
        **lists,
        **{name: getattr(args, name) for name in same},
        updates=args.updates.split(","),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, write JSON, draw."""
    args = _parser().parse_args(arguments)
    try:
        settings = settings_from(args)
        choose_device(args.device)
        # It warns of every model built anew, which is what rounds are.
        compat.tensorflow().get_logger().setLevel("ERROR")
        result = measure(settings, factor=args.memory_factor)
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
    result |= circumstances(__file__, arguments, result["load_before"])
    print(table(result))
    if result["flushes"]:
        print("\n" + flush_table(result) + "\n")
    for at in result["distinct_rows"]:
        print(f"{at['vocabulary']:,} ids, batch {at['batch']:,}: {at['rows']:,.0f} distinct rows")
    print(f"{result['hardware']}, TensorFlow {result['versions'].get('tensorflow')}")
    if args.json:
        write_json(args.json, result)
    if args.figure:
        draw_figure(result, args.figure)


if __name__ == "__main__":
    main()
