"""Make Merlin work with all supported versions of TensorFlow, Keras and RAPIDS."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cache, wraps
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cowclip_merlin.compat.import_hooks import ImportHook, after, refused, without_tensorflow
from cowclip_merlin.compat.keras import request_keras_2, tensorflow, version_of
from cowclip_merlin.compat.tensorflow_names import literal_path
from cowclip_merlin.errors import StackError
from cowclip_merlin.types import JsonObject, KerasModel, Layer

if TYPE_CHECKING:
    import dask.dataframe as dd
    import numpy as np
    import pandas as pd
    from dask.delayed import Delayed
    from fsspec import AbstractFileSystem
    from merlin.io.shuffle import Shuffle


def gpu_count() -> int:
    """Return how many GPUs NVIDIA's driver reports; 0 without a driver or its library.

    >>> gpu_count() >= 0
    True
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except Exception:  # no driver, or no library for it
        return 0


def know_types_of_empty_lists() -> None:
    """Give Merlin the type of the first list's array if no list has a value.

    Merlin looks at the first value. In a first partition without one it finds no type, and the fit
    of a workflow ends with an error.
    """
    dispatch = importlib.import_module("merlin.core.dispatch")
    by_value = dispatch.list_val_dtype

    @wraps(by_value)
    def by_value_or_array(column: pd.Series) -> np.dtype | None:
        found = by_value(column)
        if found is None and len(column) and dispatch.is_list_dtype(column):
            return getattr(column.iloc[0], "dtype", None)
        return found

    for name in ("merlin.dag.executors", "merlin.io.dataset"):
        importlib.import_module(name).list_val_dtype = by_value_or_array


def rapids_hooks() -> list[MetaPathFinder]:
    """Return the import hooks that adapt cuDF and Dask-cuDF to Merlin 23.8."""
    return [
        ImportHook("dask_cudf", refused),
        ImportHook("merlin.core.compat", after(fit_cudf_to_merlin)),
    ]


def fit_cudf_to_merlin(core: ModuleType) -> None:
    """Let Merlin use cuDF if it can, and hide it otherwise.

    Merlin uses cuDF only through Dask-cuDF with Dask's legacy dataframes. Dask-cuDF has them up to
    24.12. Without it, `merlin.io` fails at import if it sees cuDF. It then works on pandas.

    Args:
        core: the module `merlin.core.compat`.
    """
    if core.cudf is None:
        return
    if core.dask_cudf is None:
        core.cudf = None
        return
    column = importlib.import_module("cudf.core.column")
    if not hasattr(column, "build_categorical_column"):
        # `merlin.io` imports the name, which cuDF 24.12 lacks. It calls it only with cuDF < 22.2.
        column.build_categorical_column = None


# Merlin 23.12 was written for Keras 2.12. Later versions moved these private modules here.
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

_CROSS_MODULE = "merlin.models.tf.blocks.cross"


def _aliases(alias: str, home: str) -> dict[str, ModuleType]:
    """Return the moved modules that `home` has, under their names in `alias`."""
    found = {}
    for name in _MOVED_KERAS_MODULES:
        with suppress(ImportError):
            found[f"{alias}.{name}"] = importlib.import_module(f"{home}.{name}")
    return found


def _alias_package(alias: str, home: str) -> None:
    """Make `import <alias>.<moved module>` import `<home>.<moved module>`."""
    for full_name, module in _aliases(alias, home).items():
        sys.modules.setdefault(full_name, module)
        parent, _, child = full_name.rpartition(".")
        if parent in sys.modules and not hasattr(sys.modules[parent], child):
            setattr(sys.modules[parent], child, sys.modules[full_name])


@contextmanager
def _keras_2_as_keras() -> Iterator[None]:
    """Let Merlin import Keras 2 as `keras`, and put nothing of Keras 3 in its place.

    Keras 3 is what `keras` means beside TensorFlow >= 2.16. Merlin uses none of it, and importing
    it takes more than a second.
    """
    packages = ("", ".layers", ".saving", ".utils")
    names = {f"keras{each}": importlib.import_module(f"tf_keras.src{each}") for each in packages}
    names |= _aliases("keras", "tf_keras.src")
    sys.modules.update(names)
    try:
        yield
    finally:
        for name in [each for each in sys.modules if each.partition(".")[0] == "keras"]:
            del sys.modules[name]


