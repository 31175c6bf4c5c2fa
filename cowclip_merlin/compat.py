"""Every version quirk of TensorFlow, Keras and Merlin, in one place.

The rest of the library asks this module for `tf`, for Merlin's TensorFlow models and
for the Keras optimizer base class, and never looks at a version number itself.

>>> from cowclip_merlin import compat
>>> hasattr(compat.tensorflow().keras.optimizers.legacy, "Adam")
True
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from cowclip_merlin.errors import InputError, StackError

# Merlin 23.12 was written against Keras 2.12: where its private modules went since then.
_MOVED_KERAS_MODULES = (
    "utils.tf_inspect",
    "utils.generic_utils",
    "utils.losses_utils",
    "utils.metrics_utils",
    "utils.layer_utils",
    "utils.control_flow_util",
    "engine",
    "engine.compile_utils",
    "layers.preprocessing",
    "layers.preprocessing.preprocessing_utils",
    "saving.saving_lib",
)


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def request_keras_2() -> None:
    """Ask TensorFlow >= 2.16 for Keras 2 (package tf-keras), before TensorFlow is imported.

    Raises:
        ImportError: TensorFlow was imported before and has already chosen Keras 3.
    """
    loaded = sys.modules.get("tensorflow")
    version = getattr(loaded, "__version__", "0.0")
    chosen = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    if loaded is not None and _version(version) >= (2, 16) and not chosen:
        raise ImportError(
            "cowclip_merlin needs Keras 2, but TensorFlow "
            f"{version} was imported with Keras 3: import cowclip_merlin before tensorflow, "
            "or set TF_USE_LEGACY_KERAS=1 in the environment"
        )
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # dask >= 2024.3 rewrites dataframes as expressions, which merlin-core does not know.
    os.environ.setdefault("DASK_DATAFRAME__QUERY_PLANNING", "False")


# What TensorFlow's native part says on every start, CUDA or not, whatever its log level is.
_CHATTER = re.compile(
    rb"I0000|WARNING: All log messages before absl|E0000 .*failed call to cuInit"
    rb"|To enable the following instructions"
)


@contextmanager
def _held_back_chatter() -> Iterator[None]:
    """Standard error without TensorFlow's start-up chatter; all other lines come through."""
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


def _keras_version(tf: Any) -> tuple[int, int]:
    package = tf.keras.layers.Layer.__module__.partition(".")[0]  # "keras" or "tf_keras"
    return _version(importlib.import_module(package).__version__)


@cache
def tensorflow() -> Any:
    """TensorFlow with Keras 2.

    Raises:
        StackError: TensorFlow >= 2.16 without the tf-keras package, or with Keras 3 chosen.
    """
    request_keras_2()
    with _held_back_chatter():
        tf = importlib.import_module("tensorflow")
        tf.config.list_physical_devices()  # looks for CUDA now, not in the middle of a run
    if _version(tf.__version__) >= (2, 16) and importlib.util.find_spec("tf_keras") is None:
        raise StackError(
            f"TensorFlow {tf.__version__} brings Keras 3, Merlin needs Keras 2: "
            f"pip install 'tf-keras~={tf.__version__.rsplit('.', 1)[0]}.0'"
        )
    if _keras_version(tf) >= (3, 0):
        raise StackError(
            "tf.keras is Keras 3, Merlin needs Keras 2: "
            "set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported"
        )
    return tf


def _alias_package(alias: str, home: str) -> None:
    """Let `import <alias>.<moved module>` find `<home>.<moved module>`."""
    for name in _MOVED_KERAS_MODULES:
        try:
            module = importlib.import_module(f"{home}.{name}")
        except ImportError:
            continue
        full_name = f"{alias}.{name}"
        sys.modules.setdefault(full_name, module)
        parent, _, child = full_name.rpartition(".")
        if parent in sys.modules and not hasattr(sys.modules[parent], child):
            setattr(sys.modules[parent], child, sys.modules[full_name])


def _alias_tensorflow_privates(tf: Any) -> None:
    """Put back two private names that Merlin imports and TensorFlow has moved."""
    python = importlib.import_module("tensorflow.python")
    for name in ("to_dlpack", "from_dlpack"):
        if not hasattr(python, name):
            setattr(python, name, getattr(tf.experimental.dlpack, name))
    old = "tensorflow.python.training.tracking"
    try:
        importlib.import_module(f"{old}.data_structures")
    except ImportError:
        sys.modules.setdefault(old, importlib.import_module("tensorflow.python.trackable"))
        sys.modules[f"{old}.data_structures"] = importlib.import_module(
            "tensorflow.python.trackable.data_structures"
        )


def _prepare_for_merlin() -> None:
    """Make the names importable that Merlin's modules ask for (nothing on disk changes)."""
    tf = tensorflow()
    version = _version(tf.__version__)
    importlib.import_module("keras")
    if version >= (2, 16):
        _alias_package("keras", "tf_keras.src")
    elif version >= (2, 13):
        _alias_package("keras", "keras.src")
    _alias_tensorflow_privates(tf)


