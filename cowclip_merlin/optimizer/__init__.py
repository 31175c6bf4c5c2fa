"""The optimizer: clip, L2 and row updates around two Keras optimizers."""

from cowclip_merlin.optimizer.cowclip import CowClip

__all__ = ["CowClip"]
