"""A small experiment and sweep, and the command that runs them."""

from cowclip_merlin.cli import main

MINE = """
title: A small table
claim: Nothing.
reference: [no scaling, 1]
lines:
  - {label: no scaling, rule: none, multipliers: [1, 4], published: {1: 80.76}}
  - {label: CowClip, multipliers: [4, 64]}
"""
SWEEP = """
kind: sweep
title: A small sweep
claim: Nothing.
lines: [{label: CowClip, multipliers: [largest]}]
grid: {r: [1.0, 0.1]}
"""
SMALL = ["--epochs", "1", "--seeds", "2", "--max-multiplier", "4", "--mlp", "8", "--device", "cpu"]


def experiment(file, data, out, *more, verb="experiment"):
    return main([verb, file, "--data", str(data), "--out", str(out), *SMALL, *more])
