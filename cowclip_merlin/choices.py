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

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Literal

from cowclip_merlin.checks import check_not_negative

MODELS = ("wide_and_deep", "deepfm", "dcn", "dcnv2", "din")
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

VALIDATION_SPLITS = ("random", "last", "given")
"""Which train rows a run holds out for validation; "given": those of `prepare --validation`."""


@dataclass(frozen=True, kw_only=True)
class ClipSettings:
    """Hyper-parameters of the clips. Each clip uses some of them; see `Clip.settings`.

    Attributes:
        r: threshold relative to the norm of the weights.
        zeta: lower bound of the row norm, per coordinate.
        bound: constant threshold of the non-adaptive clips.
        lambda_rel: bound on the change of a coordinate, relative to the coordinate.
        lambda_abs: constant added to that bound.

    Raises:
        InputError: if a value is negative or not finite.
    """

    r: float = 1.0
    zeta: float = 1e-5
    bound: float = 25.0
    lambda_rel: float = 0.5
    lambda_abs: float = 1e-2

    def __post_init__(self) -> None:
        """Check the values."""
        check_not_negative(vars(self))

    @classmethod
    def from_attributes(cls, source: object) -> ClipSettings:
        """Copy the settings from the attributes of an object."""
        return cls(**{each.name: getattr(source, each.name) for each in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Properties of a clip.

    Attributes:
        settings: fields of `ClipSettings` that it uses.
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

    def clips_absent_rows(self, l2: float, settings: ClipSettings) -> bool:
        """Whether the clip may scale `2 * l2 * w`, the gradient of an absent row."""
        if self.kernel_id is not None and l2 == 0:
            return False
        return not self.spares_absent_rows or self.cuts_l2_alone(l2, settings)

    def cuts_l2_alone(self, l2: float, settings: ClipSettings) -> bool:
        """Whether `r * ||w||`, the threshold of an absent row, is below `2 * l2 * ||w||`."""
        return "r" in self.settings and 2 * l2 > settings.r

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


def clips_using(setting: str) -> tuple[str, ...]:
    """List the clips that use a field of `ClipSettings`."""
    return tuple(name for name, clip in CLIPS.items() if setting in clip.settings)


def kernel_clips() -> tuple[str, ...]:
    """List the clips that the row kernels implement."""
    return tuple(name for name, clip in CLIPS.items() if clip.kernel_id is not None)


def exact_clips() -> tuple[str, ...]:
    """List the clips that `update="exact"` works with."""
    return tuple(name for name, clip in CLIPS.items() if clip.postponable)
