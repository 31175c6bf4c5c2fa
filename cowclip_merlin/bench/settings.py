"""Settings of a measurement of the training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cowclip_merlin import choices
from cowclip_merlin.settings import Settings, option

NUM_FIELDS, CONTINUOUS = 26, 13
LEAST_VOCABULARY = 4 * NUM_FIELDS


def vocabulary_option(default: Any, help: str, **details: Any) -> Any:
    """Define a field of the ids that all fields share, each of which has at least 4."""
    return option(default, help, at_least=LEAST_VOCABULARY, below=2**31, **details)


@dataclass(frozen=True, kw_only=True)
class BenchSettings(Settings):
    """Settings of a measurement.

    The clip "none" is the baseline.

    Raises:
        InputError: if a value is unknown, out of range or given twice.
    """

    models: Sequence[str] = option(
        ("deepfm",),
        "any of {choices}",
        flag="--model",
        metavar="A,B",
        choices=lambda: choices.MODELS,
        unique=True,
    )
    updates: Sequence[str] = option(
        choices.UPDATES,
        "any of {choices}",
        flag="--update",
        metavar="A,B",
        choices=choices.UPDATES,
        unique=True,
    )
    backends: Sequence[str] = option(
        ("auto",),
        "any of {choices}",
        flag="--backend",
        metavar="A,B",
        choices=choices.BACKENDS,
        unique=True,
    )
    clips: Sequence[str] = option(  # every update supports them
        ("none", "cowclip"),
        "any of {choices}",
        flag="--clip",
        metavar="A,B",
        choices=choices.exact_clips,
        unique=True,
    )
    precisions: Sequence[str] = option(
        ("float32",),
        "any of {choices}",
        flag="--precision",
        metavar="A,B",
        choices=choices.PRECISIONS,
        unique=True,
    )
    batches: Sequence[int] = option(
        (1024, 8192, 65536),
        "rows per step",
        flag="--batch-sizes",
        metavar="N,N",
        at_least=1,
        unique=True,
    )
    vocabulary: int = vocabulary_option(1_000_000, "ids in all 26 fields together")
    multi_values: int = option(
        0,
        "mean number of ids of a row in each field, as lists of 1 to 2 N - 1 ids; 0: one id each",
        metavar="N",
        at_least=0,
        at_most=1000,
    )
    rounds: int = option(5, "rounds; each one measures every configuration", at_least=1)
    rows_per_turn: int | None = option(
        None,
        "rows per measurement, at least one batch",
        shown="65,536, on a GPU 2,097,152",
        at_least=1,
    )
    jit_compile: bool = option(
        False, "compile everything between lookups and optimizer, and the bare MLP, with XLA"
    )
