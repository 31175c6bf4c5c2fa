"""Provide TensorFlow with Keras 2 and its optimizers, with correct lookups and saved state.

`tf.nn.embedding_lookup_sparse` and `tf.nn.safe_embedding_lookup_sparse` sum the gradients of equal
ids. Keras, feature columns and Merlin's list columns call them. CowClip counts the entries of a
gradient, so it needs one entry for each occurrence.
"""

from __future__ import annotations

import copy
import gc
import importlib
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from types import ModuleType
from typing import Any

from cowclip_merlin.errors import InputError, StackError, require
from cowclip_merlin.types import (
    JsonObject,
    KerasModel,
    KerasOptimizer,
    RaggedTensor,
    SparseTensor,
    Tensor,
    Variable,
)


class _Changed:
    """A module with other functions under some of its names."""

    def __init__(self, module: ModuleType, **functions: Callable[..., Any]) -> None:
        self.__dict__ |= {"_module": module} | functions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def keep_occurrences(tf: ModuleType) -> None:
    """Make the lookups of sparse ids give gradients with one entry for each occurrence of an id.

    They then read a row for each occurrence, as a lookup of dense ids does.
    """
    lookups = importlib.import_module("tensorflow.python.ops.embedding_ops")
    modules = [lookups]
    with suppress(ModuleNotFoundError):  # before TensorFlow 2.13, `lookups` has them, too
        modules.append(importlib.import_module("tensorflow.python.ops.ragged.ragged_embedding_ops"))

    def every_id(ids: Tensor) -> tuple[Tensor, Tensor]:
        return ids, tf.range(tf.size(ids))

    for module in modules:
        module.array_ops = _Changed(module.array_ops, unique=every_id)
    if hasattr(lookups, "compat"):  # else TensorFlow has no operation that sums in its gradient
        lookups.compat = _Changed(lookups.compat, forward_compatible=lambda *_: False)
    safe = _without_fillers(tf, lookups.safe_embedding_lookup_sparse)
    lookups.safe_embedding_lookup_sparse = tf.compat.v1.nn.safe_embedding_lookup_sparse = safe


