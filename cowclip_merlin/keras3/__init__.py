"""CowClip for Keras 3 on its TensorFlow backend: an optimizer, and an embedding layer.

It needs TensorFlow, Keras 3, NumPy (also 2.x) and numba, and neither tf-keras nor Merlin:

    import keras
    from cowclip_merlin.keras3 import CowClip, Embedding

    model = keras.Sequential([Embedding(1000, 10), ...])
    model.compile(CowClip(1e-3, l2=1e-5), loss="binary_crossentropy")

| `update=` | rows that a step updates | weights |
|---|---|---|
| `"exact"` | those of the batch; before a row is read, it gets the steps that it has missed | those of dense Adam with L2, clipped; needs this `Embedding` |
| `"dense"` | all | the same |
| `"lazy"` | those of the batch alone, also by L2 | others |
"""  # noqa: E501

from cowclip_merlin.errors import StackError, not_installed

_OTHER_BACKEND = (
    "cowclip_merlin.keras3 has no backend {!r}: set KERAS_BACKEND=tensorflow before keras is "
    "imported; for PyTorch's own modules use cowclip_merlin.torch"
)

try:
    import keras
except ModuleNotFoundError as error:  # of keras, of TensorFlow, or of the backend that is chosen
    if error.name in ("jax", "torch", "openvino"):
        raise StackError(_OTHER_BACKEND.format(error.name)) from error
    raise not_installed("keras", by=__name__) from error

if keras.__version__ < "3":
    raise StackError(
        f"cowclip_merlin.keras3 needs Keras 3, but keras is {keras.__version__}; use "
        "cowclip_merlin.CowClip, or pip install 'keras>=3'"
    )
if keras.backend.backend() != "tensorflow":
    raise StackError(_OTHER_BACKEND.format(keras.backend.backend()))

from cowclip_merlin.keras3.embedding import Embedding  # noqa: E402
from cowclip_merlin.keras3.optimizer import CowClip  # noqa: E402

__all__ = ["CowClip", "Embedding"]
