"""CowClip for PyTorch: one optimizer for a model with `nn.Embedding(..., sparse=True)`.

It needs neither TensorFlow nor Merlin: `pip install ".[torch]"`. It is tested on Python 3.13 with
NumPy 2.5 and PyTorch 2.14 (`make current-check`), on a CPU; CuPy's kernels only emulated:

    from cowclip_merlin.torch import CowClip

    optimizer = CowClip(model, lr=1e-3, l2=1e-5)  # tables and all other weights
    ...
    loss.backward()
    optimizer.step()

| `update=` | rows that a step updates | weights |
|---|---|---|
| `"exact"` | those of the batch; before PyTorch reads a row, it gets the steps that it has missed | those of dense Adam with `weight_decay=2 * l2`, clipped |
| `"dense"` | all | the same |
| `"lazy"` | those of the batch alone, also by L2 | others |

For layers that a library has made, set `layer.sparse = True` first. Lookups, `state_dict`,
`weight.data` and other functions of PyTorch see rows that are up to date; an alias of `weight.data`
that was taken before a step does not. Under `DistributedDataParallel` ids are counted in the
batches of all processes.
"""  # noqa: E501

from cowclip_merlin import kernels
from cowclip_merlin.errors import require

require("torch", by=__name__)
kernels.load("numba")  # before PyTorch, so that its threads do not spin while they wait either

from cowclip_merlin.torch.optimizer import CowClip  # noqa: E402

__all__ = ["CowClip"]
