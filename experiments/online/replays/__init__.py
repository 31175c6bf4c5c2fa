"""Replays of a log: their runs, results, tables and figures."""
