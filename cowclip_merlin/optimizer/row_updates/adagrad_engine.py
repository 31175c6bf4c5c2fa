"""Update rows with Adagrad on the CPU: accumulators per number, or per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cowclip_merlin import compat
from cowclip_merlin.optimizer.row_updates.cpu_engine import CpuEngine
from cowclip_merlin.optimizer.row_updates.engine import AdagradState
from cowclip_merlin.types import Array, Tensor

tf = compat.tensorflow()


@dataclass(frozen=True, kw_only=True)
class AdagradEngine(CpuEngine):
    """Updates the rows of a batch; only for `update="lazy"`, so no row misses a step."""

    def alpha(self) -> Tensor:
        """Return this step's learning rate."""
        return self.optimizer._decayed_lr(tf.float32)

    def _step(self, state: AdagradState, *sums: Any) -> Array:  # type: ignore[override]
        *of_rows, _ = sums  # without squares of micro-batches
        return self.kernels.adagrad_rows(*state, *of_rows)
