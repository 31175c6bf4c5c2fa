"""The choices of every setting, listed only here.

The optimizer, the row kernels, the command line, the experiments and the benchmarks read them
from here. This module imports neither TensorFlow nor NumPy. It names classes; their users look them
up.

- To add a clip, write its function in `cowclip_merlin/clip.py`, with the decorator
  `clip_function(name)`, and add an entry to `CLIPS`.
- To add a model, write `models/<name>.py` with a builder `<name>`, and add the name to `MODELS`.

>>> clips_using("bound")
('global', 'field', 'column')
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

from cowclip_merlin.checks import check_not_negative
from cowclip_merlin.errors import InputError

MODELS = ("wide_and_deep", "deepfm", "dcn", "dcnv2", "din")
CROSSED = ("dcn", "dcnv2")
"""Models with cross layers."""
"""Architectures; `cowclip_merlin.models.<name>` holds the builder `<name>`."""

UPDATES = ("dense", "exact", "lazy")
"""Which rows of a table a step updates; see `CowClip`."""

KERNEL_BACKENDS = ("numba", "cupy")
"""Fast implementations of the row kernels: on the CPU and on a GPU."""

BACKENDS = ("auto", "tensorflow", *KERNEL_BACKENDS)
"""Implementations of the row updates; see `CowClip`."""

OPTIMIZERS = ("adam", "adagrad", "rowwise_adagrad")
"""Optimizers of a training run; the last one has plain Adagrad for the dense weights."""

ACTIVATIONS = ("relu", "gelu", "dice")
"""Activations of the hidden layers; see `models.Architecture`."""

LR_SCHEDULES = ("constant", "plateau", "step", "linear", "cosine")
"""How the learning rates of a run fall; see `training.stopping.falling_rates`."""

ONLINE_SCHEDULES = ("constant", "linear")
"""Those that a stream has, which has no epochs."""

MONITORS = ("auc", "log_loss")
"""Validation metrics that choose the best weights of a run."""

PRECISIONS = ("float32", "bfloat16")
"""Precisions of the hidden and cross layers."""

CONTINUOUS = ("deep", "all")
"""Which parts of a model read the continuous features; see `models.Architecture`."""

TABLES = ("fused", "per_field", "sharded", "growing")
"""Layouts of the embedding tables; see `models.embedding.embedding_layer`."""

RUN_TABLES = tuple(name for name in TABLES if name != "growing")
"""Layouts for runs on a prepared folder, whose vocabularies are fixed."""

FREEZING = ("fused", "per_field")
"""Layouts in which some columns can keep the embeddings that they start with."""

COMBINER_POWERS: Mapping[str, float] = MappingProxyType({"mean": 1.0, "sum": 0.0, "sqrtn": 0.5})
"""How the n embeddings of a multi-valued column are combined: name -> p, for their sum / n^p.

The names are TensorFlow's; see `models.Columns`.
"""

COMBINERS = tuple(COMBINER_POWERS)

MULTI_TASKS = ("shared_bottom", "mmoe", "esmm")
"""What the targets of a model with several of them share; see `models.Architecture`."""

ADMISSION_FILTERS = ("count", "probabilistic")
"""How a growing table decides which new ids get a row; see `tables.admission`."""

ABSENT_ROWS = ("trained", "zeros")
"""What ids without a row read in a growing table; see `tables.GrowingTable`."""

DEVICES = ("auto", "cpu", "gpu")
"""Devices to compute on; "auto" is a GPU if there is one."""

FIT_ON: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"train": ("train",), "all": ("train", "test", "validation")}
)
"""Rows from which `prepare` learns ids, counts and ranges: name -> splits."""

SPLIT_METHODS = ("random", "time")
"""How `prepare` chooses the test rows."""

KEEP_VALUES = ("first", "last")
"""Which values of a multi-valued column `prepare` keeps if a row has too many."""

VALIDATION_SPLITS = ("random", "last", "given", "none")
"""Which train rows a run holds out for validation.

"given": those of `prepare --validation`; "none": it trains on these, too.
"""

CONTRIB: Mapping[str, str] = MappingProxyType(
    {
        "RowNorms": "diagnostics.probe",
        "addresses_of_tasks": "slurm",
        "clippy_factor": "clippy",
        "dense_optimizer": "decoupled",
        "engine_for": "fused_mlp",
        "figure_4": "diagnostics.report",
        "gradient_norms": "diagnostics.probe",
        "hidden_layers": "fused_mlp",
        "make_recorder": "diagnostics.record",
        "probe_run": "diagnostics.probe",
        "read_diagnostics": "diagnostics.record",
        "run_on_dask": "dask_workers",
    }
)
"""What the package offers from `contrib`, which it does not import: name -> module there."""


def contributed(name: str) -> Any:
    """Import a name of `CONTRIB`, at its first use.

    >>> contributed("run_on_dask").__module__
    'cowclip_merlin.contrib.dask_workers'
    """
    module = importlib.import_module(f"cowclip_merlin.contrib.{CONTRIB[name]}")
    return getattr(module, name)


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Properties of a clip.

    Attributes:
        settings: thresholds of `RowSettings` that it uses.
        acts_on: "gradient": scales gradients before the optimizer's step; "update": scales the
            weight changes of the step.
        all_tables: whether the function takes all tables at once, for a norm over all of them.
        spares_absent_rows: whether the clip never scales the L2 gradient of a row that is absent
            from the batch, so that a step can skip such rows. For a clip that uses `r`, this
            holds only if `2 * l2 <= r`.
        kernel_id: number of the clip in the row kernels, including CUDA's; None if they lack it.
            They compute a row's factor from this row alone.
    """

    settings: tuple[str, ...] = ()
    acts_on: Literal["gradient", "update"] = "gradient"
    all_tables: bool = False
    spares_absent_rows: bool = False
    kernel_id: int | None = None

    @property
    def postponable(self) -> bool:
        """Whether the steps of absent rows can be made later, as with `update="exact"`."""
        return self.spares_absent_rows or self.kernel_id is not None


