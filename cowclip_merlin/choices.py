"""The choices that settings offer: each is listed here, and nowhere else.

Everything else reads them from here: the optimizer, the row kernels, the command line with its
help texts, the experiments and the benchmarks. This module imports neither TensorFlow nor NumPy;
functions and classes are named here and looked up when they are needed.

- A new clip: write its function in `cowclip_merlin/clip.py` and add its entry to `CLIPS`.
- A new model: write `models/<name>.py` with a builder `<name>`, and add its name to `MODELS`.

>>> clips_using("bound")
('global', 'field', 'column')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal

from cowclip_merlin.checks import check_not_negative

MODELS = ("wide_and_deep", "deepfm", "dcn", "dcnv2")
"""Architectures; `cowclip_merlin.models.<name>` holds the builder `<name>`."""

UPDATES = ("dense", "exact", "lazy")
"""Which rows of a table a step updates; see `CowClip`."""

KERNEL_BACKENDS = ("numba", "cupy")
"""Implementations of the row kernels for training: on the CPU, on a GPU."""

BACKENDS = ("auto", "tensorflow", *KERNEL_BACKENDS)
"""What updates the rows of a table; see `CowClip`."""

OPTIMIZERS = ("adam", "adagrad")
"""Optimizers of a training run."""

PRECISIONS = ("float32", "bfloat16")
"""Number formats in which the hidden and cross layers compute."""

CONTINUOUS = ("deep", "all")
"""Which parts of a model read the continuous features; see `models.Architecture`."""

TABLES: Mapping[str, str] = MappingProxyType(
    {"fused": "FusedEmbedding", "per_field": "PerFieldEmbedding"}
)
"""Layouts of the embedding tables: name -> class in `cowclip_merlin.models.embedding`."""

DEVICES = ("auto", "cpu", "gpu")
"""Where to compute; "auto" is a GPU if there is one."""

FIT_ON: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"train": ("train",), "all": ("train", "test")}
)
"""Rows that a preparation learns ids, counts and ranges from: name -> splits."""

SPLIT_METHODS = ("random", "time")
"""How a preparation chooses the test rows."""


@dataclass(frozen=True, kw_only=True)
class ClipSettings:
    """Hyper-parameters of the clips. Each clip uses some of them; see `Clip.settings`.

    Attributes:
        r: threshold relative to the norm of the weights.
        zeta: lower bound of the row norm, per coordinate.
        bound: constant threshold of the clips that are not adaptive.
        lambda_rel: bound on the change of a coordinate, relative to the coordinate.
        lambda_abs: constant that is added to that bound.

    Raises:
        InputError: a value is negative or not finite.
    """

    r: float = 1.0
    zeta: float = 1e-5
    bound: float = 25.0
    lambda_rel: float = 0.5
    lambda_abs: float = 1e-2

    def __post_init__(self) -> None:
        """Refuse values that are not thresholds."""
        check_not_negative(vars(self))

    @classmethod
    def from_attributes(cls, source: Any) -> ClipSettings:
        """The settings that an object has among its attributes."""
        return cls(**{each.name: getattr(source, each.name) for each in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class Clip:
    """What a clip is.

    Attributes:
        function: name of its function in `cowclip_merlin.clip`.
        settings: fields of `ClipSettings` that it uses.
        acts_on: "gradient": before the optimizer's step; "update": on what the step changed.
        all_tables: whether the function takes all tables at once, for a norm over all of them.
        spares_absent_rows: whether it never cuts the L2 gradient of a row that is absent from
            the batch, so that a step need not look at such rows. A clip that uses `r` spares
            them only while `2 * l2 <= r`.
        kernel_id: its number in the row kernels, CUDA's too; None: they do not have it.
    """

    function: str
    settings: tuple[str, ...] = ()
    acts_on: Literal["gradient", "update"] = "gradient"
    all_tables: bool = False
    spares_absent_rows: bool = False
    kernel_id: int | None = None

    def cuts_l2_alone(self, l2: float, settings: ClipSettings) -> bool:
        """Whether `r * ||w||`, the threshold of a row without data, is below `2 * l2 * ||w||`."""
        return "r" in self.settings and 2 * l2 > settings.r


CLIPS: Mapping[str, Clip] = MappingProxyType(
    {
        "cowclip": Clip(
            function="cowclip_factor",
            settings=("r", "zeta"),
            spares_absent_rows=True,
            kernel_id=1,
        ),
        "none": Clip(function="unclipped_factor", spares_absent_rows=True, kernel_id=0),
        "global": Clip(function="global_factors", settings=("bound",), all_tables=True),
        "field": Clip(function="field_factor", settings=("bound",)),
        "column": Clip(function="column_factor", settings=("bound",), kernel_id=2),
        "adaptive_field": Clip(function="adaptive_field_factor", settings=("r",)),
        "clippy": Clip(
            function="clippy_factor", settings=("lambda_rel", "lambda_abs"), acts_on="update"
        ),
    }
)
"""Clips by name. `cowclip` is the adaptive column-wise clip of Table 6."""


def clips_using(setting: str) -> tuple[str, ...]:
    """Names of the clips that use a field of `ClipSettings`."""
    return tuple(name for name, clip in CLIPS.items() if setting in clip.settings)


def gradient_clips() -> tuple[str, ...]:
    """Names of the clips that act on gradients."""
    return tuple(name for name, clip in CLIPS.items() if clip.acts_on == "gradient")


def kernel_clips() -> tuple[str, ...]:
    """Names of the clips that the row kernels have."""
    return tuple(name for name, clip in CLIPS.items() if clip.kernel_id is not None)


def sparing_clips() -> tuple[str, ...]:
    """Names of the clips that spare absent rows; `update="exact"` needs one of them."""
    return tuple(name for name, clip in CLIPS.items() if clip.spares_absent_rows)
