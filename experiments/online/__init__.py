"""Experiments on a log sorted by time: replays with different sync intervals and rules."""
