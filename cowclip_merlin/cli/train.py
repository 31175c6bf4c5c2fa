"""`cowclip train`: train a model on a prepared folder."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from dataclasses import fields

from cowclip_merlin import choices
from cowclip_merlin.choices import ClipSettings
from cowclip_merlin.cli.common_options import add_device_option, parse_integers
from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import PRESETS, RULES
from cowclip_merlin.training.run_settings import OVERRIDES, RunSettings

HELP = "train a model on a prepared folder"
EXAMPLES = """examples:
  cowclip train DATA --out RUN --model deepfm --batch-size 65536
  cowclip train DATA --out RUN1 --model dcnv2 --batch-size 1024 --rule none --epochs 4
  cowclip train DATA --out RUN --model deepfm --batch-size 65536 --resume
  cowclip train DATA --out RUN2 --model deepfm --batch-size 65536 --rule none \
      --optimizer adagrad --embedding-lr 0.02 --dense-lr 0.02 --l2 0 --validation-fraction 0.1

The rates you give (or the preset's) are those at the base batch size; the rule scales them to
the batch size, and the run prints what it used. Ctrl-C stops with a checkpoint."""

_HELP = {
    "embedding_lr": "learning rate of the tables at the base batch size",
    "dense_lr": "learning rate of the other weights at the base batch size",
    "l2": "L2 of the tables at the base batch size",
    "r": "clip threshold relative to a row's norm",
    "zeta": "lower bound of a row's norm, per coordinate",
    "init_std": "standard deviation of the tables' initialisation",
    "warmup_epochs": "epochs in which the dense rate rises from 0",
    "bound": "threshold of the constant clips at the base batch size",
    "lambda_rel": "bound on the change of a coordinate, relative to the coordinate",
    "lambda_abs": "constant that is added to that bound",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `cowclip train`."""
    parser.add_argument("data", metavar="DATA", help="folder that cowclip prepare wrote")
    parser.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    parser.add_argument("--model", required=True, metavar="NAME", help=", ".join(choices.MODELS))
    parser.add_argument("--batch-size", type=int, required=True, metavar="N", help="rows a step")
    _add_option(parser, "base-batch-size", 1024, "N", "at which the rates below hold")
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help=f"values for what is not given: {', '.join(PRESETS)} (default: that of the data's "
        "kind; criteo for a table)",
    )
    _add_option(parser, "rule", "cowclip", "RULE", ", ".join(RULES))
    parser.add_argument(
        "--clip",
        metavar="CLIP",
        help=", ".join(choices.CLIPS) + " (default: cowclip under the rule cowclip, else none)",
    )
    _add_option(parser, "update", "dense", "UPDATE", ", ".join(choices.UPDATES))
    _add_option(
        parser, "backend", "auto", "NAME", f"what updates rows: {', '.join(choices.BACKENDS)}"
    )
    _add_option(parser, "optimizer", "adam", "NAME", ", ".join(choices.OPTIMIZERS))
    parser.add_argument(
        "--initial-accumulator",
        type=float,
        metavar="X",
        help="where Adagrad's sums of squares start (default: Keras's 0.1)",
    )
    for name in OVERRIDES:
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=float, metavar="X", help=_HELP[name])
    _add_model_options(parser)
    _add_run_options(parser)


def _add_option(
    parser: argparse.ArgumentParser, name: str, value: int | str, like: str, text: str
) -> None:
    """An option with a default, which its help names."""
    parser.add_argument(
        f"--{name}",
        type=type(value),
        default=value,
        metavar=like,
        help=f"{text} (default: {value})",
    )


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    _add_option(parser, "epochs", 10, "N", "passes over the training rows")
    _add_option(parser, "seed", 1234, "N", "of initialisation and row order")
    _add_option(parser, "embedding-dim", 10, "N", "length of an embedding row")
    _add_option(parser, "mlp", "400,400,400", "N,N", "hidden widths")
    _add_option(parser, "continuous", "deep", "HOW", ", ".join(choices.CONTINUOUS))
    _add_option(parser, "tables", "fused", "HOW", ", ".join(choices.TABLES))
    what = f"in which hidden and cross layers compute: {', '.join(choices.PRECISIONS)}"
    _add_option(parser, "precision", "float32", "NAME", what)
    words = "let XLA compile the layers after the lookups; pays on a GPU"
    parser.add_argument("--jit-compile", action="store_true", help=words)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    steps = "steps between checkpoints, beside those after each epoch; 0: none"
    _add_option(parser, "checkpoint-every", 0, "STEPS", steps)
    looks = "steps between looks at clip and norms, for cowclip inspect; 0: none"
    _add_option(parser, "diagnostics-every", 100, "STEPS", looks)
    add_device_option(parser)
    parser.add_argument(
        "--data-memory",
        type=float,
        metavar="MB",
        help="of the device, for rows; if they need more they are streamed (default: what is free "
        "on a GPU, no limit on the CPU)",
    )
    parser.add_argument(
        "--validation-fraction",
        type=float,
        default=0.0,
        metavar="F",
        help="of the train rows: not trained on, and scored instead of the test rows; always "
        "the same rows, whatever the seed",
    )
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")


