"""Large-batch training of click-through-rate models with CowClip on NVIDIA Merlin.

Importing this package is cheap: the first name that needs TensorFlow, cuDF or CuPy loads them.

>>> import cowclip_merlin as cc
>>> cc.scale("criteo", to=8 * 1024).l2
8e-05
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cowclip_merlin.checks import near
from cowclip_merlin.compat import prepare_merlin_on_import, request_keras_2
from cowclip_merlin.errors import InputError, require
from cowclip_merlin.scaling import PRESETS, Hyperparameters, scale
from cowclip_merlin.types import KerasModel

if TYPE_CHECKING:
    from cowclip_merlin import (
        diagnostics,
        metrics,
        models,
        online,
        tables,
        training,
        triton,
        workers,
        workflows,
    )
    from cowclip_merlin.fitting.classifier import CTRClassifier, fit, load
    from cowclip_merlin.metrics import log_loss, roc_auc
    from cowclip_merlin.optimizer import CowClip, RowWiseAdagrad
    from cowclip_merlin.serving.saved_model import export
    from cowclip_merlin.training.scoring.importance import importance
    from cowclip_merlin.training.scoring.scorer import score

__version__ = "0.2.0"

__all__ = [
    "PRESETS",
    "CTRClassifier",
    "CowClip",
    "Hyperparameters",
    "InputError",
    "RowWiseAdagrad",
    "diagnostics",
    "export",
    "fit",
    "importance",
    "load",
    "load_model",
    "log_loss",
    "metrics",
    "models",
    "online",
    "roc_auc",
    "scale",
    "score",
    "tables",
    "training",
    "triton",
    "workers",
    "workflows",
]

_LAZY = {
    "CTRClassifier": "fitting.classifier",
    "CowClip": "optimizer",
    "RowWiseAdagrad": "optimizer",
    "roc_auc": "metrics",
    "log_loss": "metrics",
    "fit": "fitting.classifier",
    "export": "serving.saved_model",
    "importance": "training.scoring.importance",
    "load": "fitting.classifier",
    "score": "training.scoring.scorer",
}
_LAZY_MODULES = (
    "diagnostics",
    "metrics",
    "models",
    "online",
    "tables",
    "training",
    "triton",
    "workers",
    "workflows",
)

_NEEDED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("CowClip", "RowWiseAdagrad"), ("tensorflow",)),
    **dict.fromkeys(
        (
            *("CTRClassifier", "diagnostics", "export", "fit", "importance", "load", "load_model"),
            *("models", "score", "training", "triton"),
        ),
        ("merlin", "tensorflow"),
    ),
    "workflows": ("merlin",),
}
"""Packages of others without which a name is of no use."""

# TensorFlow chooses its version of Keras when it is imported.
request_keras_2()
# Merlin 23.12 uses names that newer versions of TensorFlow and Keras have moved.
prepare_merlin_on_import()


def load_model(path: str) -> KerasModel:
    """Load a model that was saved with `model.save(path)`, optimizer included.

    Like `tf.keras.models.load_model`, but it imports the classes that the model needs first.

    Args:
        path: the saved model's folder.
    """
    from cowclip_merlin import compat

    require(*_NEEDED["load_model"], by="cc.load_model")
    for module in ("models", "optimizer"):  # importing them registers their classes with Keras
        importlib.import_module(f"{__name__}.{module}")
    return compat.tensorflow().keras.models.load_model(str(compat.literal_path(path)))


def __getattr__(name: str) -> Any:
    require(*_NEEDED.get(name, ()), by=f"cc.{name}")
    if name in _LAZY_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    hint = "" if name.startswith("_") else near(name, __all__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted(__all__)
