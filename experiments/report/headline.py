"""The first lines of the page, as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cowclip_merlin.experiments.report.cells import signed
from cowclip_merlin.experiments.report.claims import (
    Effect,
    Judged,
    count,
    effect,
    extremes,
    fastest,
    scores,
)
from cowclip_merlin.experiments.report.folder import Folder

_LEAD = {
    "seen": "The paper's effect is seen.",
    "seen in part": "The paper's effect is seen in part.",
    "not seen": "The paper's effect is not seen.",
    "not judged": "Whether the paper's effect is there cannot be judged.",
}


@dataclass(frozen=True, kw_only=True)
class Headline:
    """What was shown on one data set.

    Attributes:
        title: the data set.
        word: as `Effect.word`.
        lead: the answer.
        sentences: what it rests on.
    """

    title: str
    word: str
    lead: str
    sentences: Sequence[str]


def headline(folder: Folder) -> Headline:
    """What a results folder shows, by its verdicts."""
    numbers = scores(folder.tables)
    found = effect(numbers)
    return Headline(
        title=folder.title,
        word=found.word,
        lead=_LEAD[found.word],
        sentences=[*_against_paper(found), *_all(numbers), *_time(folder), *_runs(folder)],
    )


def _against_paper(found: Effect) -> list[str]:
    if not (found.kept or found.lost):
        return [
            "No number with a verdict has a published one beside it; verdicts need several seeds "
            "of a number and of its reference."
        ]
    kept, lost = found.kept, found.lost
    holding = len(kept) - count(kept, "worse")
    better, noise = count(kept, "better"), count(kept, "noise")
    return [
        f"Where the paper's AUC holds (no worse than the reference), {_of(holding, kept)} here: "
        f"{better} better, {noise} within noise, {len(kept) - holding} worse."
        if kept
        else "No judged AUC stands beside one that holds in the paper.",
        f"Where the paper's AUC falls, {_of(count(lost, 'worse'), lost)} here: "
        f"{count(lost, 'worse')} worse, {count(lost, 'noise')} within noise, "
        f"{count(lost, 'better')} better."
        if lost
        else "No judged AUC stands beside one that falls in the paper.",
    ]


def _of(some: int, every: Sequence[Judged]) -> str:
    verb = "does so" if some == 1 else "do so"
    return f"{some} of {len(every)} {verb}"


def _all(numbers: Sequence[Judged]) -> list[str]:
    if not numbers:
        return []
    gain, loss = extremes(numbers)
    whole = (
        f"All {len(numbers)} AUCs that have a verdict: {count(numbers, 'better')} better than the "
        f"reference, {count(numbers, 'noise')} within noise, {count(numbers, 'worse')} worse."
    )
    named = [("Largest gain", gain), ("Largest loss", loss)]
    return [whole, *(f"{name}: {_place(number)}." for name, number in named if number)]


def _place(number: Judged) -> str:
    places = number.table.decimals
    paper = "" if number.paper is None else f", in the paper {signed(number.paper, places)}"
    where = f"{number.row} at {number.column}, {number.table.title.partition(':')[0]}"
    return f"{signed(number.difference or 0.0, places)} AUC points{paper} ({where})"


def _time(folder: Folder) -> list[str]:
    found = fastest(folder.tables)
    if found is None:
        return []
    number, times = found
    return [
        f"Largest gain in training time: {times:.1f} times as fast as {number.table.reference} "
        f"({number.row} at {number.column}, {number.table.title.partition(':')[0]})."
    ]


def _runs(folder: Folder) -> list[str]:
    runs = folder.results
    if not runs:
        return []
    diverged = sum(run.status == "diverged" for run in runs)
    minutes = sum(run.seconds for run in runs) / 60
    whole = f"{minutes:.0f} minute{'s' * (round(minutes) != 1)}"
    time = whole if minutes < 60 else f"{minutes / 60:.1f} hours"
    seeds = len({run.seed for run in runs})
    return [
        f"{len(runs):,} run{'s' * (len(runs) > 1)} with {seeds} seed{'s' * (seeds > 1)}, "
        f"{diverged} diverged, {time} of training."
    ]
