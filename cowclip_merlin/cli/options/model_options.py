"""Command line options of a model and its rates, which several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import values_from
from cowclip_merlin.training.run_settings import OVERRIDES, RunSettings

_RATES = {
    "embedding_lr": "learning rate of the embedding tables at the base batch size",
    "dense_lr": "learning rate of the other weights at the base batch size",
    "l2": "L2 regularization of the embedding tables at the base batch size",
    "r": "clip threshold relative to a row's norm, at the base batch size",
    "zeta": "lower bound of a row's norm, per coordinate, at the base batch size",
    "init_std": "standard deviation of the tables' initial values",
    "warmup_epochs": "epochs over which the dense learning rate rises from 0",
    "bound": "threshold of the clips global, field and column, at the base batch size",
    "lambda_rel": "clippy: largest change of a weight, relative to the weight",
    "lambda_abs": "clippy: constant that is added to this limit",
    "beta_1": "decay of Adam's first moments per step at the base batch size",
    "beta_2": "decay of Adam's second moments per step at the base batch size",
    "epsilon": "constant in Adam's denominator at the base batch size",
}

RULE = ("base_batch_size", "preset", "rule", "clip")
"""Settings that say how rates follow from the batch size."""

LAYERS = ("embedding_dim", "continuous", "precision", "jit_compile")
"""Settings of the model's layers, without `mlp`."""


def add_rate_options(parser: argparse._ActionsContainer, *, without: Sequence[str] = ()) -> None:
    """Add one option for each rate.

    Args:
        parser: the command's parser.
        without: rates that the command does not use.
    """
    for name in OVERRIDES:
        if name not in without:
            flag = "--" + name.replace("_", "-")
            parser.add_argument(flag, type=float, metavar="X", help=_RATES[name])


def model_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `RunSettings` that these options give."""
    given = {name: getattr(args, name, None) for name in OVERRIDES}
    overrides = {name: value for name, value in given.items() if value is not None}
    return values_from(args, RunSettings) | {"overrides": overrides}


def check_overrides_used(settings: RunSettings, clips: Iterable[str] | None = None) -> None:
    """Refuse a rate that the run's clip does not use.

    Args:
        settings: of the run.
        clips: the clips that the command can use, for the message; None for all.

    Raises:
        InputError: if there is one.
    """
    for name, users in settings.unused_overrides().items():
        usable = [clip for clip in users if clips is None or clip in clips]
        raise InputError(
            f"--{name.replace('_', '-')} has no effect with the clip {settings.effective_clip}; "
            f"remove it, or use --clip {' or '.join(usable)}"
        )
