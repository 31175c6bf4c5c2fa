"""`cowclip train`: train a model on a prepared folder."""

from __future__ import annotations

import argparse
import sys

from cowclip_merlin.cli.words import whole_numbers
from cowclip_merlin.scaling import PRESETS, RULES
from cowclip_merlin.training.settings import (
    BACKENDS,
    CLIPS,
    MODELS,
    OPTIMIZERS,
    OVERRIDES,
    PRECISIONS,
    UPDATES,
    RunSettings,
)

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
    "lambda_rel": "clip clippy: bound on a coordinate's move, relative to the coordinate",
    "lambda_abs": "clip clippy: what is added to that bound",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `cowclip train`."""
    parser.add_argument("data", metavar="DATA", help="folder that cowclip prepare wrote")
    parser.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    parser.add_argument("--model", required=True, metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--batch-size", type=int, required=True, metavar="N", help="rows a step")
    parser.add_argument("--base-batch-size", type=int, default=1024, metavar="N")
    parser.add_argument("--preset", metavar="NAME", help=", ".join(PRESETS))
    parser.add_argument("--rule", default="cowclip", metavar="RULE", help=", ".join(RULES))
    parser.add_argument("--clip", metavar="CLIP", help=", ".join(CLIPS))
    parser.add_argument("--update", default="dense", metavar="UPDATE", help=", ".join(UPDATES))
    parser.add_argument(
        "--backend", default="auto", metavar="NAME", help=f"what moves rows: {', '.join(BACKENDS)}"
    )
    parser.add_argument(
        "--optimizer", default="adam", metavar="NAME", help=f"{', '.join(OPTIMIZERS)}"
    )
    parser.add_argument(
        "--initial-accumulator",
        type=float,
        metavar="X",
        help="where Adagrad's sums of squares start (default: Keras's 0.1)",
    )
    for name in OVERRIDES:
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=float, metavar="X", help=_HELP[name])
    parser.add_argument("--epochs", type=int, default=10, metavar="N")
    parser.add_argument("--seed", type=int, default=1234, metavar="N")
    parser.add_argument("--embedding-dim", type=int, default=10, metavar="N")
    parser.add_argument("--mlp", default="400,400,400", metavar="N,N", help="hidden widths")
    parser.add_argument("--continuous", default="deep", metavar="HOW", help="deep, all")
    parser.add_argument("--tables", default="fused", metavar="HOW", help="fused, per_field")
    parser.add_argument(
        "--precision",
        default="float32",
        metavar="NAME",
        help=f"in which hidden and cross layers compute: {', '.join(PRECISIONS)}",
    )
    parser.add_argument("--checkpoint-every", type=int, default=0, metavar="STEPS")
    parser.add_argument(
        "--diagnostics-every",
        type=int,
        default=100,
        metavar="STEPS",
        help="steps between looks at clip and norms, for cowclip inspect; 0: none (default: 100)",
    )
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "gpu"))
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


def settings_of(args: argparse.Namespace) -> RunSettings:
    """The settings that the arguments ask for."""
    given = {name: getattr(args, name) for name in OVERRIDES}
    return RunSettings(
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
        mlp=whole_numbers("--mlp", args.mlp, like="400,400,400"),
        continuous=args.continuous,
        tables=args.tables,
        optimizer=args.optimizer,
        initial_accumulator=args.initial_accumulator,
        validation_fraction=args.validation_fraction,
        precision=args.precision,
    )


def run(args: argparse.Namespace) -> int:
    """Train; 128 + signal number after a signal, as shells count."""
    settings = settings_of(args)
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
