"""Command line options of a model and its rates, which several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import NOT_SCALED, Hyperparameters
from cowclip_merlin.settings import add_options, options_of, values_from
from cowclip_merlin.training.run_settings import OVERRIDES, RunSettings

RULE = ("base_batch_size", "preset", "rule", "clip")
"""Settings that say how rates follow from the batch size."""

HIDDEN = ("activation", "dropout", "batch_norm")
"""Settings of the hidden layers that trainings on a prepared folder know."""

LAYERS = ("embedding_dim", "continuous", "precision", "jit_compile")
"""Settings of the model's layers, without `mlp`."""


def add_rate_options(parser: argparse._ActionsContainer, *, without: Sequence[str] = ()) -> None:
    """Add one option for each rate.

    Args:
        parser: the command's parser.
        without: rates that the command does not use.
    """
    known = options_of(Hyperparameters)
    for name in OVERRIDES:
        if name not in without:
            base = "" if name in NOT_SCALED else " (at the base batch size)"
            changes = {"default": None, "help": known[name].help + base}
            add_options(parser, Hyperparameters, name, **{name: changes})


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