@contextmanager
def _importing_merlin() -> Iterator[None]:
    """Make the names importable that Merlin's modules import, without changes on disk."""
    tf = tensorflow()
    _alias_tensorflow_privates(tf)
    if version_of(tf.__version__) >= (2, 16) and "keras" not in sys.modules:
        with _keras_2_as_keras():
            yield
    else:
        _alias_keras()
        yield


def _alias_tensorflow_privates(tf: ModuleType) -> None:
    """Restore two private names that Merlin imports and TensorFlow has moved."""
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


@cache
def _alias_keras() -> None:
    """Make the modules importable from the installed `keras` that Merlin expects there."""
    version = version_of(tensorflow().__version__)
    importlib.import_module("keras")
    if version >= (2, 16):
        _alias_package("keras", "tf_keras.src")
    elif version >= (2, 13):
        _alias_package("keras", "keras.src")


class _AliasesForLaterImports(MetaPathFinder):
    """Import hook for the modules of Merlin that `import merlin.models.tf` leaves out."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Return None, so that Python's other finders find the module."""
        if name.startswith("merlin.models.tf."):
            keras = sys.modules.get("keras")
            if keras is None or keras.__name__ != "tf_keras.src":
                _alias_keras()


def prepare_merlin_on_import() -> None:
    """Prepare a later `import merlin.models.tf`; import nothing now."""
    if not any(isinstance(finder, _AliasesForLaterImports) for finder in sys.meta_path):
        sys.meta_path[:0] = [
            ImportHook("merlin.models.tf", lambda _: _importing_merlin()),
            _AliasesForLaterImports(),
            ImportHook(_CROSS_MODULE, after(_save_all_of_cross)),
            *rapids_hooks(),
        ]
        if _CROSS_MODULE in sys.modules:
            _save_all_of_cross(sys.modules[_CROSS_MODULE])


def _save_all_of_cross(module: ModuleType) -> None:
    """Make saved cross layers keep `output_x0`, without which a loaded DCN predicts differently."""
    get_config = module.Cross.get_config

    @wraps(get_config)
    def get_whole_config(self: Layer) -> JsonObject:
        return {**get_config(self), "output_x0": self.output_x0}

    module.Cross.get_config = get_whole_config


@cache
def merlin_models() -> ModuleType:
    """Import `merlin.models.tf` with any supported version of TensorFlow.

    Raises:
        StackError: if a GPU is present but TensorFlow was built without CUDA.
    """
    prepare_merlin_on_import()
    try:
        with quiet_merlin(), _output_to_stderr():
            return importlib.import_module("merlin.models.tf")
    except Exception as error:
        if not tensorflow().test.is_built_with_cuda() and gpu_count() > 0:
            raise StackError(
                "a GPU is present but this TensorFlow cannot use it: install the GPU build, "
                'or hide the GPU with CUDA_VISIBLE_DEVICES=""'
            ) from error
        raise


@contextmanager
def _output_to_stderr() -> Iterator[None]:
    """Send to standard error what Python and native code print, and keep standard output clean.

    Merlin starts Horovod and HugeCTR's Sparse Operation Kit where they are installed, as in
    NVIDIA's image. Both print.
    """
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # standard output is closed
        saved = None
    try:
        if saved is not None:
            os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if saved is not None:
            os.dup2(saved, 1)
            os.close(saved)


