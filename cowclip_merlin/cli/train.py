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

The rates that you give (or the preset's) hold at the base batch size. The rule scales them to the
batch size, and the run prints the scaled values. Ctrl-C writes a checkpoint and stops."""

_HELP = {
    "embedding_lr": "learning rate of the embedding tables at the base batch size",
    "dense_lr": "learning rate of the other weights at the base batch size",
    "l2": "L2 regularization of the embedding tables at the base batch size",
    "r": "clip threshold relative to a row's norm",
    "zeta": "lower bound of a row's norm, per coordinate",
    "init_std": "standard deviation of the tables' initial values",
    "warmup_epochs": "epochs over which the dense learning rate rises from 0",
    "bound": "threshold of the constant clips at the base batch size",
    "lambda_rel": "bound on the change of a coordinate, relative to the coordinate",
    "lambda_abs": "constant that is added to that bound",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cowclip train`."""
    parser.add_argument("data", metavar="DATA", help="folder that cowclip prepare wrote")
    parser.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    parser.add_argument("--model", required=True, metavar="NAME", help=", ".join(choices.MODELS))
    parser.add_argument("--batch-size", type=int, required=True, metavar="N", help="rows per step")
    _add_option(parser, "base-batch-size", 1024, "N", "batch size of the rates below")
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help=f"values for rates not given: {', '.join(PRESETS)} (default: the data's kind; "
        "criteo for a table)",
    )
    _add_option(parser, "rule", "cowclip", "RULE", ", ".join(RULES))
    parser.add_argument(
        "--clip",
        metavar="CLIP",
        help=", ".join(choices.CLIPS) + " (default: cowclip with the rule cowclip, else none)",
    )
    _add_option(parser, "update", "dense", "UPDATE", ", ".join(choices.UPDATES))
    _add_option(
        parser, "backend", "auto", "NAME", f"code that updates rows: {', '.join(choices.BACKENDS)}"
    )
    _add_option(parser, "optimizer", "adam", "NAME", ", ".join(choices.OPTIMIZERS))
    parser.add_argument(
        "--initial-accumulator",
        type=float,
        metavar="X",
        help="initial value of Adagrad's accumulators (default: Keras's 0.1)",
    )
    for name in OVERRIDES:
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=float, metavar="X", help=_HELP[name])
    _add_model_options(parser)
    _add_run_options(parser)


def _add_option(
    parser: argparse.ArgumentParser, name: str, value: int | str, like: str, text: str
) -> None:
    """Add an option and show its default in the help."""
    parser.add_argument(
        f"--{name}",
        type=type(value),
        default=value,
        metavar=like,
        help=f"{text} (default: {value})",
    )


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    _add_option(parser, "epochs", 10, "N", "passes over the training rows")
    _add_option(parser, "seed", 1234, "N", "seed of initial weights and row order")
    _add_option(parser, "embedding-dim", 10, "N", "length of an embedding row")
    _add_option(parser, "mlp", "400,400,400", "N,N", "hidden widths")
    _add_option(parser, "continuous", "deep", "HOW", ", ".join(choices.CONTINUOUS))
    _add_option(parser, "tables", "fused", "HOW", ", ".join(choices.RUN_TABLES))
    precision = f"precision of hidden and cross layers: {', '.join(choices.PRECISIONS)}"
    _add_option(parser, "precision", "float32", "NAME", precision)
    text = "compile the layers after the lookups with XLA; faster on a GPU"
    parser.add_argument("--jit-compile", action="store_true", help=text)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    checkpoints = "steps between checkpoints within an epoch; 0: only after each epoch"
    _add_option(parser, "checkpoint-every", 0, "STEPS", checkpoints)
    probes = "steps between records of clip and norms for cowclip inspect; 0: no records"
    _add_option(parser, "diagnostics-every", 100, "STEPS", probes)
    add_device_option(parser)
    parser.add_argument(
        "--data-memory",
        type=float,
        metavar="MB",
        help="device memory for rows; larger data is streamed (default: the free memory of a GPU, "
        "no limit on the CPU)",
    )
    parser.add_argument(
        "--validation-fraction",
        type=float,
        default=0.0,
        metavar="F",
        help="fraction of the train rows to hold out and score instead of the test rows; the same "
        "rows for every seed",
    )
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint")


def settings_from_args(args: argparse.Namespace) -> RunSettings:
    """Build the run's settings from the arguments."""
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
    """Return the command that trains with these settings; DATA and RUN stand for the folders.

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
    """Map each override that the run's clip does not use to the clips that do."""
    known = choices.CLIPS[settings.effective_clip].settings
    names = [each.name for each in fields(ClipSettings) if each.name not in known]
    return {name: choices.clips_using(name) for name in names if name in settings.overrides}


def _check_overrides_used(settings: RunSettings) -> None:
    for name, clips in _unused_overrides(settings).items():
        raise InputError(
            f"--{name.replace('_', '-')} has no effect with the clip {settings.effective_clip}; "
            f"remove it, or use --clip {' or '.join(clips)}"
        )


def run(args: argparse.Namespace) -> int:
    """Train; return 128 + the signal's number after a signal, as shells do."""
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
            f"cowclip: stopped with a checkpoint in {args.out}; resume with --resume",
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
