"""Replay a log in time order: score each event with serving copies, then train on it."""
