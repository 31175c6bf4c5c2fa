"""Small experiments on prepared data and on a log, and a sweep; the commands that run them."""

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
SMALL = ["--epochs", "1", "--seeds", "2", "--max-multiplier", "4", "--steps", "10", "--mlp", "8"]
ONE = ["--lines", "CowClip", "--seeds", "1"]


def experiment(file, data, out, *more, verb="experiment"):
    words = [verb, str(file), "--data", str(data), "--out", str(out), *SMALL, "--device", "cpu"]
    return main([*words, *more])


SYNC = """
kind: sync
title: "Small intervals: two of them"
claim: Nothing.
corner: synced every
reference: never
lines:
  - {label: never, sync: never, published: {auc: 79.43}}
  - {label: 1 h, sync: 1h, published: {auc: 79.78, gain: 0.35}, note: A note of a cell.}
"""
RULES = """
kind: rules
title: "Small rules: two of them"
claim: Nothing.
corner: rule
reference: as is
lines:
  - {label: as is, sync: 1h}
  - {label: T is 3 and ttl 6 h, admit: 3, ttl: 6h, sync: 1h}
"""
MODEL = [
    "--batch-size", "256", "--mlp", "8", "--embedding-dim", "4", "--capacity", "4000",
    "--embedding-lr", "0.01", "--dense-lr", "0.01", "--init-std", "0.1",
]  # fmt: skip


def run_on_log(log, definitions, out, *names, more=()):
    """Run experiments with two seeds; the first day is only trained."""
    files = [str(definitions / f"{name}.yaml") for name in names]
    log_options = ["--log", str(log / "log.csv"), "--features", str(log / "log.csv.yaml")]
    options = ["--out", str(out), "--seeds", "2", "--batch-days", "1", *MODEL, *more]
    return main(["experiment", *files, *log_options, *options])
