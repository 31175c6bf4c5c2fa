"""Handle the differences between versions of TensorFlow, Keras, Merlin and NumPy.

The rest of the library gets TensorFlow, Merlin's models and the Keras optimizer base class from
this package. It never checks a version itself.

>>> from cowclip_merlin import compat
>>> hasattr(compat.tensorflow().keras.optimizers.legacy, "Adam")
True
"""

from cowclip_merlin.compat.arrays import (
    LARGEST_KEY,
    argsort_on_device,
    numpy_memory_can_be_shared,
    part_numbers,
    ranges_of_parts,
    sums_of_parts,
)
from cowclip_merlin.compat.keras import (
    all_to_all,
    any_tensorflow,
    batch_normalization,
    in_export,
    in_xla,
    keep_state_in_models,
    legacy_optimizer,
    release_models,
    request_keras_2,
    stored,
    tensorflow,
)
from cowclip_merlin.compat.merlin import (
    gpu_count,
    merlin_models,
    merlin_schema,
    nvtabular,
    prepare_merlin_on_import,
    quiet_merlin,
    save_by_keras,
)
from cowclip_merlin.compat.tensorflow_names import literal_path

__all__ = [
    "LARGEST_KEY",
    "all_to_all",
    "any_tensorflow",
    "argsort_on_device",
    "batch_normalization",
    "gpu_count",
    "in_export",
    "in_xla",
    "keep_state_in_models",
    "legacy_optimizer",
    "literal_path",
    "merlin_models",
    "merlin_schema",
    "numpy_memory_can_be_shared",
    "nvtabular",
    "part_numbers",
    "prepare_merlin_on_import",
    "quiet_merlin",
    "ranges_of_parts",
    "release_models",
    "request_keras_2",
    "save_by_keras",
    "stored",
    "sums_of_parts",
    "tensorflow",
]
