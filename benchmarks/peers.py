"""Compare this project with others that train the same model: rows per second and test AUC.

    python benchmarks/peers.py [--rows 450000] [--ids 220000] [--batches 1024,8192,65536]
        [--epochs 1] [--rounds 5] [--lr 0.001] [--rule sqrt] [--contestants A,B,C]
        [--deepctr-python PYTHON] [--fuxictr-python PYTHON]
        [--authors CHECKOUT --authors-python PYTHON] [--hugectr-python PYTHON]
        [--work DIR] [--device auto|cpu|gpu] [--json FILE] [--overwrite]

They train a DeepFM (embeddings of 10, MLP 400-400-400, no dropout) on the same generated rows, with
the same batches and epochs. Each contestant has one turn in every round. The contestants:

bare-mlp         only the arithmetic of the MLP, on constant input: the reference
cowclip UPDATE   this project's training step, with hidden layers in float32 or the named precision
keras-adam       this project's model with plain Keras Adam: no clip, no penalty
deepctr          DeepCTR's DeepFM, Keras Adam, `model.fit`
fuxictr          DeepFM of FuxiCTR's layers, its own data loader and training step
fuxictr-memory   the same, with batches sliced from tensors in memory
authors          the paper's authors' code: their model and CowClip, `model.fit`
hugectr          HugeCTR's DeepFM, Adam on the rows of the batch; has never run, needs a GPU
hugectr-global   the same, with Adam on all rows at every step
hugectr-wide-and-deep, hugectr-dcn
                 HugeCTR's W&D and DCN, which are not compared with our DeepFM

The clock starts after two steps, when everything is compiled. The learning rate `--lr` is that of
batch 1024. For other batches, CowClip scales it by its own rule, the others by `--rule`. The AUC is
computed here, from each contestant's predictions for the held-out tenth of the rows. After some
hundred steps it shows whether all learned the same, so large batches need more --rows or --epochs.
The initial MLP differs: this project uses He initialization, the packages Glorot.

Run it on an idle machine; "rounds" and "load_before" in the JSON show whether it was idle. Busy
cores slow Torch most, because its waiting threads spin. On a busy machine,
OMP_WAIT_POLICY=PASSIVE in the environment made FuxiCTR three times as fast.

All after keras-adam need packages that conflict with this project's, so each has its own
environment and runs in its own process. These versions were tested:

    python3.10 -m venv deepctr
    deepctr/bin/pip install deepctr==0.9.4 tensorflow-cpu==2.12.1 numpy==1.23.5
    python3.11 -m venv fuxictr
    fuxictr/bin/pip install fuxictr==2.3.10 torch==2.13.0
    git clone https://github.com/bytedance/LargeBatchCTR
    python3.8 -m venv authors
    authors/bin/pip install tensorflow-cpu==2.4.4 tensorflow-addons==0.12.1 numpy==1.19.5 \\
        protobuf==3.19.6 pandas==1.3.5 scikit-learn==1.0.2

and then --deepctr-python deepctr/bin/python, and so on. On a machine with a GPU, install
`tensorflow` instead of `tensorflow-cpu` and a torch for CUDA. HugeCTR is only in NVIDIA's images
merlin-hugectr:23.12 and 24.06: install this project there in an environment of its own, and give
--hugectr-python /usr/bin/python3.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

import cowclip_merlin as cc
from contestants import cowclip
from contestants.job import Job
from contestants.rows import Log, generate, write_hugectr_folder, write_rows
from contestants.settings import (
    KINDS,
    OTHER_MODELS,
    OURS,
    PEERS,
    REFERENCE,
    YARDSTICK,
    PeerSettings,
    make_job,
)
from cowclip_merlin import compat
from cowclip_merlin.types import Array, JsonObject
from harness.benchmark import Benchmark
from harness.rounds import in_turn, ratios

Key = tuple[int, str]  # batch, contestant


def run_peer(name: str, settings: PeerSettings, job: Job) -> JsonObject:
    """Train once in a separate process; return rows per second and versions, or the error."""
    try:
        done = _run_module(name, settings, job)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"status": f"failed: {error}"[:200]}
    job.predictions.with_suffix(".log").write_text(done.stdout + done.stderr)
    said = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not said:
        last = (done.stderr.strip().splitlines() or ["it printed no error"])[-1]
        return {"status": f"failed: {last}"[:200]}
    return json.loads(said[-1])


def _run_module(name: str, settings: PeerSettings, job: Job) -> subprocess.CompletedProcess:
    kind, *options = PEERS[name]
    if kind == "authors":
        options.append(f"--checkout={Path(settings.checkout or '').absolute()}")
    # Run it as a module: as a file, deepctr.py would hide the package deepctr in sys.path.
    # Keep symbolic links in the path, because they select the environment of a Python.
    python = Path(shutil.which(settings.pythons[kind]) or settings.pythons[kind]).absolute()
    # This process keeps some GPU memory, so TensorFlow must not allocate all of it.
    environment = os.environ | {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.run(
        [str(python), "-m", f"contestants.{kind}", *options, *job.arguments()],
        capture_output=True,
        text=True,
        timeout=settings.timeout,
        env=environment,
        cwd=Path(__file__).parent,
    )


def turn(name: str, settings: PeerSettings, log: Log, batch: int) -> JsonObject:
    """Run one contestant's turn; return rows per second and AUC, or a status."""
    missing = settings.missing(name)
    if missing:
        return {"status": missing}
    job = make_job(name, settings, batch)
    if name in OURS:
        rate, probabilities = cowclip.run(name, log, job)
        return {"rows_per_second": rate, "auc": _auc(log, probabilities)}
    said = run_peer(name, settings, job)
    return said if "status" in said else said | {"auc": _auc(log, np.load(job.predictions))}


