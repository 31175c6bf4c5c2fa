"""Handle the differences between versions of TensorFlow, Keras and Merlin.

The rest of the library gets TensorFlow, Merlin's models and the Keras optimizer base class from
this package. It never checks a version itself.

>>> from cowclip_merlin import compat
>>> hasattr(compat.tensorflow().keras.optimizers.legacy, "Adam")
True
"""

from cowclip_merlin.compat.keras import (
    legacy_optimizer,
    request_keras_2,
    stored,
    tensorflow,
    xplane,
)
from cowclip_merlin.compat.merlin import (
    merlin_models,
    nvtabular,
    prepare_merlin_on_import,
    quiet_merlin,
    save_by_keras,
)

__all__ = [
    "legacy_optimizer",
    "merlin_models",
    "nvtabular",
    "prepare_merlin_on_import",
    "quiet_merlin",
    "request_keras_2",
    "save_by_keras",
    "stored",
    "tensorflow",
    "xplane",
]
