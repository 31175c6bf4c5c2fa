"""Keep the state of CowClip in the models that Keras saves."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from cowclip_merlin.compat.keras import tensorflow
from cowclip_merlin.types import JsonObject, KerasModel, KerasOptimizer


def keep_state_in_models(find: Callable[[KerasOptimizer], KerasOptimizer | None]) -> None:
    """Make Keras save and load the state of an optimizer with its model, in all formats.

    Keras does so for its newer optimizers, and for the older ones, of which this is one, only in
    HDF5. A SavedModel has the state in its checkpoint, but Keras does not read it.

    Args:
        find: returns the optimizer in one that may wrap it, or None. It has `create_state`,
            `save_own_variables` and `load_own_variables`.
    """
    keras = tensorflow().keras
    model, base = keras.Model, keras.optimizers.legacy.Optimizer
    home = model.__module__.rpartition(".engine")[0]  # "tf_keras.src", "keras.src" or "keras"
    library = importlib.import_module(f"{home}.saving.saving_lib")
    legacy = importlib.import_module(f"{home}.saving.legacy.saved_model.load")
    is_trackable, compile_from_config = library._is_keras_trackable, model.compile_from_config
    load = legacy.load

    def find_in(found: object) -> KerasOptimizer | None:
        return find(found) if isinstance(found, base) else None

    def is_kept(found: object) -> bool:
        return is_trackable(found) or find_in(found) is not None

    @wraps(compile_from_config)
    def compile_with_state(self: KerasModel, config: JsonObject) -> None:
        compile_from_config(self, config)
        if self.built and (found := find_in(self.optimizer)) is not None:
            found.create_state(self.trainable_variables)

    @wraps(load)
    def load_with_state(path: str, *args: Any, **kwargs: Any) -> KerasModel:
        loaded = load(path, *args, **kwargs)
        if (found := find_in(getattr(loaded, "optimizer", None))) is not None:
            _restore(loaded, found, path)
        return loaded

    library._is_keras_trackable = is_kept
    model.compile_from_config = compile_with_state
    legacy.load = load_with_state


def _restore(model: KerasModel, optimizer: KerasOptimizer, path: str) -> None:
    """Restore the state of an optimizer from the checkpoint in a SavedModel, if it was trained."""
    tf = tensorflow()
    file = os.path.join(path, "variables", "variables")
    if not any(name.startswith("optimizer/") for name, _ in tf.train.list_variables(file)):
        return
    if optimizer in (model.optimizer, getattr(model.optimizer, "inner_optimizer", None)):
        optimizer.create_state(model.trainable_variables)
    tf.train.Checkpoint(root=model).read(file).expect_partial()
