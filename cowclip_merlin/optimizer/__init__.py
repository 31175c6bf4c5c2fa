"""The optimizer: clip, L2 and row updates around two Keras optimizers."""

from cowclip_merlin import compat
from cowclip_merlin.optimizer.cowclip import CowClip
from cowclip_merlin.optimizer.inner_optimizers import optimizers_in
from cowclip_merlin.optimizer.row_optimizers import RowWiseAdagrad
from cowclip_merlin.types import KerasOptimizer

__all__ = ["CowClip", "RowWiseAdagrad"]


def _cowclip_in(optimizer: KerasOptimizer) -> CowClip | None:
    return next((each for each in optimizers_in(optimizer) if isinstance(each, CowClip)), None)


compat.keep_state_in_models(_cowclip_in)
