"""The settings of `step.py vocabulary`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cowclip_merlin import choices
from cowclip_merlin.bench.random_data import check_vocabulary_size
from cowclip_merlin.checks import check_at_least_one, check_choices, check_positive, check_unique
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import option


@dataclass(frozen=True, kw_only=True)
class VocabularySettings:
    """Settings of the measurement.

    Attributes:
        vocabularies: ids of all fields together, ascending; the batches draw their ids from the
            first vocabulary.
        batches: batch sizes.
        updates: "dense", "exact", "lazy".
        model: name of a model.
        mlp: widths of the hidden layers.
        embedding_dim: length of an embedding row.
        rounds: turns of each configuration.
        steps: timed steps of a turn.
        seconds: a turn ends early after this many, once it has three steps.
        warm_up: untimed steps of a turn with "exact", so that rows have missed some; others
            get two.
        missed: minimum number of missed steps when the flush is timed.
        memory_factor: free memory that a vocabulary needs, in units of its weights.
        figure: file for a figure as SVG.

    Raises:
        InputError: if a value is unknown, out of range or given twice.
    """

    vocabularies: Sequence[int] = option(
        (100_000, 1_000_000, 10_000_000, 40_000_000), "ids of all fields together, ascending"
    )
    batches: Sequence[int] = option((1024, 8192), "rows per step", flag="--batch-sizes")
    updates: Sequence[str] = option(tuple(choices.UPDATES), "some of these")
    model: str = option("deepfm", f"one of {', '.join(choices.MODELS)}")
    mlp: tuple[int, ...] = option((400, 400, 400), "widths of the hidden layers")
    embedding_dim: int = option(10, "length of an embedding")
    rounds: int = option(5, "turns of every configuration")
    steps: int = option(10, "timed steps of a turn")
    seconds: float = option(5.0, "after which a turn ends early, once it has three steps")
    warm_up: int = option(20, "untimed steps of a turn with exact; others have two")
    missed: int = option(100, "steps before a flush, at least")
    memory_factor: float = option(
        8.0, "free memory that a vocabulary needs, in units of its weights"
    )
    figure: Path | None = option(
        None, "draw it as SVG here", kind=Path, metavar="FILE", output=True
    )

    def __post_init__(self) -> None:
        """Reject values that cannot be measured."""
        check_choices("--updates", self.updates, choices.UPDATES)
        check_choices("--model", (self.model,), choices.MODELS)
        check_unique({"--updates": self.updates, "--batch-sizes": self.batches})
        if list(self.vocabularies) != sorted(set(self.vocabularies)):
            given = ",".join(map(str, self.vocabularies))
            raise InputError(f"--vocabularies {given}: give them rising, every one once")
        check_vocabulary_size("--vocabularies", *self.vocabularies)
        check_at_least_one(
            {"--batch-sizes": self.batches, "--mlp": self.mlp, "--rounds": self.rounds}
        )
        check_at_least_one({"--embedding-dim": self.embedding_dim, "--steps": self.steps})
        check_at_least_one({"--warm-up": self.warm_up, "--missed": self.missed})
        check_positive({"--seconds": self.seconds, "--memory-factor": self.memory_factor})

    def table_bytes(self, vocabulary: int) -> int:
        """Bytes of the weights of the embeddings and of the wide part."""
        return 4 * vocabulary * (self.embedding_dim + 1)
