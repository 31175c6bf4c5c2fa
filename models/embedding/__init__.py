"""Embedding tables: one variable for all fields or for each, shards, or one that grows."""

from cowclip_merlin.models.embedding.fused import FusedEmbedding
from cowclip_merlin.models.embedding.growing import GrowingEmbedding
from cowclip_merlin.models.embedding.layers import embedding_layer, look_up
from cowclip_merlin.models.embedding.sharded import ShardedEmbedding

__all__ = [
    "FusedEmbedding",
    "GrowingEmbedding",
    "ShardedEmbedding",
    "embedding_layer",
    "look_up",
]
