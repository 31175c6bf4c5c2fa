"""What `torch_deepfm.py` and `keras3_deepfm.py` share: sizes, rows, options, and a line of text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from cowclip_merlin import Hyperparameters, InputError, log_loss, roc_auc, scale
from cowclip_merlin.choices import UPDATES
from cowclip_merlin.errors import exit_code
from cowclip_merlin.loading import ColumnArrays, open_columns
from cowclip_merlin.scaling import RULES
from cowclip_merlin.targets import only_clicks
from cowclip_merlin.workflows import PreparedData

DIM, HIDDEN, SCORED_AT_ONCE = 10, (400, 400, 400), 8192


def open_folder(path: Path) -> tuple[list[int], ColumnArrays, ColumnArrays]:
    """Open a prepared folder: rows of the table of each field, then train and test rows.

    Raises:
        InputError: the folder is none, or has columns that these models do not read.
    """
    data = PreparedData.load(path)
    log = data.log_format
    if log.multi or log.weight or log.vectors or not only_clicks(data.targets):
        raise InputError(
            f"{path}: has lists, vectors, weights, or other labels than one of clicks; this "
            "example reads none of them, so prepare the log without"
        )
    train, test = (open_columns(data, split) for split in ("train", "test"))
    return list(data.cardinalities.values()), train, test


def print_epoch(epoch: int, loss: float, label: np.ndarray, logits: np.ndarray) -> None:
    """Print the mean loss of the training rows, and the metrics of the test rows, [n]."""
    found = 1 / (1 + np.exp(-logits.astype(np.float64)))
    print(
        f"epoch {epoch}: train loss {loss:.5f}, test AUC {roc_auc(label, found):.5f}, "
        f"log loss {log_loss(label, found):.5f}",
        flush=True,
    )


def main(program: str, about: str, train: Callable[..., None], argv: Sequence[str] | None) -> int:
    """Parse the options and train; return 2 if the input is wrong.

    Args:
        program: name of the script.
        about: what it does.
        train: `train(path, values, epochs=..., update=..., seed=...)`.
        argv: the arguments; None: of the process.
    """
    parser = argparse.ArgumentParser(prog=program, description=about)
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of cowclip prepare")
    parser.add_argument("--batch-size", type=int, default=1024, metavar="N")
    parser.add_argument("--epochs", type=int, default=3, metavar="N")
    parser.add_argument("--rule", choices=tuple(RULES), default="sde", help="default: %(default)s")
    parser.add_argument("--lr", type=float, default=1e-3, metavar="X", help="both rates")
    parser.add_argument("--l2", type=float, default=1e-5, metavar="X", help="of the tables")
    parser.add_argument("--update", choices=UPDATES, default="exact")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    args = parser.parse_args(argv)

    def run() -> None:
        if args.epochs < 1:
            raise InputError(f"--epochs {args.epochs}: give 1 or more")
        small = Hyperparameters(batch_size=1024, embedding_lr=args.lr, dense_lr=args.lr, l2=args.l2)
        values = scale(small, to=args.batch_size, rule=args.rule)
        train(args.data, values, epochs=args.epochs, update=args.update, seed=args.seed)

    return exit_code(program, run)
