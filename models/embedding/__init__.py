"""Embedding tables: one variable for all fields or for each, shards, or one that grows."""

from cowclip_merlin.models.embedding.fused import (
    FusedEmbedding,
    PartlyFrozenEmbedding,
    PerFieldEmbedding,
)
from cowclip_merlin.models.embedding.growing import GrowingEmbedding, look_up_requests
from cowclip_merlin.models.embedding.sharded import ShardedEmbedding, look_up_shards

__all__ = [
    "FusedEmbedding",
    "GrowingEmbedding",
    "PartlyFrozenEmbedding",
    "PerFieldEmbedding",
    "ShardedEmbedding",
    "look_up_requests",
    "look_up_shards",
]
