"""Embedding tables of a PyTorch model: rows that are brought up to date before they are read.

A table's parameter becomes a `CaughtUp`. PyTorch calls `__torch_function__` of that class before
each function that gets the parameter, so the optimizer hears of every read.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from cowclip_merlin import kernels
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.errors import InputError
from cowclip_merlin.kernels.table_steps import HISTORY, Sums
from cowclip_merlin.types import Array

_LOOKUPS = (functional.embedding, functional.embedding_bag)
_NO_READS = frozenset(
    ("__len__", "size", "dim", "numel", "nelement", "element_size", "stride",
     "is_contiguous", "is_floating_point", "is_complex", "get_device", "requires_grad_",
     "register_hook", "register_post_accumulate_grad_hook", "_has_compatible_shallow_copy_type")
)  # fmt: skip
_running_pass = torch._C._current_graph_task_id  # -1 outside of backward()
_READ_BY_NAME = ("data", "T", "H", "mT", "mH", "real", "imag")  # of all attributes of a tensor


class CaughtUp(nn.Parameter):
    """A parameter whose rows are brought up to date before any function of PyTorch reads them.

    Attributes:
        table: its rows; each table makes a subclass that has it.
    """

    table: Table

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function on rows that are up to date."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            cls.table.before(func, args, kwargs)
            found = func(*args, **kwargs)
            if func in _LOOKUPS:
                cls.table.after(found, args, kwargs)
            return found


class Table:
    """The rows of one table, their Adam, and the steps that they have missed.

    Args:
        name: of the parameter in the model.
        parameter: float32 [N, d]; its class changes.
        settings: L2, clip and Adam.
        update: "exact", "lazy" or "dense".

    Attributes:
        factors: clip factors of the last step's rows, [u].

    Raises:
        InputError: the parameter is not a float32 matrix, or a GPU lacks what it needs.
    """

    def __init__(
        self, name: str, parameter: nn.Parameter, settings: RowSettings, update: str
    ) -> None:
        if parameter.dim() != 2 or parameter.dtype != torch.float32:
            kind = f"{str(parameter.dtype).removeprefix('torch.')} {list(parameter.shape)}"
            raise InputError(f"{name}: tables must be float32 [rows, d], not {kind}")
        self.name, self.parameter, self.update = name, parameter, update
        if parameter.shape[1] == 1:  # first-order weights
            settings = replace(settings, clip="none")
        self._settings = settings
        self._kernels = self._load_kernels()
        self._last: Tensor | None = None
        self._history: tuple[Tensor, Tensor] | None = None
        self._missed = 0  # steps since all rows were up to date
        self._read: list[tuple[int, Tensor]] = []  # numbers of backward passes, and ids
        self._ids: tuple[Tensor, ...] = ()  # of the gradient
        self._next = self._ids  # of the gradient, if this pass is added to it
        self.factors: Array = np.ones(0, np.float32)
        if isinstance(parameter, CaughtUp):  # of an optimizer that nobody uses any more
            parameter.table.release()
        self._hooks = (
            parameter.register_hook(self._before_addition),
            parameter.register_post_accumulate_grad_hook(self._after_addition),
        )
        parameter.__class__ = type("CaughtUp", (CaughtUp,), {"table": self})

    @property
    def _weights(self) -> Tensor:
        """The memory of the parameter now, as users may give it another one."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.parameter.detach()

    def release(self) -> None:
        """Bring all rows up to date, and let the parameter be a usual one again."""
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            self.flush()
            for hook in self._hooks:
                hook.remove()
            if getattr(self.parameter, "table", None) is self:
                self.parameter.__class__ = nn.Parameter

    def _load_kernels(self) -> ModuleType:
        if self.parameter.device.type == "cpu":
            return kernels.load("numba")
        if self.parameter.device.type != "cuda":
            raise InputError(
                f"{self.name} is on {self.parameter.device}; move the model to a CPU or to CUDA"
            )
        if self.update != "lazy" and self._settings.clips_absent_rows:
            raise InputError(
                f"{self.name}: on a GPU the clip {self._settings.clip!r} needs 2 * l2 <= r with "
                f"update={self.update!r}; use a smaller l2, or update='lazy'"
            )
        return kernels.load("cupy")

    def before(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> None:
        """Bring the rows up to date that a function of PyTorch reads."""
        if func in _LOOKUPS:
            if kwargs.get("max_norm") is not None:
                raise InputError(
                    f"{self.name}: max_norm changes rows outside of the optimizer; leave it out"
                )
            self.catch_up(kwargs["input"] if "input" in kwargs else args[0])
        elif getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__"):
            if getattr(func.__self__, "__name__", "data") in _READ_BY_NAME:
                self.flush()
        elif getattr(func, "__name__", "") not in _NO_READS:
            self.flush()

    def catch_up(self, ids: Tensor) -> None:
        """Make the steps that the rows of these ids, integer with any shape, have missed."""
        if not self._missed or not ids.numel():
            return
        ids = ids.detach().reshape(-1).to(self._weights.device)
        least, most = torch.aminmax(ids)
        if least >= 0 and most < len(self._weights):  # else the lookup says what is wrong
            with self._on_stream():
                self._replay(self._array(ids))

    def flush(self) -> None:
        """Make all steps that rows have missed."""
        if self._missed:
            with self._on_stream():
                self._replay(None)
            self._last.zero_()
            self._missed = 0

    def _replay(self, rows: Array | None) -> None:
        made = [x[: self._missed] for x in self._history]
        state = self._weights, *self._moments, self._last, *made
        w, m, v, last, rates, epsilons = map(self._array, state)
        how = {"rows": rows, "epsilons": epsilons}
        self._kernels.replay_rows(w, m, v, last, rates, self._missed, self._settings, **how)

    def attach(self, state: dict[str, Any]) -> None:
        """Take the moments of the optimizer's state; all rows are up to date."""
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(self._weights)
            state["exp_avg_sq"] = torch.zeros_like(self._weights)
        self._moments = state["exp_avg"], state["exp_avg_sq"]
        self._missed = 0
        if self._last is not None:
            self._last.zero_()

    def after(self, found: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note the ids of a lookup when its gradient is computed.

        The gradient of a table does not tell how often each id occurs. PyTorch sums equal ids of
        equal batches, of more entries than the table has, and of several processes.
        """
        if found.requires_grad:
            ids = (kwargs["input"] if "input" in kwargs else args[0]).detach().reshape(-1)
            padding = kwargs.get("padding_idx")
            if padding is not None:
                ids = ids[ids != padding % len(self._weights)]
            found.grad_fn.register_hook(lambda *_: self._read.append((_running_pass(), ids)))

    def _before_addition(self, _: Tensor) -> None:
        """Add the ids of a backward pass to those of the gradient, or begin anew."""
        known = self.parameter.grad
        anew = known is None or (known.is_sparse and known._nnz() == 0)
        this = _running_pass()  # not one that failed
        self._next = (*(() if anew else self._ids), *(x for i, x in self._read if i == this))
        self._read = [(i, x) for i, x in self._read if i < this]  # perhaps of one around this

    def _after_addition(self, _: Tensor) -> None:
        """Keep them: `torch.autograd.grad` adds nothing, and does not come here."""
        self._ids = self._next

    def sum(self, gradient: Tensor) -> Sums:
        """Sum the gradients of equal ids; nothing changes.

        Args:
            gradient: sparse, of these lookups; or a sum over processes.

        Raises:
            InputError: the gradient is dense, not finite, or has other ids than the lookups.
        """
        if _running_pass() < 0:
            self._read.clear()  # of passes that failed
        if (made_on := self._moments[0].device) != gradient.device:
            raise InputError(
                f"{self.name} is on {gradient.device}, and its moments on {made_on}; make the "
                "optimizer after the model is moved"
            )
        if not gradient.is_sparse:  # also rows without an id in the batch may have one
            raise InputError(
                f"{self.name} has a dense gradient; give its layer sparse=True, and use the table "
                "for lookups only"
            )
        with self._on_stream():
            groups = self._kernels.group_rows(self._array(gradient._indices()[0]))
            try:
                g = self._kernels.sum_rows(self._array(gradient._values()), groups)
            except kernels.NonFiniteGradient as error:
                raise InputError(
                    f"{self.name}: the gradient of id {int(groups.ids[error.index])} is not "
                    "finite; look at the loss, or use a smaller lr"
                ) from error
            return Sums(groups.ids, g, self._starts(gradient, groups))

    def step(self, sums: Sums, *, step: int, rate: float) -> None:
        """Make a step of Adam, as `torch.optim.Adam` with `weight_decay=2 * l2` makes it.

        Args:
            sums: of the gradient.
            step: its number, from 1 on.
            rate: learning rate.
        """
        adam = self._settings
        root = math.sqrt(1 - adam.beta_2**step)
        alpha, epsilon = rate * root / (1 - adam.beta_1**step), root * adam.epsilon
        with self._on_stream():
            if self._missed:  # for rows that were read before the last step
                self._replay(sums.ids)
            w, m, v = map(self._array, (self._weights, *self._moments))
            own = replace(adam, epsilon=epsilon)
            self.factors = self._kernels.step_rows(w, m, v, *sums, alpha, own)
            if self.update != "lazy":
                self._remember(sums.ids, alpha, epsilon)
        if self.update == "dense" or self._missed == HISTORY:
            self.flush()

    def _starts(self, gradient: Tensor, groups: kernels.Groups) -> Array:
        """Return starts [u + 1] whose differences are the counts of the gradient's ids."""
        none = torch.empty(0, dtype=torch.int64, device=gradient.device)
        ids = torch.cat([none, *self._ids])  # they stay as long as the gradient does
        ids = of_all_processes(ids)
        if len(ids) == gradient._nnz():  # an entry for each occurrence
            return groups.starts
        counted = self._kernels.group_rows(self._array(ids))
        if len(counted.ids) != len(groups.ids) or bool((counted.ids != groups.ids).any()):
            raise InputError(
                f"{self.name}: its gradient has other ids than its lookups, so nothing tells how "
                "often each occurs; let backward() make it, of several processes under "
                "DistributedDataParallel"
            )
        return counted.starts

    def _remember(self, rows: Array, alpha: float, epsilon: float) -> None:
        if self._history is None:
            where = self._weights.device
            self._last = torch.zeros(len(self._weights), dtype=torch.int32, device=where)
            self._history = torch.zeros(HISTORY, device=where), torch.zeros(HISTORY, device=where)
        rates, epsilons = self._history
        rates[self._missed], epsilons[self._missed] = alpha, epsilon
        self._missed += 1
        self._kernels.mark_rows(self._array(self._last), rows, self._missed)

    def _array(self, x: Tensor) -> Array:
        """Return an array of NumPy or CuPy in the memory of a tensor."""
        if x.device.type == "cpu":
            return x.detach().numpy()
        return importlib.import_module("cupy").from_dlpack(x.detach())

    def _on_stream(self) -> AbstractContextManager[Any]:
        """Let CuPy work on PyTorch's stream of the table's GPU."""
        if self._weights.device.type == "cpu":
            return nullcontext()
        cuda = importlib.import_module("cupy").cuda
        stream = torch.cuda.current_stream(self._weights.device)
        return cuda.ExternalStream(stream.cuda_stream, self._weights.device.index)


def of_all_processes(ids: Tensor) -> Tensor:
    """Return the ids [n] of all processes that train together by `torch.distributed`."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return ids
    where = "cpu" if distributed.get_backend() == "gloo" else ids.device
    count = torch.tensor(len(ids), device=where)
    counts = [torch.empty_like(count) for _ in range(distributed.get_world_size())]
    distributed.all_gather(counts, count)
    mine = torch.zeros(int(max(counts)), dtype=torch.int64, device=where)
    mine[: len(ids)] = ids
    every = [torch.empty_like(mine) for _ in counts]
    distributed.all_gather(every, mine)
    return torch.cat([x[:n] for x, n in zip(every, counts)]).to(ids.device)


def tables_of(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield name and parameter of each table: those of layers with `sparse=True`, once each."""
    seen: set[int] = set()
    for name, layer in model.named_modules():
        if not isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            continue
        if layer.max_norm is not None:
            raise InputError(
                f"{name}: max_norm={layer.max_norm:g} changes rows outside of the optimizer; "
                "use max_norm=None"
            )
        if layer.scale_grad_by_freq:
            raise InputError(
                f"{name}: scale_grad_by_freq divides gradients by their counts, which the clip "
                "multiplies; use scale_grad_by_freq=False"
            )
        if layer.sparse and layer.weight.requires_grad and id(layer.weight) not in seen:
            seen.add(id(layer.weight))
            yield f"{name}.weight" if name else "weight", layer.weight
