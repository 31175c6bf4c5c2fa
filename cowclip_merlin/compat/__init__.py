"""Every version quirk of TensorFlow, Keras and Merlin, in one place.

The rest of the library asks this package for `tf`, for Merlin's TensorFlow models and
for the Keras optimizer base class, and never looks at a version number itself.

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
