"""Settings of every model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cowclip_merlin import choices
from cowclip_merlin.checks import check_whole, one_of
from cowclip_merlin.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Settings of every model.

    Attributes:
        embedding_dim: length of an embedding row.
        mlp: widths of the hidden layers.
        activation: of the hidden layers, one of `choices.ACTIVATIONS`.
        dropout: share of each hidden layer's outputs that a step of training sets to 0.
        batch_norm: whether hidden layers normalize by the batch before their activation.
        continuous: "deep": continuous features enter the MLP only, as in the paper's text;
            "all": the linear and cross parts too, as in the authors' code.
        tables: layout of the tables, one of `choices.TABLES`.
        capacity: rows to reserve for each table of `tables="growing"`; see `growing_table`.
        init_std: standard deviation of the initial embeddings.
        multi_task: None: one target, the first of the schema. Else a logit for each target:
            "shared_bottom": all layers are shared, except an output layer for each target. "mmoe":
            experts in place of the MLP, mixed by a gate for each target. "esmm": an MLP for each
            of two labels; the second is predicted as p(first) times p(second after first), so it
            is 0, not missing, where the first is 0. The linear part is an output layer of one-hot
            ids, so each target has its own.
        mmoe_experts: number of experts of "mmoe".
        seed: random seed of all initial weights; None draws one from NumPy's global generator.
        freeze_embeddings: categorical columns whose embeddings stay as they start; for `tables`
            "fused" and "per_field". First-order weights are trained in any case.

    Raises:
        InputError: if a value is unknown or out of range.
    """

    embedding_dim: int = 10
    mlp: tuple[int, ...] = (400, 400, 400)
    activation: str = "relu"
    dropout: float = 0.0
    batch_norm: bool = False
    continuous: str = "deep"
    tables: str = "fused"
    capacity: int | None = None
    init_std: float = 1e-2
    multi_task: str | None = None
    mmoe_experts: int = 4
    seed: int | None = None
    freeze_embeddings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values, and choose a seed if it is None."""
        object.__setattr__(self, "mlp", tuple(self.mlp))
        names = ("embedding_dim", "mlp", "mmoe_experts", "capacity", "seed")
        check_whole({name: getattr(self, name) for name in names})
        one_of("activation", self.activation, choices.ACTIVATIONS)
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout}; it must be at least 0 and below 1")
        one_of("continuous", self.continuous, choices.CONTINUOUS)
        one_of("tables", self.tables, choices.TABLES)
        self._check_capacity()
        object.__setattr__(self, "freeze_embeddings", tuple(self.freeze_embeddings))
        if self.freeze_embeddings and self.tables not in choices.FREEZING:
            raise InputError(
                f"freeze_embeddings does not work with tables={self.tables!r}; use tables="
                + " or ".join(map(repr, choices.FREEZING))
            )
        self._check_multi_task()
        if self.embedding_dim < 1 or not self.mlp or min(self.mlp) < 1:
            raise InputError(
                f"embedding_dim {self.embedding_dim}, mlp {self.mlp}: all must be at least 1"
            )
        if self.seed is None:
            object.__setattr__(self, "seed", int(np.random.randint(1 << 30)))

    @property
    def has_plain_hidden_layers(self) -> bool:
        """Whether the hidden layers are ReLU layers with nothing besides."""
        return self.activation == "relu" and not self.dropout and not self.batch_norm

    def _check_multi_task(self) -> None:
        if self.multi_task is None:
            return
        one_of("multi_task", self.multi_task, choices.MULTI_TASKS)
        if self.mmoe_experts < 1:
            raise InputError(f"mmoe_experts is {self.mmoe_experts}; it must be at least 1")

    def _check_capacity(self) -> None:
        if self.tables != "growing" and self.capacity is not None:
            raise InputError(
                'capacity is only for tables="growing", but '
                f"tables is {self.tables!r}; leave it out"
            )
        if self.tables == "growing" and self.capacity is None:
            raise InputError(
                'tables="growing" needs capacity, the number of rows to reserve; give more than '
                "the run will use"
            )
        if self.capacity is not None and not 1 <= self.capacity < 1 << 31:
            raise InputError(f"capacity is {self.capacity}; give 1 or more, below 2^31")
