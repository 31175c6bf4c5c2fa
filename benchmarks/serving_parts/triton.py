"""Check and load an exported model in a real Triton server.

    python benchmarks/serving.py triton [--triton-python .venv-triton/bin/python] [--rows 100000]
        [--checked-rows 1000] [--batches 1,64,4096] [--connections 8] [--seconds 10] [--seed 1]
        [--json FILE] [--overwrite]

DeepFM is trained on a generated log and exported. The repository is moved, and the run and the data
are deleted. Then tritonserver serves it on 127.0.0.1, and a client with NVIDIA's tritonclient asks
it over HTTP. The command fails if an answer differs from that of `cowclip evaluate` by more than
1e-6, or if a wrong request is not refused in one line.

The load is one connection for each batch size, and then --connections with one row per request.
A time is that of a request whose tensors are ready, until its answer is read. Client, server and
model share the cores. `make triton-check` makes the environment of --triton-python.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cowclip_merlin.checks import check_at_least_one, check_positive
from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import option
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.types import Json, JsonObject
from cowclip_merlin.workflows.raw.log_format import CRITEO
from harness.benchmark import Benchmark
from harness.tables import markdown
from serving_parts.triton_export import MODEL, Exported, export
from serving_parts.triton_server import TritonServer, find_wheel

Result = JsonObject
_CLIENT = Path(__file__).with_name("triton_client.py")
_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class TritonSettings:
    """How Triton is checked and loaded.

    Attributes:
        triton_python: interpreter of an environment with nvidia-pytriton and TensorFlow.
        rows: rows of the generated log.
        checked_rows: raw rows whose probabilities are compared.
        batches: rows per request of each load.
        connections: connections of the last load, with one row per request.
        seconds: of each load.
        seed: of the log, the rows and the model.

    Raises:
        InputError: if a number is too small, or a batch is larger than the model takes.
    """

    triton_python: Path = option(Path(".venv-triton/bin/python"), "with pytriton and TensorFlow")
    rows: int = option(100_000, "rows of the generated log")
    checked_rows: int = option(1000, "raw rows whose probabilities are compared")
    batches: tuple[int, ...] = option((1, 64, 4096), "rows per request of each load")
    connections: int = option(8, "connections of the last load, with one row per request")
    seconds: float = option(10.0, "seconds of each load")
    seed: int = option(1, "seed of the log, the rows and the model")

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        counts = {"--rows": self.rows, "--checked-rows": self.checked_rows}
        check_at_least_one({**counts, "--batches": self.batches, "--connections": self.connections})
        check_positive({"--seconds": self.seconds})
        if max(self.batches) > MODEL.max_batch_size:
            raise InputError(
                f"--batches {max(self.batches)} is larger than a batch of the model; give "
                f"{MODEL.max_batch_size} or less"
            )


def measure(settings: TritonSettings) -> Result:
    """Export a model, serve it, compare its answers, and load it.

    Raises:
        InputError: if the environment of Triton is missing, or the server does not start.
    """
    wheel = find_wheel(settings.triton_python)
    set_up_tensorflow(settings.seed, "cpu")
    with TemporaryDirectory() as name:
        folder = Path(name)
        exported = export(
            folder, rows=settings.rows, checked=settings.checked_rows, seed=settings.seed
        )
        server = TritonServer(settings.triton_python, wheel, exported.repository, folder)
        try:
            answers = ask(settings, exported, server, folder)
        finally:
            server.stop()
    return _result(exported, answers, server.versions)


def ask(settings: TritonSettings, exported: Exported, server: TritonServer, folder: Path) -> Result:
    """Run the client; return its answers.

    Raises:
        InputError: if the client fails.
    """
    job = {
        "address": server.address,
        "model": MODEL.model_name,
        "categorical": CRITEO.categorical,
        "continuous": CRITEO.continuous,
        "rows": exported.rows,
        "seconds": settings.seconds,
        "cases": [*((batch, 1) for batch in settings.batches), (1, settings.connections)],
    }
    files = folder / "job.json", folder / "answers.json"
    files[0].write_text(json.dumps(job), encoding="utf-8")
    command = [settings.triton_python, _CLIENT, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no words"])[-1]
        raise InputError(f"the client failed: {words}; the server: {server.last_words()}")
    return json.loads(files[1].read_text(encoding="utf-8"))


def _result(exported: Exported, answers: Result, versions: Mapping[str, str]) -> Result:
    got, expected = np.array(answers["probabilities"]), np.array(exported.expected)
    return {
        "what": "a model of cowclip export --triton in tritonserver, over HTTP",
        "ids": exported.ids,
        "checked_rows": len(got),
        "missing_cells": exported.missing,
        "unknown_cells": exported.unknown,
        "largest_difference": float(np.abs(got - expected).max()),
        "range_of_probabilities": [float(expected.min()), float(expected.max())],
        "refusals": answers["refusals"],
        "cases": answers["cases"],
        "versions": {**versions, "tritonserver": answers["version"]},
    }


def text(result: Mapping[str, Json]) -> str:
    """Return the result as a table, with the comparison and the refusals."""
    head = ("rows/request", "connections", "requests/s", "rows/s", "p50, ms", "p99, ms", "max, ms",
            "rows/execution")  # fmt: skip
    rows = [
        (
            f"{case['batch']:,}",
            f"{case['connections']}",
            f"{case['requests_per_second']:,.1f}",
            f"{case['rows_per_second']:,}",
            f"{case['p50_ms']:.1f}",
            f"{case['p99_ms']:.1f}",
            f"{case['max_ms']:.1f}",
            f"{case['rows_per_execution']:,.1f}",
        )
        for case in result["cases"]
    ]
    checked = (
        f"{result['checked_rows']:,} rows with {result['missing_cells']:,} missing and "
        f"{result['unknown_cells']:,} unknown values: largest difference "
        f"{result['largest_difference']:.1e}"
    )
    refused = [f"{what}: {words}" for what, words in result["refusals"].items()]
    return "\n".join([markdown(head, "rrrrrrrr", rows), checked, *refused])


def check(result: Mapping[str, Json]) -> None:
    """Refuse a server whose answers are wrong.

    Raises:
        InputError: if a probability differs, or a wrong request is not refused in one line.
    """
    if not result["largest_difference"] <= _TOLERANCE:
        raise InputError(f"an answer differs by {result['largest_difference']:.1e}")
    for what, words in result["refusals"].items():
        if not words or "\n" in words.strip() or "Traceback" in words:
            raise InputError(f"{what}: is not refused in one line, but by {words!r}")


BENCHMARK = Benchmark(
    script="serving.py triton",
    about=__doc__,
    settings=TritonSettings,
    measure=measure,
    text=text,
    device=False,
    check=check,
)
