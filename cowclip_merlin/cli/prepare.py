"""`cowclip prepare`: turn a raw click log into a prepared folder."""

from __future__ import annotations

import argparse

from cowclip_merlin.settings import add_options, settings_from
from cowclip_merlin.workflows import PrepareSettings, Recipe, prepare

HELP = "turn a raw click log into a prepared folder"
EXAMPLES = """examples:
  cowclip prepare criteo train.txt --out DATA
  cowclip prepare avazu train.gz --out DATA --split time
  cowclip prepare table log.csv --out DATA --label y --categorical user,item --continuous age
  cowclip prepare table train.csv --validation valid.csv --test test.csv --out DATA \\
      --label y --categorical user,item
  cowclip prepare table films.csv --out DATA --label y --categorical user --multi genres
  cowclip prepare table log.csv --out DATA --label click,seconds --regression seconds \\
      --categorical user,item
  cowclip prepare criteo new.txt --out NEW --like DATA"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip prepare`."""
    names = ("kind", "files", "out", "label", "regression", "categorical", "continuous", "multi")
    names += ("multi_separator", "max_values", "keep_values", "share_embedding", "text", "weight")
    names += ("vector", "vector_separator", "separator", "columns", "validation", "test", "split")
    add_options(parser, PrepareSettings, *names, "test_fraction", "seed")
    add_options(parser, Recipe)
    names = ("like", "extend", "hugectr", "scheduler", "device", "max_bad_fraction", "partition_mb")
    add_options(parser, PrepareSettings, *names, "overwrite")


def run(args: argparse.Namespace) -> None:
    """Prepare the log."""
    prepare(settings_from(args, PrepareSettings, recipe=settings_from(args, Recipe)))
