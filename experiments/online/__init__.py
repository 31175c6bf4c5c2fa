"""Experiments on a log in order of time: replays with different sync intervals and rules."""