def settings_from_args(args: argparse.Namespace) -> RunSettings:
    """The settings that the arguments ask for."""
    given = {name: getattr(args, name) for name in OVERRIDES}
    settings = RunSettings(
        model=args.model,
        batch_size=args.batch_size,
        base_batch_size=args.base_batch_size,
        preset=args.preset,
        rule=args.rule,
        clip=args.clip,
        update=args.update,
        backend=args.backend,
        epochs=args.epochs,
        seed=args.seed,
        overrides={name: value for name, value in given.items() if value is not None},
        embedding_dim=args.embedding_dim,
        mlp=parse_integers("--mlp", args.mlp, like="400,400,400"),
        continuous=args.continuous,
        tables=args.tables,
        optimizer=args.optimizer,
        initial_accumulator=args.initial_accumulator,
        validation_fraction=args.validation_fraction,
        precision=args.precision,
        jit_compile=args.jit_compile,
    )
    _check_overrides_used(settings)
    return settings


def train_command(settings: RunSettings) -> str:
    """The command that trains with these settings; DATA and RUN stand for the folders.

    >>> train_command(RunSettings(model="dcn", batch_size=8, mlp=(4, 2), overrides={"l2": 0.5}))
    'cowclip train DATA --out RUN --model dcn --batch-size 8 --mlp 4,2 --l2 0.5'
    """
    usual = RunSettings(model=choices.MODELS[0], batch_size=1).as_dict() | {
        "model": "",
        "batch_size": 0,
    }
    words = ["cowclip", "train", "DATA", "--out", "RUN"]
    given = {k: v for k, v in settings.as_dict().items() if k != "overrides" and v != usual[k]}
    unused = _unused_overrides(settings)
    used = {k: v for k, v in settings.overrides.items() if k not in unused}
    for name, value in {**given, **used}.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words += [f"--{name.replace('_', '-')}"] + ([text] if value is not True else [])
    return shlex.join(words)


def _unused_overrides(settings: RunSettings) -> Mapping[str, tuple[str, ...]]:
    """Overrides that the run's clip does not use, and the clips that do."""
    known = choices.CLIPS[settings.effective_clip].settings
    names = [each.name for each in fields(ClipSettings) if each.name not in known]
    return {name: choices.clips_using(name) for name in names if name in settings.overrides}


def _check_overrides_used(settings: RunSettings) -> None:
    for name, clips in _unused_overrides(settings).items():
        raise InputError(
            f"--{name.replace('_', '-')} does nothing under the clip {settings.effective_clip}; "
            f"leave it away, or use --clip {' or '.join(clips)}"
        )


def run(args: argparse.Namespace) -> int:
    """Train; 128 + signal number after a signal, as shells count."""
    settings = settings_from_args(args)
    from cowclip_merlin.training import Stopped, train

    try:
        rows = train(
            args.data,
            settings,
            out=args.out,
            resume=args.resume,
            checkpoint_every=args.checkpoint_every,
            device=args.device,
            data_memory=args.data_memory,
            diagnostics_every=args.diagnostics_every,
        )
    except Stopped as stop:
        print(
            f"cowclip: stopped with a checkpoint in {args.out}; go on with --resume",
            file=sys.stderr,
        )
        return 128 + stop.signal_number
    last, split = rows[-1], settings.scored_split
    auc, loss = (float(last[f"{split}_{name}"]) for name in ("auc", "log_loss"))
    print(
        f"{split} AUC {auc:.5f}, log loss {loss:.5f} "
        f"after {last['epoch']} epochs; run folder {args.out}"
    )
    return 0
