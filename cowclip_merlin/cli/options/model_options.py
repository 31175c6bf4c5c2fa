"""Command line options of a model and its rates, which several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cowclip_merlin import choices
from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import ADAM_RULES, PRESETS, RULES
from cowclip_merlin.settings import parse_integers
from cowclip_merlin.training.run_settings import OVERRIDES

if TYPE_CHECKING:
    from cowclip_merlin.training.run_settings import RunSettings

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


def add_option(
    parser: argparse.ArgumentParser,
    name: str,
    value: float | str,
    like: str,
    text: str,
    *,
    own_table: str = "",
) -> None:
    """Add an option and show its default in the help.

    Args:
        parser: the command's parser.
        name: of the option, without the dashes.
        value: its default.
        like: what stands for the value in the help.
        text: what the option does.
        own_table: default for a table of the user's own; then None stands for both defaults.
    """
    shown = f"{value:g}" if isinstance(value, float) else value
    shown = f"{shown}; for your own table {own_table}" if own_table else shown
    default = None if own_table else value
    text = f"{text} (default: {shown})"
    parser.add_argument(f"--{name}", type=type(value), default=default, metavar=like, help=text)


def add_rule_options(
    parser: argparse.ArgumentParser,
    *,
    preset: str,
    clips: Iterable[str] | None = None,
    by_data: bool = False,
    **defaults: str,
) -> None:
    """Add the model's name, the batch size, and how rates follow from it.

    Args:
        parser: the command's parser.
        preset: what the default preset is, for the help.
        clips: the clips that the command can use; None for all.
        by_data: whether rule and base batch depend on the data; their defaults are None then.
        **defaults: `rule`, and `clip_words` for the help, of `add_scaling_options`.
    """
    parser.add_argument("--model", required=True, metavar="NAME", help=", ".join(choices.MODELS))
    parser.add_argument("--batch-size", type=int, required=True, metavar="N", help="rows per step")
    clips = choices.CLIPS if clips is None else clips
    add_scaling_options(parser, preset=preset, clips=clips, by_data=by_data, **defaults)


def add_scaling_options(
    parser: argparse.ArgumentParser,
    *,
    preset: str,
    clips: Iterable[str],
    by_data: bool = False,
    rule: str = "cowclip",
    clip_words: str = "cowclip with the rule cowclip, else none",
) -> None:
    """Add how rates follow from the batch size; see `add_rule_options`."""
    add_option(
        parser,
        "base-batch-size",
        1024,
        "N",
        "batch size of the rates below",
        own_table="by its rows" if by_data else "",
    )
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help=f"values for rates not given: {', '.join(PRESETS)} (default: {preset})",
    )
    rules = f"how learning rates and L2 ({', '.join(ADAM_RULES)}: Adam's betas, too) change with "
    rules += f"the batch size: {', '.join(RULES)}"
    own_rule = "sde" if by_data and rule != "sde" else ""
    add_option(parser, "rule", rule, "RULE", rules, own_table=own_rule)
    parser.add_argument(
        "--clip",
        metavar="CLIP",
        help=f"what limits gradients: {', '.join(clips)} (default: {clip_words})",
    )


def add_backend_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--backend`."""
    text = f"code that updates rows: {', '.join(choices.BACKENDS)}"
    add_option(parser, "backend", "auto", "NAME", text)


def add_rate_options(parser: argparse.ArgumentParser, *, without: Sequence[str] = ()) -> None:
    """Add one option for each rate.

    Args:
        parser: the command's parser.
        without: rates that the command does not use.
    """
    for name in OVERRIDES:
        if name not in without:
            flag = "--" + name.replace("_", "-")
            parser.add_argument(flag, type=float, metavar="X", help=_RATES[name])


def add_architecture_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model's layers."""
    add_option(parser, "mlp", "400,400,400", "N,N", "hidden widths")
    add_layer_options(parser)


def add_layer_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model's layers but `--mlp`."""
    add_option(parser, "embedding-dim", 10, "N", "length of an embedding row")
    continuous = (
        "layers that read continuous columns: deep (the MLP) or all (also linear and cross parts)"
    )
    add_option(parser, "continuous", "deep", "HOW", continuous)
    precision = f"precision of hidden and cross layers: {', '.join(choices.PRECISIONS)}"
    add_option(parser, "precision", "float32", "NAME", precision)
    text = "compile the layers after the lookups with XLA; faster on a GPU"
    on_or_off = argparse.BooleanOptionalAction
    parser.add_argument("--jit-compile", action=on_or_off, default=False, help=text)


def model_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `RunSettings` that these options give."""
    given = {name: getattr(args, name, None) for name in OVERRIDES}
    names = ("model", "batch_size", "base_batch_size", "preset", "rule", "clip", "backend", "seed")
    names += ("embedding_dim", "continuous", "precision", "jit_compile")
    return {name: getattr(args, name) for name in names} | {
        "overrides": {name: value for name, value in given.items() if value is not None},
        "mlp": parse_integers("--mlp", args.mlp, like="400,400,400"),
    }


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