def save_by_keras(
    model: KerasModel, export_path: str | os.PathLike[str], *args: Any, **kwargs: Any
) -> None:
    """Save a Merlin model with arguments that Keras's `save` has and Merlin's does not."""
    mm, export_path = merlin_models(), str(literal_path(export_path))
    base = sys.modules[mm.Model.__module__]
    # Merlin loads the saved model, and Keras warns that it is not compiled. TensorFlow 2.12 warns
    # that names in a signature become lowercase.
    with _only_errors("tensorflow", "absl"):
        super(mm.Model, model).save(export_path, *args, save_format="tf", **kwargs)
        base.save_merlin_metadata(export_path, model.schema, base.get_output_schema(export_path))


@contextmanager
def _only_errors(*names: str) -> Iterator[None]:
    """Silence the loggers of these names, except for errors."""
    before = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    for log in before:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in before.items():
            log.setLevel(level)


def _tell_merlin_of_tensorflow() -> None:
    """Repeat what Merlin's core does at import if it finds TensorFlow."""
    with quiet_merlin():
        for name in ("merlin.core.compat.tensorflow", "merlin.dtypes.mappings.tf"):
            importlib.reload(importlib.import_module(name))
    # The first mapping that knows a type is used. To Triton's, tf.float32 is 1, which means bool.
    mappings = importlib.import_module("merlin.dtypes.registry")._dtype_registry.mappings
    for name in ("torch", "triton"):
        if name in mappings:
            mappings[name] = mappings.pop(name)
    column = importlib.import_module("merlin.table.tensorflow_column")
    column.tf = sys.modules["tensorflow"]


def merlin_schema() -> ModuleType:
    """Import `merlin.schema`, and not TensorFlow, which Merlin's core would import."""
    request_keras_2()
    with without_tensorflow(then=_tell_merlin_of_tensorflow), quiet_merlin():
        return importlib.import_module("merlin.schema")


@cache
def nvtabular() -> ModuleType:
    """Import `nvtabular`, and not TensorFlow, which Merlin's core would import."""
    request_keras_2()
    with without_tensorflow(then=_tell_merlin_of_tensorflow), quiet_merlin():
        module = importlib.import_module("nvtabular")
    _number_partitions_plainly()
    know_types_of_empty_lists()
    for user in ("merlin.dag.executors", "merlin.io.dask"):
        importlib.import_module(user).dask = _ConfiguredDask()
    return module


class _ConfiguredDask:
    """The module `dask` for Merlin, whose `compute` uses the scheduler of Dask's configuration.

    Without a cluster, Merlin asks for one thread, which overrides the configuration.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("dask"), name)

    def compute(self, *args: Any, scheduler: str, **settings: Any) -> Any:
        """Compute with the configured scheduler; if there is none, with Merlin's."""
        dask = importlib.import_module("dask")
        chosen = dask.config.get("scheduler", None) or scheduler
        return dask.compute(*args, scheduler=chosen, **settings)


def _number_partitions_plainly() -> None:
    """Make Merlin write shuffled or repartitioned datasets on a Dask cluster.

    `Dataset.to_parquet` numbers partitions with NumPy integers. If each file gets one partition,
    and not every step of the graph is blockwise, these numbers become part of task keys. Dask
    cannot send them: the scheduler loses its workers, and the client waits forever.
    """
    dataset = importlib.import_module("merlin.io.dataset")
    write = dataset._ddf_to_dataset

    @wraps(write)
    def write_plainly(
        ddf: dd.DataFrame,
        fs: AbstractFileSystem,
        output_path: str,
        shuffle: Shuffle | None,
        file_partition_map: dict[str, list[int]] | list[str] | None,
        *args: Any,
        **kw: Any,
    ) -> Delayed:
        if isinstance(file_partition_map, dict):
            file_partition_map = {k: list(map(int, v)) for k, v in file_partition_map.items()}
        return write(ddf, fs, output_path, shuffle, file_partition_map, *args, **kw)

    dataset._ddf_to_dataset = write_plainly


@contextmanager
def quiet_merlin() -> Iterator[None]:
    """Suppress the warnings of Merlin about the CPU and about frameworks that are not loaded."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Initializing an NVTabular Dataset in CPU mode")
        warnings.filterwarnings("ignore", message="(PyTorch|Triton|Tensorflow) dtype mappings")
        yield