def _auc(log: Log, probabilities: Array | None) -> float | None:
    if probabilities is None or not np.isfinite(probabilities).all():
        return None
    return cc.roc_auc(log.test.label, probabilities)


def compare(settings: PeerSettings) -> JsonObject:
    """Run every contestant in turn, round by round; return a result for JSON."""
    # TensorFlow warns about every rebuilt model, and every round rebuilds the models.
    compat.tensorflow().get_logger().setLevel("ERROR")
    settings.work.mkdir(parents=True, exist_ok=True)
    log = generate(
        rows=settings.rows,
        held_out=settings.held_out,
        ids=settings.ids,
        seed=settings.seed,
    )
    write_rows(log, settings.work / "rows.npz")
    if settings.runs_hugectr:
        write_hugectr_folder(log, settings.work / "hugectr")
    cases = {
        (batch, name): partial(turn, name, settings, log, batch)
        for batch in settings.batches
        for name in settings.contestants
    }
    turns = in_turn(cases, settings.rounds, progress=True)
    return {
        "what": "rows per second of training and test AUC, this project and others",
        "settings": _shown(settings),
        "click_rate": round(float(log.train.label.mean()), 4),
        "results": [_result(key, turns) for key in cases],
    }


def _shown(settings: PeerSettings) -> JsonObject:
    """Return the settings without the paths of this machine."""
    private = ("work", "pythons", "checkout", "timeout")
    return {name: value for name, value in asdict(settings).items() if name not in private}


def _result(key: Key, turns: Mapping[Key, list[JsonObject]]) -> JsonObject:
    batch, name = key
    bad = [one["status"] for one in turns[key] if "status" in one]
    if bad:
        return {"contestant": name, "batch": batch, "status": bad[0]}
    speeds = _speeds(turns[key])
    aucs = [one["auc"] for one in turns[key] if one["auc"] is not None]
    ours = None if name in OTHER_MODELS else turns.get((batch, REFERENCE))
    return {
        "contestant": name,
        "batch": batch,
        "rows_per_second": round(statistics.median(speeds), 1),
        "rounds": [round(speed, 1) for speed in speeds],
        "auc": round(statistics.median(aucs), 5) if aucs else None,
        "ratio_to_bare_mlp": _ratio(speeds, turns.get((batch, YARDSTICK))),
        "ratio_to_cowclip": _ratio(speeds, ours),
        "versions": turns[key][0].get("versions"),
    }


def _speeds(turns: list[JsonObject]) -> list[float]:
    return [one["rows_per_second"] for one in turns]


def _ratio(speeds: list[float], others: list[JsonObject] | None) -> float | None:
    """Return the median of the ratios of each round."""
    if not others:
        return None
    return round(statistics.median(ratios(speeds, _speeds(others))), 3)


def table(result: JsonObject) -> str:
    """Format the result as text."""
    of = ("of bare MLP", f"of {REFERENCE}")
    return "\n".join(
        [
            f"{'contestant':<16}{'batch':>8}{'rows/s':>11}{of[0]:>13}{of[1]:>17}{'AUC':>9}",
            *_lines(result["results"]),
        ]
    )


def _lines(results: list[JsonObject]) -> Iterator[str]:
    for row in results:
        start = f"{row['contestant']:<16}{row['batch']:>8}"
        if "status" in row:
            yield f"{start}  {row['status']}"
            continue
        shares = (row["ratio_to_bare_mlp"], row["ratio_to_cowclip"])
        mlp, ours = ("-" if share is None else f"{share:.3f}" for share in shares)
        auc = "-" if row["auc"] is None else f"{row['auc']:.4f}"
        yield f"{start}{row['rows_per_second']:>11,.0f}{mlp:>13}{ours:>17}{auc:>9}"


def _add_pythons(parser: argparse.ArgumentParser) -> None:
    for kind in KINDS:
        what = f"of the environment with {kind}'s packages"
        parser.add_argument(f"--{kind}-python", metavar="PYTHON", help=what)


def _read_pythons(args: argparse.Namespace) -> JsonObject:
    pythons = {kind: getattr(args, f"{kind}_python") for kind in KINDS}
    return {"pythons": {kind: python for kind, python in pythons.items() if python is not None}}


BENCHMARK = Benchmark(
    script=__file__,
    about=__doc__,
    settings=PeerSettings,
    measure=compare,
    text=table,
    add_options=_add_pythons,
    read_options=_read_pythons,
)

if __name__ == "__main__":
    BENCHMARK.main()
