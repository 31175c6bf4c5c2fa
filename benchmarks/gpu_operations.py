"""The project's operations on a GPU without TensorFlow: compared with NumPy, timed, an epoch.

Needs a GPU, NumPy, CuPy and a C++ compiler, nothing else. It compiles the operations with a small
header in place of TensorFlow's, and loads the kernels as training does.

- check: groups of ids, hidden layers, 40 steps of DeepFM with CowClip, 3 with Adagrad,
  and refused steps. The last line says whether all are right; otherwise the exit code is 2.
- time: milliseconds of a step at 131,072 and 1,024 rows, also as a CUDA graph, and its operations.
- epoch: seconds, loss and AUC of an epoch of planted rows.

`--emulate` needs no GPU: it runs the same code in a minute on the CPU, at tiny sizes, with the
stand-ins of tests/kernels for the CUDA driver, CuPy and cuBLASLt. Its times mean nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for a machine without the project installed

from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.types import JsonObject
from gpu import TINY, Sizes
from harness import Benchmark

ROOT = Path(__file__).parents[1]
PARTS = ("check", "time", "epoch")


@dataclass(frozen=True, kw_only=True)
class GpuSettings(Settings):
    """Settings of the run."""

    parts: Sequence[str] = option(PARTS, "what to run: {choices}", choices=PARTS, nargs="+")
    rows: int = option(41_000_000, "rows of an epoch", at_least=1)
    seconds: float = option(40.0, "after which an epoch ends early", above=0)
    tiny: bool = option(False, "tiny sizes, as for a sanitizer")
    emulate: bool = option(False, "emulate the GPU, at tiny sizes")


def measure(settings: GpuSettings) -> JsonObject:
    """Run the parts; each prints its figures."""
    if settings.emulate:
        sys.path.insert(0, str(ROOT / "tests/kernels"))
        importlib.import_module("emulated_gpu").install()
    from gpu.operations import Gpu

    gpu = Gpu()  # it makes the modules below importable without TensorFlow
    from gpu import times
    from gpu.checks import Checks

    tiny = settings.tiny or settings.emulate
    sizes, rows = (TINY, 2000) if tiny else (Sizes(), settings.rows)
    checks = Checks(gpu, sizes)
    result = {"hardware": {"gpu": gpu.name}, "versions": {"cupy": gpu.xp.__version__}}
    print(gpu.name, flush=True)
    for part in settings.parts:
        if part == "check":
            checks.all()
            result |= {"checks": checks.found, "wrong": checks.wrong}
        elif part == "time":
            result["steps"] = times.step_times(gpu, sizes)
        else:
            result["epochs"] = [
                times.epoch(gpu, sizes, batch, rows, settings.seconds)
                for batch in (sizes.large, sizes.small)
            ]
    return result | {"gigabytes": gpu.library.world_bytes() / 1e9}


def verdict(result: JsonObject) -> str:
    """Return the last line of the checks."""
    if "checks" not in result:
        return "nothing was checked"
    count, wrong = len(result["checks"]), len(result["wrong"])
    return f"all {count} checks are right" if not wrong else f"{wrong} of {count} checks are WRONG"


def refuse_wrong(_: GpuSettings, result: JsonObject) -> None:
    """End with an error if a check is wrong."""
    if wrong := result.get("wrong"):
        raise InputError(f"{len(wrong)} checks are wrong, the first of them: {wrong[0]}")


BENCHMARK = Benchmark(
    about=__doc__, settings=GpuSettings, measure=measure, text=verdict, finish=refuse_wrong
)

if __name__ == "__main__":
    BENCHMARK.main()
