"""Compare this project with others that train the same model: rows per second and test AUC.

They train a DeepFM (embeddings of 10, MLP 400-400-400, no dropout) for an epoch on the same
generated rows, with the same batches. Each has one turn in every round. The contestants:

bare-mlp         only the arithmetic of the MLP, on constant input: the reference
cowclip UPDATE   this project's training step, with hidden layers in float32 or the named precision
keras-adam       this project's model with plain Keras Adam: no clip, no penalty
deepctr          DeepCTR's DeepFM, Keras Adam, `model.fit`
fuxictr          DeepFM of FuxiCTR's layers, its own data loader and training step
fuxictr-memory   the same, with batches sliced from tensors in memory
authors          the paper's authors' code: their model and CowClip, `model.fit`
hugectr          HugeCTR's DeepFM, Adam on the rows of the batch; has never run, needs a GPU
hugectr-global   the same, with Adam on all rows at every step

The clock starts after two steps, when everything is compiled. The learning rate is 0.001 at batch
1024. For other batches, CowClip scales it by its own rule, the others by the square root. The AUC
is computed here, from each contestant's predictions for the held-out tenth of the rows. After some
hundred steps it shows whether all learned the same, so large batches need more --rows. The initial
MLP differs: this project uses He initialization, the packages Glorot.

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

and then --authors LargeBatchCTR --python deepctr=deepctr/bin/python,fuxictr=fuxictr/bin/python, and
so on. On a machine with a GPU, install `tensorflow` instead of `tensorflow-cpu` and a torch for
CUDA. HugeCTR is only in NVIDIA's images merlin-hugectr:23.12 and 24.06: install this project there
in an environment of its own, and give --python hugectr=/usr/bin/python3.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from contestants import ours
from contestants.job import WARM_UP_STEPS, Job
from contestants.rows import Log, generate, write_hugectr_folder, write_rows
from cowclip_merlin import choices, compat, roc_auc
from cowclip_merlin.bench.settings import vocabulary_option
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import steps_per_epoch
from cowclip_merlin.scaling import RULES, rebase, scale
from cowclip_merlin.settings import Settings, device_option, option
from cowclip_merlin.types import JsonObject
from harness import (
    Benchmark,
    answer_of,
    environment,
    environment_option,
    environments,
    in_turn,
    markdown,
    ratios,
)

BASE_BATCH, RATE, WARMUP_EPOCHS, SEED = 1024, 1e-3, 0.1, 1234
YARDSTICK, REFERENCE = "bare-mlp", "cowclip lazy"
OURS = (
    YARDSTICK,
    *(f"cowclip {update}" for update in choices.UPDATES),
    "cowclip exact bfloat16",
    "keras-adam",
)
# Name -> module of `contestants` that runs it, and its arguments. The name up to a hyphen is the
# environment.
PEERS: Mapping[str, tuple[str, ...]] = {
    "deepctr": ("on_keras", "deepctr"),
    "fuxictr": ("fuxictr", "fuxictr"),
    "fuxictr-memory": ("fuxictr", "memory"),
    "authors": ("on_keras", "authors"),
    "hugectr": ("hugectr", "Local"),
    "hugectr-global": ("hugectr", "Global"),
}
CONTESTANTS = (*OURS, *PEERS)
Key = tuple[int, str]  # batch, contestant


@dataclass(frozen=True, kw_only=True)
class PeerSettings(Settings):
    """What is compared."""

    work: Path = option(Path("work/peers"), "folder of rows, predictions and the peers' logs")
    rows: int = option(450_000, "generated; a tenth is held out", at_least=100)
    ids: int = vocabulary_option(220_000, "of all fields together")
    batches: tuple[int, ...] = option((1024, 8192, 65536), "rows per step", at_least=1, unique=True)
    rounds: int = option(5, "turns of every contestant at every batch", at_least=1)
    contestants: tuple[str, ...] = option(
        CONTESTANTS, "some of these", metavar="A,B,C", choices=CONTESTANTS, unique=True
    )
    python: tuple[str, ...] = environment_option(PEERS)
    checkout: Path | None = option(
        None, "folder of the authors' code", flag="--authors", kind=Path, metavar="CHECKOUT"
    )
    device: str = device_option()
    mlp: tuple[int, ...] = (400, 400, 400)

    def __post_init__(self) -> None:
        """Check each value, the number of steps, and the other packages' programs."""
        super().__post_init__()
        for batch in self.batches:
            if steps_per_epoch(self.rows - self.rows // 10, batch) <= WARM_UP_STEPS:
                raise InputError(
                    f"--batches {batch}: no step is left to measure after the first "
                    f"{WARM_UP_STEPS}; give more --rows"
                )
        _ = self.pythons
        if self.checkout is not None and not (self.checkout / "train.py").is_file():
            raise InputError(
                f"--authors {self.checkout}: has no train.py; give a checkout of LargeBatchCTR"
            )

    @property
    def pythons(self) -> Mapping[str, Path]:
        """Environment of a peer -> its interpreter."""
        return environments(self.python, PEERS)

    @property
    def runs_hugectr(self) -> bool:
        """Whether a contestant needs the rows as a folder for HugeCTR."""
        return "hugectr" in self.pythons and "hugectr" in map(environment, self.contestants)

    def missing(self, name: str) -> str | None:
        """Return which required options a contestant lacks; None if it can run."""
        if name not in PEERS:
            return None
        needed = [] if environment(name) in self.pythons else [f"--python {environment(name)}=PATH"]
        needed += ["--authors"] if name == "authors" and self.checkout is None else []
        return f"not run: give {' and '.join(needed)}" if needed else None


def make_job(name: str, settings: PeerSettings, batch: int) -> Job:
    """Make the job of one contestant at one batch size."""
    values = {"embedding_lr": RATE, "dense_lr": RATE, "warmup_epochs": WARMUP_EPOCHS}
    scaled = scale(rebase("criteo", batch_size=BASE_BATCH, values=values), to=batch)
    plain = RATE * RULES["sqrt"](batch / BASE_BATCH).dense_lr
    clipped = name.startswith("cowclip") or name == "authors"
    work, hugectr = settings.work.absolute(), name.startswith("hugectr")
    return Job(
        rows_file=work / ("hugectr" if hugectr else "rows.npz"),
        predictions=work / f"{name.replace(' ', '-')}.npy",
        batch=batch,
        epochs=1,
        lr=scaled.dense_lr if clipped else plain,
        embedding_lr=scaled.embedding_lr,
        l2=scaled.l2,
        r=scaled.r,
        zeta=scaled.zeta,
        warmup_epochs=scaled.warmup_epochs,
        init_std=scaled.init_std,
        embedding_dim=10,
        widths=settings.mlp,
        seed=SEED,
    )


def run_peer(name: str, settings: PeerSettings, job: Job) -> JsonObject:
    """Train once in a separate process; return rows per second and versions, or the error."""
    module, *options = PEERS[name]
    if name == "authors":
        options.append(str(settings.checkout.absolute()))
    python = settings.pythons[environment(name)]
    given = {"log": job.predictions.with_suffix(".log"), "timeout": 3600.0}
    try:
        return answer_of(name, python, module, *options, job.text(), **given)
    except (OSError, subprocess.TimeoutExpired, InputError) as error:
        return {"status": f"failed: {error}".replace(f": {name} failed", "", 1)[:200]}


def turn(name: str, settings: PeerSettings, log: Log, batch: int) -> JsonObject:
    """Run one contestant's turn; return rows per second and AUC, or a status."""
    if missing := settings.missing(name):
        return {"status": missing}
    job = make_job(name, settings, batch)
    if name in OURS:
        rate, scores = ours.run(name, log, job)
        found = {"rows_per_second": rate}
    else:
        found = run_peer(name, settings, job)
        scores = None if "status" in found else np.load(job.predictions)
    known = scores is not None and np.isfinite(scores).all()
    return {"auc": roc_auc(log.test.label, scores) if known else None} | found


def compare(settings: PeerSettings) -> JsonObject:
    """Run every contestant in turn, round by round; return a result for JSON."""
    # TensorFlow warns about every rebuilt model, and every round rebuilds the models.
    compat.tensorflow().get_logger().setLevel("ERROR")
    settings.work.mkdir(parents=True, exist_ok=True)
    rows = settings.rows
    log = generate(rows=rows, held_out=rows // 10, ids=settings.ids, seed=SEED)
    write_rows(log, settings.work / "rows.npz")
    if settings.runs_hugectr:
        write_hugectr_folder(log, settings.work / "hugectr")
    cases = {
        (batch, name): partial(turn, name, settings, log, batch)
        for batch in settings.batches
        for name in settings.contestants
    }
    turns = in_turn(cases, settings.rounds)
    shown = ("rows", "ids", "batches", "rounds", "contestants", "mlp")
    return {
        "what": "rows per second of training and test AUC, this project and others",
        "settings": {name: value for name, value in asdict(settings).items() if name in shown},
        "click_rate": round(float(log.train.label.mean()), 4),
        "results": [result_of(key, turns) for key in cases],
    }


def result_of(key: Key, turns: Mapping[Key, list[JsonObject]]) -> JsonObject:
    """Return the medians of a contestant at a batch size, and its ratios to others."""
    batch, name = key
    bad = [one["status"] for one in turns[key] if "status" in one]
    if bad:
        return {"contestant": name, "batch": batch, "status": bad[0]}
    speeds = [one["rows_per_second"] for one in turns[key]]
    aucs = [one["auc"] for one in turns[key] if one["auc"] is not None]

    def ratio(other: str) -> float | None:
        others = [one["rows_per_second"] for one in turns.get((batch, other), ())]
        return round(statistics.median(ratios(speeds, others)), 3) if others else None

    return {
        "contestant": name,
        "batch": batch,
        "rows_per_second": round(statistics.median(speeds), 1),
        "rounds": [round(speed, 1) for speed in speeds],
        "auc": round(statistics.median(aucs), 5) if aucs else None,
        "ratio_to_bare_mlp": ratio(YARDSTICK),
        "ratio_to_cowclip": ratio(REFERENCE),
        "versions": turns[key][0].get("versions"),
    }


def text(result: JsonObject) -> str:
    """Format the result as Markdown; what did not run has its reason at the end."""
    rows = []
    for row in result["results"]:
        cells = [row["contestant"], f"{row['batch']:,}"]
        if "status" in row:
            rows.append([*cells, *[""] * 4, row["status"]])
            continue
        shares = (row["ratio_to_bare_mlp"], row["ratio_to_cowclip"])
        cells += [f"{row['rows_per_second']:,.0f}"]
        cells += ["-" if share is None else f"{share:.3f}" for share in shares]
        rows.append([*cells, "-" if row["auc"] is None else f"{row['auc']:.4f}", ""])
    head = ("contestant", "batch", "rows/s", "of bare MLP", f"of {REFERENCE}", "AUC", "")
    return markdown(head, "lrrrrrl", rows)


BENCHMARK = Benchmark(about=__doc__, settings=PeerSettings, measure=compare, text=text)

if __name__ == "__main__":
    BENCHMARK.main()