CLIPS: Mapping[str, Clip] = MappingProxyType(
    {
        "cowclip": Clip(settings=("r", "zeta"), spares_absent_rows=True, kernel_id=1),
        "none": Clip(spares_absent_rows=True, kernel_id=0),
        "global": Clip(settings=("bound",), all_tables=True),
        "field": Clip(settings=("bound",)),
        "column": Clip(settings=("bound",), kernel_id=2),
        "adaptive_field": Clip(settings=("r",)),
        "clippy": Clip(settings=("lambda_rel", "lambda_abs"), acts_on="update"),
    }
)
"""Clips by name; `cowclip` is the adaptive column-wise clip of Table 6."""


THRESHOLDS = tuple(dict.fromkeys(each for clip in CLIPS.values() for each in clip.settings))
"""Fields of `RowSettings` that clips use."""


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    """Settings of L2, clip, and Adam or Adagrad. Each clip uses some; see `Clip.settings`.

    Attributes:
        l2: the penalty is `l2 * ||w||^2`.
        clip: one of `CLIPS`; row kernels know those of `kernel_clips`.
        r: threshold relative to the norm of the weights.
        zeta: lower bound of the row norm, per coordinate.
        bound: constant threshold of the non-adaptive clips.
        lambda_rel: bound on the change of a coordinate, relative to the coordinate.
        lambda_abs: constant added to that bound.
        beta_1: decay of Adam's first moment.
        beta_2: decay of Adam's second moment.
        epsilon: added to the square root of the second moment, or of Adagrad's accumulator.
        squares: factor of the squared gradients in the second moment; 1 in the CUDA kernels. For a
            batch that is `s` times as large, squared gradients are about `s` times smaller; with
            the factor `s`, the moments of both batches have one unit.
        micro_batches: equal parts of a batch. The second moment takes the sum of their squared
            gradients, instead of the square of their sum; 1 in the CUDA kernels.

    Raises:
        InputError: if L2 or a threshold is negative or not finite.
    """

    l2: float = 0.0
    clip: str = "cowclip"
    r: float = 1.0
    zeta: float = 1e-5
    bound: float = 25.0
    lambda_rel: float = 0.5
    lambda_abs: float = 1e-2
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    squares: float = 1.0
    micro_batches: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        check_not_negative({name: getattr(self, name) for name in (*THRESHOLDS, "l2")})

    def floor(self, d: int) -> float:
        """Return the lower bound of the norm of a row of length d: `sqrt(d) * zeta`."""
        return math.sqrt(d) * self.zeta

    @cached_property
    def of_clip(self) -> Clip:
        """Properties of the clip."""
        return CLIPS[self.clip]

    @cached_property
    def kernel_id(self) -> int:
        """Number of the clip in the row kernels.

        Raises:
            InputError: if the row kernels do not have the clip.
        """
        if not self.in_row_kernels:
            raise lacks_clip(self.clip)
        return self.of_clip.kernel_id

    @cached_property
    def in_row_kernels(self) -> bool:
        """Whether the row kernels have the clip."""
        return self.clip in CLIPS and self.of_clip.kernel_id is not None

    @cached_property
    def clips_absent_rows(self) -> bool:
        """Whether the clip may scale `2 * l2 * w`, the gradient of an absent row."""
        if self.in_row_kernels and self.l2 == 0:
            return False
        return not self.of_clip.spares_absent_rows or self.cuts_l2_alone

    @cached_property
    def cuts_l2_alone(self) -> bool:
        """Whether `r * ||w||`, the threshold of an absent row, is below `2 * l2 * ||w||`."""
        return "r" in self.of_clip.settings and 2 * self.l2 > self.r


def lacks_clip(clip: str) -> InputError:
    """Return the error for a clip that the kernels do not have."""
    return InputError(
        f"the row kernels do not have the clip {clip!r}; choose one of {', '.join(kernel_clips())}"
    )


def clips_using(setting: str) -> tuple[str, ...]:
    """List the clips that use one of `THRESHOLDS`."""
    return tuple(name for name, clip in CLIPS.items() if setting in clip.settings)


def kernel_clips() -> tuple[str, ...]:
    """List the clips that the row kernels implement."""
    return tuple(name for name, clip in CLIPS.items() if clip.kernel_id is not None)


def exact_clips() -> tuple[str, ...]:
    """List the clips that `update="exact"` works with."""
    return tuple(name for name, clip in CLIPS.items() if clip.postponable)
