"""`CowClip` as an optimizer of PyTorch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from cowclip_merlin import choices
from cowclip_merlin.checks import one_of
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import Hyperparameters, check_hyperparameters
from cowclip_merlin.torch.tables import Table, tables_of


def _release(tables: list[Table]) -> None:
    """Leave the model whole where its optimizer is gone."""
    for table in tables:
        table.release()


class CowClip(torch.optim.Optimizer):
    """Adam for a model: CowClip and L2 for its embedding tables, plain Adam for its other weights.

    Tables are the weights of `nn.Embedding` and `nn.EmbeddingBag` with `sparse=True`. One step
    sums the gradients of equal ids, counts them, and adds L2. Then it clips the gradient of each
    row to norm `max(cnt, 1) * max(r * ||w||, sqrt(d) * zeta)`, and makes a step of Adam (Zheng et
    al., arXiv 2204.06240, Algorithm 1). Tables of dimension 1, the first-order weights, get L2 but
    no clip. With `update="exact"` and `clip="none"`, weights are those of `torch.optim.Adam(tables,
    lr, weight_decay=2 * l2)` but for rounding: a row gets the steps that it has missed before any
    function of PyTorch reads it.

    The first parameter group has the tables, the second one the other weights, so that schedulers
    change both rates. A state is that of `torch.optim.Adam`. Betas, eps and l2 stay as they are.

    Args:
        model: its tables and all other weights that have `requires_grad`.
        lr: learning rate of the tables.
        dense_lr: learning rate of the other weights; by default `lr`.
        l2: the penalty of a table is `l2 * ||w||^2`; its gradient is added before the clip.
        clip: "cowclip", "column" or "none".
        update: "exact" updates the rows of the batch, and others when they are read; "dense"
            updates all rows at every step, with the same numbers; "lazy" only those of the batch.
        betas: decay of Adam's moments, of tables and other weights.
        eps: added to the root of the second moment, where PyTorch adds it.
        r: threshold of "cowclip", relative to the norm of a row.
        zeta: lower bound of that norm, per coordinate.
        bound: threshold of "column".
        dense_optimizer: `dense_optimizer(weights, lr=dense_lr)` makes the optimizer of the other
            weights, such as `torch.optim.AdamW`; by default Adam with these betas and eps.

    Raises:
        InputError: a value is out of range or unknown, or the model has no table.

    Example:
        >>> model = nn.Sequential(nn.EmbeddingBag(10, 4, sparse=True), nn.Linear(4, 1))
        >>> optimizer = CowClip(model, lr=0.01)
        >>> model(torch.tensor([[3, 7, 3]])).sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[model[0].weight]["exp_avg"].any(dim=1).nonzero().flatten().tolist()
        [3, 7]
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        *,
        dense_lr: float | None = None,
        l2: float = 1e-5,
        clip: str = "cowclip",
        update: str = "exact",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        r: float = RowSettings.r,
        zeta: float = RowSettings.zeta,
        bound: float = RowSettings.bound,
        dense_optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    ) -> None:
        one_of("update", update, choices.UPDATES)
        one_of("clip", clip, choices.kernel_clips())
        beta_1, beta_2 = betas
        checked = Hyperparameters(
            embedding_lr=lr, dense_lr=lr if dense_lr is None else dense_lr, l2=l2, r=r, zeta=zeta,
            bound=bound, beta_1=beta_1, beta_2=beta_2, epsilon=eps,
        )  # fmt: skip
        settings = RowSettings(
            clip=clip, beta_1=beta_1, beta_2=beta_2, epsilon=eps, **checked.of_rows
        )
        found = list(tables_of(model))
        if not found:
            raise InputError(
                "the model has no table: give nn.Embedding or nn.EmbeddingBag sparse=True, or set "
                "`layer.sparse = True`"
            )
        mine = {id(parameter) for _, parameter in found}
        others = [x for x in model.parameters() if x.requires_grad and id(x) not in mine]
        self._tables = [Table(name, x, settings, update) for name, x in found]
        self._fixed = {"betas": (beta_1, beta_2), "eps": eps, "l2": l2}
        groups = [{"params": [x for _, x in found], "lr": lr, **self._fixed}]
        self._dense: torch.optim.Optimizer | None = None
        if others:
            if dense_optimizer is None:
                self._dense = torch.optim.Adam(others, checked.dense_lr, (beta_1, beta_2), eps)
            else:
                self._dense = dense_optimizer(others, lr=checked.dense_lr)
            groups += self._dense.param_groups
        super().__init__(groups, {})
        for table in self._tables:
            table.attach(self.state[table.parameter])
        weakref.finalize(self, _release, self._tables).atexit = False

    @classmethod
    def of(cls, model: nn.Module, values: Hyperparameters, **arguments: Any) -> CowClip:
        """Build a CowClip from hyper-parameters, such as `cowclip_merlin.scale` returns.

        Args:
            model: to train.
            values: all but `init_std` and `warmup_epochs`, which are for a schedule of yours.
            **arguments: other arguments of `CowClip`, such as `update`.

        Raises:
            InputError: the values have what this optimizer lacks.

        >>> from cowclip_merlin import scale
        >>> layer = nn.Embedding(5, 2, sparse=True)
        >>> CowClip.of(layer, scale("criteo", to=8192)).param_groups[0]["l2"]
        8e-05
        """
        check_hyperparameters(values)
        if values.optimizer != "adam" or values.micro_batches > 1:
            what = "micro_batches" if values.optimizer == "adam" else values.optimizer
            raise InputError(f"the optimizer for PyTorch has no {what}; use Adam and one part")
        known = {
            "lr": values.embedding_lr, "dense_lr": values.dense_lr, "l2": values.l2,
            "clip": values.clip or "none", "betas": (values.beta_1, values.beta_2),
            "eps": values.epsilon, "r": values.r, "zeta": values.zeta, "bound": values.bound,
        }  # fmt: skip
        return cls(model, **{**known, **arguments})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step of all weights that have a gradient.

        Args:
            closure: computes the loss again, and its gradients.

        Raises:
            InputError: a table's gradient is dense, not finite, or not that of its lookups; nothing
                has changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        first = self.param_groups[0]
        for name, value in self._fixed.items():
            if first[name] != value:
                raise InputError(
                    f"{name} of the tables was {value}, and may not become {first[name]}"
                )
        trained = [table for table in self._tables if table.parameter.grad is not None]
        every = [table.sum(table.parameter.grad) for table in trained]  # refuses, before any step
        for table, sums in zip(trained, every):
            state = self.state[table.parameter]
            state["step"] += 1
            table.step(sums, step=int(state["step"]), rate=float(first["lr"]))
        if self._dense is not None:
            self._dense.param_groups, self._dense.state = self.param_groups[1:], self.state
            self._dense.step()
        return loss

    def flush(self) -> None:
        """Make all steps that rows have missed; who reads by PyTorch need not call it."""
        for table in self._tables:
            table.flush()

    @property
    def clipped_share(self) -> float:
        """Share of the last step's rows that were clipped, over all tables."""
        factors = self._factors()
        return float((factors < 1).mean()) if len(factors) else 0.0

    @property
    def mean_clip_factor(self) -> float:
        """Mean factor of the last step's rows, over all tables; 1 if none was clipped."""
        factors = self._factors()
        return float(factors.mean()) if len(factors) else 1.0

    def _factors(self) -> np.ndarray:
        return np.concatenate([np.asarray(torch.as_tensor(x.factors).cpu()) for x in self._tables])

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all rows, brought up to date, as `torch.optim.Adam` has it."""
        self.flush()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state; load that of the model, too."""
        self.flush()
        super().load_state_dict(state_dict)
        for table in self._tables:
            table.attach(self.state[table.parameter])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add weights for the dense optimizer; tables are those of the model.

        Raises:
            InputError: there is no dense optimizer, as the model had tables alone.
        """
        if self.param_groups:  # the first one has the tables
            if self._dense is None:
                raise InputError("the model had tables alone; make the optimizer for all weights")
            param_group = {**self._dense.defaults, **param_group}
        super().add_param_group(param_group)
