"""Experiments on a log sorted by time: replays, and ids in buckets."""
