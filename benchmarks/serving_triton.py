"""Check and load an exported model in a real Triton server.

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
import os
import random
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq

from cowclip_merlin.errors import InputError
from cowclip_merlin.settings import Settings, option
from cowclip_merlin.synthetic.criteo_log import generate
from cowclip_merlin.system.processes import free_ports, start, wait_for, wait_or_kill
from cowclip_merlin.training import RunSettings, evaluate_run, train
from cowclip_merlin.training.run import set_up_tensorflow
from cowclip_merlin.triton import RepositorySettings, export_repository
from cowclip_merlin.types import Json, JsonObject
from cowclip_merlin.workflows import PrepareSettings, prepare, value_to_id
from cowclip_merlin.workflows.raw.log_format import CRITEO
from harness import Benchmark, answer_of, last_line, table

MODEL = RepositorySettings()
LONGEST_START = 180.0  # seconds
DAMAGED = 0.1  # share of cells that are emptied, and of categories that become unknown
SEED = 1  # of the log, the rows and the model
FIND = """
import importlib.metadata, importlib.util, json, sys, sysconfig
spec = importlib.util.find_spec("pytriton")
if spec is None:
    raise SystemExit("nvidia-pytriton is not installed")
package, = spec.submodule_search_locations
print(json.dumps({
    "package": package,
    "python": "%d.%d" % sys.version_info[:2],
    "libraries": sysconfig.get_config_var("LIBDIR"),
    "versions": {n: importlib.metadata.version(n) for n in ("nvidia-pytriton", "tritonclient")}
    | {"tensorflow in Triton": importlib.metadata.version("tensorflow")},
}))
"""


@dataclass(frozen=True, kw_only=True)
class TritonSettings(Settings):
    """How Triton is checked and loaded."""

    triton_python: Path = option(
        Path(".venv-triton/bin/python"), "with pytriton and TensorFlow", metavar="PYTHON"
    )
    rows: int = option(100_000, "rows of the generated log", at_least=1)
    checked_rows: int = option(1000, "raw rows whose probabilities are compared", at_least=1)
    batches: tuple[int, ...] = option(
        (1, 64, 4096), "rows per request of each load", at_least=1, at_most=MODEL.max_batch_size
    )
    connections: int = option(
        8, "connections of the last load, with one row per request", at_least=1
    )
    seconds: float = option(10.0, "seconds of each load", above=0)


def find_wheel(python: Path) -> JsonObject:
    """Find pytriton in the environment of an interpreter: paths and versions."""
    remedy = "make triton-check makes an environment with it"
    if not python.is_file():
        raise InputError(f"--triton-python {python}: no such file; {remedy}")
    done = subprocess.run([python, "-c", FIND], capture_output=True, text=True)
    if done.returncode:
        words = last_line(done.stderr)
        raise InputError(f"--triton-python {python}: {words}; {remedy}")
    return json.loads(done.stdout)


def export(folder: Path, settings: TritonSettings) -> tuple[Path, JsonObject]:
    """Train DeepFM on a generated log, export it, move the repository, and delete the rest."""
    data, run, new = folder / "DATA", folder / "RUN", folder / "NEW"
    log, new_log, scores = (folder / x for x in ("log.txt", "new.txt", "expected.parquet"))
    generate(log, rows=settings.rows, seed=SEED)
    prepared = prepare(PrepareSettings(files=(log,), out=data))
    batch = min(4096, max(1, settings.rows // 2))
    train(data, RunSettings(model="deepfm", batch_size=batch, epochs=1, seed=SEED), out=run)
    raw = write_rows(new_log, settings.checked_rows)
    prepare(PrepareSettings(files=(new_log,), out=new, like=data))
    evaluate_run(run, new, predictions=scores)
    columns = (*prepared.continuous, *prepared.categorical)
    known = {name: value_to_id(prepared, name) for name in prepared.categorical}
    unknown = (bool(row[n]) and row[n] not in ids for row in raw for n, ids in known.items())
    exported = {
        "rows": raw,
        "expected": pq.read_table(scores)["probability"].to_pylist(),
        "ids": sum(prepared.tables.values()),
        "missing_cells": sum(not row[name] for row in raw for name in columns),
        "unknown_cells": sum(unknown),
    }
    export_repository(run, data, out=folder / "REPO", settings=MODEL)
    for each in (data, run, new):
        shutil.rmtree(each)
    (folder / "moved").mkdir()
    return (folder / "REPO").rename(folder / "moved" / "models"), exported


def write_rows(file: Path, rows: int) -> list[dict[str, str]]:
    """Write a log in Criteo's format with many missing and unknown values; return its rows."""
    generate(file, rows=rows, seed=SEED + 1)
    lines, draw = file.read_text(encoding="utf-8").splitlines(), random.Random(SEED + 1)
    raw = [dict(zip(CRITEO.file_columns, line.split("\t"), strict=True)) for line in lines]
    for row in raw:
        for name in (*CRITEO.continuous, *CRITEO.categorical):
            chance = draw.random()
            if chance < DAMAGED:
                row[name] = ""
            elif chance < 2 * DAMAGED and name in CRITEO.categorical:
                row[name] = f"unknown Ü{draw.randrange(9)}"
    raw[0] |= dict.fromkeys((*CRITEO.continuous, *CRITEO.categorical), "")
    text = "".join("\t".join(row.values()) + "\n" for row in raw)
    file.write_text(text, encoding="utf-8")
    return raw


