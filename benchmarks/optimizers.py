"""Time the step of optimizers, by the number of ids: those of this project and others.

All train one embedding table, 26 columns with d = 10, and a linear layer, on the same skewed ids:
so nearly all of a step is the lookup, its gradient, and the optimizer. Each has one turn in every
round, in a process of its own. A turn makes some steps after warm-up.

torch-exact, -lazy, -dense   cowclip_merlin.torch.CowClip
torch-sparse-adam            torch.optim.SparseAdam, the rows of the batch, without L2
torch-adam, -adam-fused      torch.optim.Adam with weight_decay, all rows
fbgemm-rowwise-adagrad       FBGEMM's table, which has no Adam on a CPU, and rows of 12 numbers
keras3-exact, keras2-exact   our optimizers for Keras 3 and Keras 2
keras3-adam, keras2-adam     Keras's Adam, all rows, without L2

`flush` is what exact postpones, per missed step, for all rows: at the latest the end of an epoch
pays it. In a long training a row pays less, because the steps that it misses soon change nothing.

The environments: `make current-check` makes that of torch and keras3, `.venv-current`; fbgemm needs
such a one with the wheel `fbgemm-gpu-cpu` (1.9 goes with PyTorch 2.14). Give them as

    --python torch=.venv-current/bin/python,keras3=.venv-current/bin/python,fbgemm=...

All run with OMP_WAIT_POLICY=PASSIVE, without which threads of PyTorch spin where others work.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from contestants.optimizers import COLUMNS, CONTESTANTS
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.types import JsonObject
from harness import (
    Benchmark,
    answer_of,
    environment,
    environment_option,
    environments,
    in_turn,
    markdown,
)

HERE = "keras2"
"""The environment of this process."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(Settings):
    """What is timed."""

    python: tuple[str, ...] = environment_option(CONTESTANTS)
    contestants: tuple[str, ...] = option(
        tuple(CONTESTANTS),
        "some of these",
        metavar="A,B,C",
        choices=tuple(CONTESTANTS),
        unique=True,
    )
    ids: tuple[int, ...] = option(
        (100_000, 1_000_000, 10_000_000), "rows of the table", at_least=COLUMNS, unique=True
    )
    batch: int = option(1024, "rows per step", at_least=1)
    rounds: int = option(3, "turns of every contestant", at_least=1)
    # the second step is the first one that makes missed steps, and compiles what makes them
    warm_up: int = option(3, "steps before the clock starts", at_least=2)
    steps: int = option(20, "steps of a turn", at_least=1)

    def __post_init__(self) -> None:
        """Refuse an environment that is not there."""
        super().__post_init__()
        for name in dict.fromkeys(map(environment, self.contestants)):
            if name not in self.pythons:
                raise InputError(
                    f"--python: no environment for {name}; add {name}=PATH, or choose --contestants"
                )

    @property
    def pythons(self) -> Mapping[str, Path]:
        """Environment -> its interpreter."""
        return {HERE: Path(sys.executable)} | environments(self.python, CONTESTANTS)


def turn(name: str, ids: int, settings: OptimizerSettings) -> JsonObject:
    """Run one turn of a contestant."""
    words = (name, ids, settings.batch, settings.warm_up, settings.steps)
    python = settings.pythons[environment(name)]
    calm = {"env": os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "TF_CPP_MIN_LOG_LEVEL": "3"}}
    return answer_of(name, python, "optimizers", *words, **calm)


def compare(settings: OptimizerSettings) -> JsonObject:
    """Time all contestants in turn, by the number of ids; return a result for JSON."""
    cases = {
        (ids, name): partial(turn, name, ids, settings)
        for ids in settings.ids
        for name in settings.contestants
    }
    turns = in_turn(cases, settings.rounds)
    results, versions = [], {}
    for (ids, name), every in turns.items():
        times = {
            key: [round(each[key], 2) for each in every] for key in ("ms", "cpu_ms", "flush_cpu_ms")
        }
        medians = {key: statistics.median(x) for key, x in times.items()}
        results.append({"contestant": name, "ids": ids, **medians, "turns": times})
        versions |= {f"{environment(name)}: {k}": v for k, v in every[0]["versions"].items()}
    return {
        "what": "milliseconds of a training step by optimizer and number of ids",
        "batch": settings.batch,
        "results": results,
        "load_after": round(os.getloadavg()[0], 2),
        "versions": versions,
    }


def text(result: JsonObject) -> str:
    """Format the medians as Markdown: wall and CPU milliseconds of a step, by number of ids."""
    found = {(row["ids"], row["contestant"]): row for row in result["results"]}
    sizes = list(dict.fromkeys(ids for ids, _ in found))
    head = ["optimizer"]
    for ids in sizes:
        head += [f"{ids:,} ids: ms", "CPU ms", "flush"]
    rows = []
    for name in dict.fromkeys(name for _, name in found):
        cells = [name]
        for ids in sizes:
            row = found[ids, name]
            cells += [f"{row['ms']:.1f}", f"{row['cpu_ms']:.1f}"]
            cells += [f"{row['flush_cpu_ms']:.1f}" if "exact" in name else ""]
        rows.append(cells)
    return markdown(head, "l" + "rrr" * len(sizes), rows)


BENCHMARK = Benchmark(about=__doc__, settings=OptimizerSettings, measure=compare, text=text)

if __name__ == "__main__":
    BENCHMARK.main()
