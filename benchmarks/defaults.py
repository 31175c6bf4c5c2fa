"""Compare test AUC and log loss with other packages, each with its own defaults.

All read the ids, numbers and the split of a folder of `cowclip prepare`, and are scored here, on
its test rows. The contestants:

cowclip           what `cowclip train` and `cowclip fit` train without options
lightgbm          LightGBM's classifier, 100 trees, with ids as categories
lightgbm-stopped  the same with early stopping: up to 10,000 trees, patience 50
lightgbm-te       the same with rate 0.05; ids as their click rate out of fold, and their count
logistic          logistic regression of scikit-learn on ids and pairs of ids, 2^22 hash values
logistic-ids      the same on ids alone, without a hash
vowpal-wabbit     with pairs, by Vowpal Wabbit, in one pass: -q :: -b 22
fuxictr           FuxiCTR's DeepFM with the values of its model zoo (DeepFM_default)

lightgbm-stopped, lightgbm-te and fuxictr hold out a tenth of the training rows. Seconds are those
of training and scoring, with reading and packing of the rows. `--epochs` bounds those of fuxictr.
On a busy machine, OMP_WAIT_POLICY=PASSIVE in the environment keeps waiting threads from spinning.

All after cowclip run in an environment of their own:

    python3.11 -m venv others
    others/bin/pip install fuxictr==2.3.10 torch==2.13.0 lightgbm==4.7.0 scikit-learn==1.9.1 \\
        vowpalwabbit==9.11.9 'polars<2'

and then --python others/bin/python.
"""

from __future__ import annotations

import shutil
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from contestants.rows import Log, write_rows
from contestants.with_defaults import CONTESTANTS as OTHERS
from cowclip_merlin import log_loss, roc_auc
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import read_columns
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.types import JsonObject
from cowclip_merlin.workflows import PreparedData
from harness import Benchmark, answer_of, markdown, program

OURS = "cowclip"
CONTESTANTS = (OURS, *OTHERS)
ALIKE = ("lightgbm", "logistic", "logistic-ids")
"""Contestants whose result does not depend on the seed: they run once."""


@dataclass(frozen=True, kw_only=True)
class DefaultsSettings(Settings):
    """What is compared."""

    data: Path = option(help="folder that cowclip prepare wrote", metavar="DATA")
    contestants: tuple[str, ...] = option(
        CONTESTANTS, "some of these", metavar="A,B,C", choices=CONTESTANTS, unique=True
    )
    seeds: int = option(3, "runs of each contestant whose result they change", at_least=1)
    epochs: int = option(100, "largest number of epochs of fuxictr", at_least=1)
    python: str = option("python3", "of the environment with the other packages")
    work: Path = option(Path("work/defaults"), "folder of rows, predictions, runs and logs")

    def __post_init__(self) -> None:
        """Refuse what cannot be compared."""
        super().__post_init__()
        if {*self.contestants} - {OURS}:
            program("--python", self.python)


def compare(settings: DefaultsSettings) -> JsonObject:
    """Train each contestant with each seed; return a result for JSON."""
    data = PreparedData.load(settings.data)
    log = _read(data)
    settings.work.mkdir(parents=True, exist_ok=True)
    write_rows(log, settings.work / "rows.npz")
    results, versions = [], {}
    for name in settings.contestants:
        for seed in range(1, 2 if name in ALIKE else settings.seeds + 1):
            started = time.perf_counter()
            if name == OURS:
                found = train_ours(data, settings, seed)
            else:
                found, known = train_other(name, settings, seed)
                versions |= known
            results.append(
                {
                    "contestant": name,
                    "seed": seed,
                    "auc": round(roc_auc(log.test.label, found), 5),
                    "log_loss": round(log_loss(log.test.label, found), 5),
                    "seconds": round(time.perf_counter() - started, 1),
                }
            )
    return {
        "what": "test AUC and log loss of this project and others, each with its defaults",
        "log": settings.data.name,
        "rows": data.rows,
        "most_epochs_of_fuxictr": settings.epochs,
        "results": results,
        "versions": versions,
    }


def _read(data: PreparedData) -> Log:
    log_format = data.log_format
    if log_format.multi or log_format.weight or log_format.vectors or len(data.targets) > 1:
        raise InputError(
            f"{data.path}: has lists, vectors, weights or several labels, which not all of the "
            "contestants read; prepare it without them"
        )
    train, test = (read_columns(data, split) for split in ("train", "test"))
    return Log(fields=data.cardinalities, train=train, test=test)


def train_ours(data: PreparedData, settings: DefaultsSettings, seed: int) -> np.ndarray:
    """Train as `cowclip train` does; return the probabilities of the test rows."""
    import pandas as pd

    from cowclip_merlin.recipe import settings_for
    from cowclip_merlin.training import evaluate_run, train

    run, scores = settings.work / f"cowclip-{seed}", settings.work / f"cowclip-{seed}.parquet"
    shutil.rmtree(run, ignore_errors=True)
    scores.unlink(missing_ok=True)
    train(data.path, settings_for(data, seed=seed), out=run)
    evaluate_run(run, data.path, predictions=scores)
    return pd.read_parquet(scores)["probability"].to_numpy()


def train_other(
    name: str, settings: DefaultsSettings, seed: int
) -> tuple[np.ndarray, dict[str, str]]:
    """Train in the other environment; return the probabilities and the package's version."""
    scores = (settings.work / f"{name}-{seed}.npy").absolute()
    words = (name, (settings.work / "rows.npz").absolute(), scores, seed, settings.epochs)
    python, log = program("--python", settings.python), scores.with_suffix(".log")
    versions = answer_of(name, python, "with_defaults", *words, log=log)
    return np.load(scores), versions


def text(result: JsonObject) -> str:
    """Format the result as Markdown: the mean of the seeds, and the AUC's standard deviation."""
    rows = []
    for name in dict.fromkeys(row["contestant"] for row in result["results"]):
        mine = [row for row in result["results"] if row["contestant"] == name]
        loss, seconds = (statistics.mean(r[key] for r in mine) for key in ("log_loss", "seconds"))
        rows.append((name, auc_text(mine), f"{loss:.4f}", f"{seconds:.0f}"))
    return markdown(("contestant", "AUC, %", "log loss", "seconds"), "lrrr", rows)


def auc_text(rows: list[JsonObject]) -> str:
    """The mean AUC of these runs in %, and its standard deviation if there are several.

    >>> auc_text([{"auc": 0.75}, {"auc": 0.77}]), auc_text([{"auc": 0.8}])
    ('76.00 ±1.41', '80.00')
    """
    aucs = [100 * row["auc"] for row in rows]
    spread = f" ±{statistics.stdev(aucs):.2f}" if len(aucs) > 1 else ""
    return f"{statistics.mean(aucs):.2f}{spread}"


BENCHMARK = Benchmark(about=__doc__, settings=DefaultsSettings, measure=compare, text=text)

if __name__ == "__main__":
    BENCHMARK.main()