class TritonServer:
    """A tritonserver of the wheel nvidia-pytriton on a free port of 127.0.0.1."""

    def __init__(
        self, python: Path, wheel: Mapping[str, Json], repository: Path, folder: Path
    ) -> None:
        self._log = folder / "tritonserver.log"
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        package, backends = Path(wheel["package"]), folder / "backends"
        home = package / "tritonserver"
        # The Python backend needs the program for this version of Python.
        stub = home / "python_backend_stubs" / wheel["python"] / "triton_python_backend_stub"
        if not stub.is_file():
            raise InputError(f"{stub}: no such file; use another version of Python")
        shutil.copytree(home / "backends", backends)
        shutil.copy(stub, backends / "python")
        options = {
            "model-repository": repository, "backend-directory": backends,
            "http-address": "127.0.0.1", "http-port": port, "allow-grpc": "false",
            "allow-metrics": "false", "exit-timeout-secs": 10,
        }  # fmt: skip
        command = [home / "bin/tritonserver", *(f"--{n}={value}" for n, value in options.items())]
        # The backend's process finds its packages by the first python on the path.
        environment = {
            "PATH": f"{python.absolute().parent}{os.pathsep}{os.environ['PATH']}",
            "LD_LIBRARY_PATH": f"{package.parent / 'nvidia_pytriton.libs'}:{wheel['libraries']}",
        }
        with self._log.open("wb") as stream:
            self._process = start(command, stdout=stream, environment=os.environ | environment)
        if not wait_for(self._is_ready, self._process, LONGEST_START):
            self.stop()
            raise InputError(f"tritonserver does not start: {self.last_words()}")

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/v2/health/ready", timeout=10):
                return True
        except OSError:
            return False

    def last_words(self) -> str:
        """Return the first error in the log, or its last lines."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if re.match(r"E(?!0000)\d{4} |error: ", line)]
        return " ".join(errors[:1] or lines[-3:])[:600]

    def stop(self) -> None:
        """End it by SIGTERM."""
        self._process.terminate()
        wait_or_kill(self._process, 60)


def measure(settings: TritonSettings) -> JsonObject:
    """Export a model, serve it, compare its answers, and load it."""
    python, wheel = settings.triton_python, find_wheel(settings.triton_python)
    set_up_tensorflow(SEED, "cpu")
    with TemporaryDirectory() as name:
        folder = Path(name)
        repository, exported = export(folder, settings)
        job = folder / "job.json"
        server = TritonServer(python, wheel, repository, folder)
        wanted = {
            "address": server.address,
            "model": MODEL.model_name,
            "categorical": CRITEO.categorical,
            "continuous": CRITEO.continuous,
            "rows": exported.pop("rows"),
            "seconds": settings.seconds,
            "cases": [*((batch, 1) for batch in settings.batches), (1, settings.connections)],
        }
        job.write_text(json.dumps(wanted), encoding="utf-8")
        try:
            found = answer_of("the client", python.absolute(), "triton_client", job)
        except InputError as error:
            raise InputError(f"{error}; the server: {server.last_words()}") from None
        finally:
            server.stop()
    got, expected = np.array(found["probabilities"]), np.array(exported.pop("expected"))
    return {
        "what": "a model of cowclip export --triton in tritonserver, over HTTP",
        **exported,
        "checked_rows": len(got),
        "largest_difference": float(np.abs(got - expected).max()),
        "range_of_probabilities": [float(expected.min()), float(expected.max())],
        "refusals": found["refusals"],
        "cases": found["cases"],
        "versions": {**wheel["versions"], "tritonserver": found["version"]},
    }


COLUMNS = {
    "rows/request": "{batch:,}",
    "connections": "{connections}",
    "requests/s": "{requests_per_second:,.1f}",
    "rows/s": "{rows_per_second:,}",
    "p50, ms": "{p50_ms:.1f}",
    "p99, ms": "{p99_ms:.1f}",
    "max, ms": "{max_ms:.1f}",
    "rows/execution": "{rows_per_execution:,.1f}",
}


def text(result: JsonObject) -> str:
    """Return the result as a table, with the comparison and the refusals."""
    checked = (
        "{checked_rows:,} rows with {missing_cells:,} missing and {unknown_cells:,} unknown "
        "values: largest difference {largest_difference:.1e}"
    ).format_map(result)
    refused = [f"{what}: {words}" for what, words in result["refusals"].items()]
    return "\n".join([table(COLUMNS, result["cases"]), checked, *refused])


def check(_: TritonSettings, result: JsonObject) -> None:
    """Refuse a server whose answers are wrong."""
    if not result["largest_difference"] <= 1e-6:
        raise InputError(f"an answer differs by {result['largest_difference']:.1e}")
    for what, words in result["refusals"].items():
        if not words or "\n" in words.strip() or "Traceback" in words:
            raise InputError(f"{what}: is not refused in one line, but by {words!r}")


TRITON = Benchmark(about=__doc__, settings=TritonSettings, measure=measure, text=text, finish=check)
