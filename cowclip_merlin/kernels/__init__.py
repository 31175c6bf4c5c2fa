"""Row kernels: update the rows of an embedding table in one training step.

One interface has three implementations: `reference` (NumPy, float64, simple), `numba` (CPU,
parallel) and `cupy` (GPU). They do not import TensorFlow.

- `group_rows`: ids with duplicates -> distinct ids, and where each of them occurs.
- `unique_rows`: ids and their gradients -> distinct ids, counts, summed gradients.
- `clip_rows`: add L2, then clip each row, in one pass.
- `replay_rows`: apply the steps that absent rows have missed.
- `update_rows`: sum, L2, clip and Adam for the rows of the batch, in one pass.
- `adagrad_rows`: L2, clip and Adagrad, with accumulators per number or per row.

On the CPU, training calls the two halves of `update_rows` that `numba` also has: `sum_rows`, and
`step_rows` after other workers have added their sums. On a GPU, TensorFlow operations launch the
kernels of `cuda`. The functions of `cupy` are for use without
TensorFlow.

>>> kernels = load("reference")
>>> rows = kernels.unique_rows(np.array([7, 3, 7]), np.array([[1.0], [2.0], [4.0]]))
>>> rows.ids.tolist(), rows.cnt.tolist(), rows.g.tolist()
([3, 7], [1, 2], [[2.0], [5.0]])
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import numpy as np  # noqa: F401  (for the example above)

from cowclip_merlin import choices
from cowclip_merlin.checks import one_of
from cowclip_merlin.choices import RowSettings
from cowclip_merlin.errors import not_installed
from cowclip_merlin.kernels.cuda.nvrtc import load_nvrtc
from cowclip_merlin.kernels.interface import Groups, NonFiniteGradient, UniqueRows

__all__ = [
    "IMPLEMENTATIONS",
    "Groups",
    "NonFiniteGradient",
    "RowSettings",
    "UniqueRows",
    "load",
]

IMPLEMENTATIONS = ("reference", *choices.KERNEL_BACKENDS)


def load(name: str) -> ModuleType:
    """Import the module of one implementation.

    For "numba", set `OMP_WAIT_POLICY` to PASSIVE unless the environment already sets it.

    Raises:
        InputError: if the name is unknown, or a package that it needs is not installed.
    """
    one_of("kernels", name, IMPLEMENTATIONS)
    if name == "numba":
        # OpenMP reads it when numba first starts its threads. By default, waiting threads spin on
        # cores that TensorFlow or another program needs.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if name == "cupy":
        load_nvrtc()
    try:
        return importlib.import_module(f"cowclip_merlin.kernels.{name}")
    except ImportError as error:
        raise not_installed(str(error.name), by=f"kernels.load({name!r})") from error