@cache
def merlin_models() -> Any:
    """`merlin.models.tf`, on any of the supported TensorFlow versions.

    Raises:
        StackError: a GPU is present but TensorFlow was built without CUDA.
    """
    _prepare_for_merlin()
    try:
        with quiet_merlin():
            return importlib.import_module("merlin.models.tf")
    except Exception as error:
        if not tensorflow().test.is_built_with_cuda() and _nvml_sees_a_gpu():
            raise StackError(
                "a GPU is present but this TensorFlow cannot use it: install the GPU build, "
                'or hide the GPU with CUDA_VISIBLE_DEVICES=""'
            ) from error
        raise


def save_by_keras(model: Any, export_path: Any, *args: Any, **kwargs: Any) -> None:
    """Save a Merlin model with arguments that Keras's `save` knows and Merlin's does not."""
    mm = merlin_models()
    base = sys.modules[mm.Model.__module__]
    # Merlin loads what was saved, and Keras says that it is not compiled; TensorFlow 2.12 says that
    # names in a signature are written small inside of it.
    with _only_errors("tensorflow", "absl"):
        super(mm.Model, model).save(export_path, *args, save_format="tf", **kwargs)
        base.save_merlin_metadata(export_path, model.schema, base.get_output_schema(export_path))


@contextmanager
def _only_errors(*names: str) -> Iterator[None]:
    """Loggers of these names are silent below errors."""
    before = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    for log in before:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in before.items():
            log.setLevel(level)


@cache
def nvtabular() -> Any:
    """`nvtabular`; Merlin's core imports TensorFlow if it is there, so that goes first."""
    request_keras_2()
    if importlib.util.find_spec("tensorflow") is not None:
        tensorflow()
    with quiet_merlin():
        return importlib.import_module("nvtabular")


def _nvml_sees_a_gpu() -> bool:
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount() > 0
    except Exception:
        return False


# Where TensorFlow 2.12 to 2.21 keep it, and where earlier ones did.
_XPLANE_HOMES = ("tensorflow.tsl.profiler.protobuf", "tensorflow.core.profiler.protobuf")


@cache
def xplane() -> Any:
    """Protobuf module of what TensorFlow's profiler writes, with `XSpace`, `XPlane`, `XLine`.

    Raises:
        ImportError: it is at none of the known places.
    """
    tf = tensorflow()
    for home in _XPLANE_HOMES:
        with suppress(ImportError):
            return importlib.import_module(f"{home}.xplane_pb2")
    raise ImportError(
        f"TensorFlow {tf.__version__} has xplane_pb2 in none of "
        f"{', '.join(_XPLANE_HOMES)}: 2.12 to 2.21 have it"
    )


@contextmanager
def quiet_merlin() -> Iterator[None]:
    """Without the warning that Merlin gives for every dataset on the CPU."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Initializing an NVTabular Dataset in CPU mode")
        warnings.filterwarnings("ignore", message="(PyTorch|Triton) dtype mappings")
        yield


def stored(variable: Any) -> Any:
    """The variable itself: Keras's layers hand it out in a wrapper under mixed precision.

    Within the layer's `call` the wrapper has the type that the layer computes in.
    """
    wrapped = type(variable).__name__.startswith("AutoCast")
    return variable._variable if wrapped else variable


def legacy_optimizer(identifier: Any) -> Any:
    """A Keras 2 "legacy" optimizer, which all supported versions and Merlin build on.

    Args:
        identifier: a legacy or new Keras 2 optimizer, its name, or its serialised form.

    Raises:
        InputError: not an optimizer of Keras 2, or one with a setting that has no legacy form.

    >>> legacy_optimizer("adam").get_config()["epsilon"]
    1e-07
    """
    tf = tensorflow()
    if isinstance(identifier, tf.keras.optimizers.legacy.Optimizer):
        return identifier
    if isinstance(identifier, str):
        return _legacy_class(tf, identifier)()
    if isinstance(identifier, dict):
        # Keras writes into the dictionary it is given.
        return tf.keras.optimizers.get(copy.deepcopy(identifier), use_legacy_optimizer=True)
    if not isinstance(identifier, tf.keras.optimizers.Optimizer):
        raise InputError(
            f"{type(identifier).__module__}.{type(identifier).__name__} is no optimizer of "
            "tf.keras (Keras 2); build it from tf.keras.optimizers after import cowclip_merlin"
        )
    for setting in ("weight_decay", "use_ema"):
        if identifier.get_config().get(setting):
            raise InputError(f"{type(identifier).__name__} with {setting} is not supported")
    return tf.keras.__internal__.optimizers.convert_to_legacy_optimizer(identifier)


def _legacy_class(tf: Any, name: str) -> Any:
    legacy = tf.keras.optimizers.legacy
    classes = {c.lower(): getattr(legacy, c) for c in dir(legacy) if c[0].isupper()}
    classes.pop("optimizer")
    if name.lower() not in classes:
        raise InputError(f"unknown optimizer {name!r}; choose one of {', '.join(sorted(classes))}")
    return classes[name.lower()]