def _without_fillers(tf: ModuleType, lookup: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a safe lookup that reads nothing for an empty entry without a default id.

    TensorFlow reads row 0 for it, and then replaces the result by zeros.
    """

    @wraps(lookup)
    def safe_lookup(
        embedding_weights: Variable,
        sparse_ids: RaggedTensor | SparseTensor,
        sparse_weights: RaggedTensor | SparseTensor | None = None,
        combiner: str = "mean",
        default_id: int | None = None,
        *args: Any,
        **more: Any,
    ) -> Tensor:
        if default_id is not None:
            given = embedding_weights, sparse_ids, sparse_weights, combiner, default_id
            return lookup(*given, *args, **more)
        ids, weights = (_as_sparse(tf, each) for each in (sparse_ids, sparse_weights))
        shape = ids.dense_shape
        size = tf.stack([tf.reduce_prod(shape[:-1]), shape[-1]])
        flat = tf.sparse.reshape(ids, size)
        valid = flat.values >= 0
        if weights is not None and combiner != "sum":
            valid &= weights.values > 0
        entries, position = tf.unique(tf.boolean_mask(flat.indices[:, 0], valid))
        column = tf.boolean_mask(flat.indices[:, 1], valid)
        places = tf.stack([tf.cast(position, tf.int64), column], 1)

        def without_empty(values: Tensor) -> SparseTensor:
            values = tf.boolean_mask(values, valid)
            return tf.SparseTensor(places, values, [tf.size(entries, tf.int64), size[1]])

        kept = None if weights is None else without_empty(weights.values)
        found = lookup(
            embedding_weights, without_empty(flat.values), kept, combiner, None, *args, **more
        )
        width = tf.shape(found, tf.int64)[1:]
        every = tf.scatter_nd(entries[:, tf.newaxis], found, tf.concat([size[:1], width], 0))
        result = tf.reshape(every, tf.concat([shape[:-1], width], 0))
        if shape.shape[0] is not None:
            result.set_shape([None] * (shape.shape[0] - 1) + found.shape[1:])
        return result

    return safe_lookup


def _as_sparse(tf: ModuleType, ids: RaggedTensor | SparseTensor) -> SparseTensor:
    return ids.to_sparse() if isinstance(ids, tf.RaggedTensor) else ids


def version_of(text: str) -> tuple[int, int]:
    """Parse the major and minor version of a package."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def request_keras_2() -> None:
    """Ask TensorFlow >= 2.16 for Keras 2 (package tf-keras), if TensorFlow is not imported yet."""
    if "tensorflow" not in sys.modules and importlib.util.find_spec("tf_keras") is not None:
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # dask >= 2024.3 represents dataframes as expressions, which merlin-core does not support.
    os.environ.setdefault("DASK_DATAFRAME__QUERY_PLANNING", "False")


def _refuse_keras_3() -> None:
    """Raise ImportError if TensorFlow was imported with Keras 3."""
    loaded = sys.modules.get("tensorflow")
    version = getattr(loaded, "__version__", "0.0")
    chosen = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    if loaded is not None and version_of(version) >= (2, 16) and not chosen:
        raise ImportError(
            "this part of cowclip_merlin needs Keras 2, but TensorFlow "
            f"{version} was imported with Keras 3: import cowclip_merlin before tensorflow and "
            "before merlin, nvtabular or keras, which import it, or set TF_USE_LEGACY_KERAS=1 in "
            "the environment; for models of Keras 3 use cowclip_merlin.keras3"
        )


# Start-up messages of TensorFlow's native code, which ignore its log level.
_CHATTER = re.compile(
    rb"I0000|WARNING: All log messages before absl|E0000 .*failed call to cuInit"
    rb"|To enable the following instructions"
)


@contextmanager
def _held_back_chatter() -> Iterator[None]:
    """Remove TensorFlow's start-up messages from standard error; all other lines pass."""
    try:
        saved = os.dup(2)
    except OSError:  # standard error is closed
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            for line in held:
                if not _CHATTER.match(line):
                    os.write(2, line)


def _keras_version(tf: ModuleType) -> tuple[int, int]:
    package = tf.keras.layers.Layer.__module__.partition(".")[0]  # "keras" or "tf_keras"
    return version_of(importlib.import_module(package).__version__)


@cache
def any_tensorflow() -> ModuleType:
    """Return TensorFlow, whichever Keras it has, for code that uses none.

    Raises:
        StackError: if TensorFlow is missing.
    """
    require("tensorflow", by=__name__.partition(".")[0])
    with _held_back_chatter():
        tf = importlib.import_module("tensorflow")
        tf.config.list_physical_devices()  # search for CUDA now, not in the middle of a run
    keep_occurrences(tf)
    return tf


@cache
def tensorflow() -> ModuleType:
    """TensorFlow with Keras 2.

    Raises:
        StackError: if TensorFlow or tf-keras is missing, or TensorFlow >= 2.16 uses Keras 3.
        ImportError: if TensorFlow was imported before with Keras 3.
    """
    tf = any_tensorflow()
    if version_of(tf.__version__) >= (2, 16) and importlib.util.find_spec("tf_keras") is None:
        raise StackError(
            f"TensorFlow {tf.__version__} has Keras 3, but Merlin needs Keras 2: "
            f"pip install 'tf-keras~={tf.__version__.rsplit('.', 1)[0]}.0'"
        )
    _refuse_keras_3()
    if _keras_version(tf) >= (3, 0):
        raise StackError(
            "tf.keras is Keras 3, but Merlin needs Keras 2: "
            "set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported"
        )
    return tf


def release_models() -> None:
    """Free the models that nothing refers to any more, and Keras's own state.

    Models are in reference cycles. Until Python collects them, their tables stay in memory.
    """
    tensorflow().keras.backend.clear_session()
    gc.collect()


def all_to_all() -> Callable[..., Tensor]:
    """Return TensorFlow's raw operation that exchanges parts of tensors between workers.

    Raises:
        StackError: if this version of TensorFlow lacks it.
    """
    tf = tensorflow()
    if not hasattr(tf.raw_ops, "CollectiveAllToAllV2"):
        raise StackError(
            f"TensorFlow {tf.__version__} cannot exchange rows of sharded tables: use a newer one, "
            'such as 2.21, or tables="fused"'
        )
    return tf.raw_ops.CollectiveAllToAllV2


def in_xla() -> bool:
    """Whether XLA compiles the function that is being traced, as with Keras's `jit_compile`."""
    tf = any_tensorflow()
    utilities = importlib.import_module("tensorflow.python.ops.control_flow_util")
    if tf.executing_eagerly():
        return False
    return bool(utilities.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def in_export() -> bool:
    """Whether the function that is being traced is written to a file, as by Keras's `export`."""
    homes = "keras.src.export.", "tensorflow.python.saved_model.save"
    frame = None if any_tensorflow().executing_eagerly() else sys._getframe()
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(homes):
        frame = frame.f_back
    return frame is not None


@cache
def batch_normalization() -> type:
    """Return Keras's `BatchNormalization`, but a batch without rows keeps its moving statistics.

    One of several workers may have no row of a batch. Keras's own moving statistics are NaN then,
    except under a strategy.
    """
    tf = tensorflow()

    @tf.keras.utils.register_keras_serializable(package="cowclip_merlin")
    class BatchNormalization(tf.keras.layers.BatchNormalization):
        def _support_zero_size_input(self) -> bool:
            return True

    return BatchNormalization


def stored(variable: Variable) -> Variable:
    """Return the variable without the wrapper that Keras layers add under mixed precision.

    Within the layer's `call`, the wrapper has the layer's compute dtype.
    """
    wrapped = type(variable).__name__.startswith("AutoCast")
    return variable._variable if wrapped else variable


def legacy_optimizer(identifier: KerasOptimizer | str | JsonObject) -> KerasOptimizer:
    """Convert to a Keras 2 "legacy" optimizer, which all supported versions and Merlin use.

    Args:
        identifier: a legacy or new Keras 2 optimizer, its name, or its serialized form.

    Raises:
        InputError: if it is not a Keras 2 optimizer, or has a setting without a legacy form.

    >>> legacy_optimizer("adam").get_config()["epsilon"]
    1e-07
    """
    tf = tensorflow()
    if isinstance(identifier, tf.keras.optimizers.legacy.Optimizer):
        return identifier
    if isinstance(identifier, str):
        return _legacy_class(tf, identifier)()
    if isinstance(identifier, dict):
        _check_has_legacy_form(tf, str(identifier.get("class_name")))
        # Keras modifies the dictionary, so pass a copy.
        return tf.keras.optimizers.get(copy.deepcopy(identifier), use_legacy_optimizer=True)
    if not isinstance(identifier, tf.keras.optimizers.Optimizer):
        raise InputError(
            f"{type(identifier).__module__}.{type(identifier).__name__} is not an optimizer of "
            "tf.keras (Keras 2); build it from tf.keras.optimizers after import cowclip_merlin"
        )
    _check_has_legacy_form(tf, type(identifier).__name__)
    for setting in ("weight_decay", "use_ema"):
        if identifier.get_config().get(setting):
            raise InputError(f"{type(identifier).__name__} with {setting} is not supported")
    converted = tf.keras.__internal__.optimizers.convert_to_legacy_optimizer(identifier)
    for name, value in converted._hyper.items():
        if hasattr(value, "item"):  # a number of NumPy, which Keras cannot replace by another
            converted._hyper[name] = value.item()
    return converted


def _check_has_legacy_form(tf: ModuleType, name: str) -> None:
    """Check that an optimizer of Keras is not one of the newer ones, such as Lion or AdamW.

    Raises:
        InputError: if there is no legacy optimizer of this name.
    """
    new, legacy = (getattr(each, name, None) for each in (tf.keras.optimizers, _legacy(tf)))
    if new is not None and legacy is None:
        names = ", ".join(sorted(_legacy_classes(tf)))
        raise InputError(
            f"{name} has no form in tf.keras.optimizers.legacy, which CowClip needs; choose one of "
            f"{names}"
        )


def _legacy(tf: ModuleType) -> ModuleType:
    return tf.keras.optimizers.legacy


def _legacy_classes(tf: ModuleType) -> dict[str, type[KerasOptimizer]]:
    legacy = _legacy(tf)
    classes = {c.lower(): getattr(legacy, c) for c in dir(legacy) if c[0].isupper()}
    classes.pop("optimizer")
    return classes


def _legacy_class(tf: ModuleType, name: str) -> type[KerasOptimizer]:
    classes = _legacy_classes(tf)
    if name.lower() not in classes:
        raise InputError(f"unknown optimizer {name!r}; choose one of {', '.join(sorted(classes))}")
    return classes[name.lower()]


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
