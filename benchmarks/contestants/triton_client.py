"""Ask Triton for probabilities, and measure it. Runs in the environment with tritonclient.

python -m contestants.triton_client JOB.json

JOB names the address, the model, the columns, the raw rows and the load. The answers are the
line of JSON that it prints. This file imports nothing of this project, as a client of a user does.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

POOL = 32  # different requests of one size


def inputs(job: dict[str, Any], rows: list[dict[str, str]]) -> list[Any]:
    """Make the tensors of a request; "" is a missing value, and a missing number is NaN."""
    made = [_tensor(n, [row[n].encode() for row in rows], "BYTES") for n in job["categorical"]]
    numbers = job["continuous"]
    return made + [_tensor(n, [float(row[n] or "nan") for row in rows], "FP64") for n in numbers]


def _tensor(name: str, values: list[Any], kind: str) -> Any:
    dtypes = {"BYTES": np.object_, "FP64": np.float64, "FP32": np.float32, "INT64": np.int64}
    tensor = triton.InferInput(name, [len(values), 1], kind)
    tensor.set_data_from_numpy(np.array(values, dtypes[kind]).reshape(-1, 1))
    return tensor


def probabilities(job: dict[str, Any], client: Any) -> list[float]:
    """Score all rows, in requests of 1 to 100 rows."""
    rows, draw, found = list(job["rows"]), random.Random(7), []
    while rows:
        size = draw.randint(1, 100)
        answer = client.infer(job["model"], inputs(job, rows[:size])).as_numpy("probability")
        assert answer.shape == (min(size, len(rows)), 1), answer.shape
        found += answer[:, 0].tolist()
        rows = rows[size:]
    return found


def refusals(job: dict[str, Any], client: Any) -> dict[str, str]:
    """Return what the server says to requests that are wrong."""
    number, text = job["continuous"][0], job["categorical"][0]
    wrong = {
        "float32 for a number": [_tensor(number, [1.0], "FP32")],
        "text for a number": [_tensor(number, [b"1"], "BYTES")],
        "whole number for text": [_tensor(text, [3], "INT64")],
        "infinite number": [_tensor(number, [float("inf")], "FP64")],
        "column missing": [],
        "other number of rows": [_tensor(number, [1.0, 2.0], "FP64")],
    }
    told = {}
    for what, tensors in wrong.items():
        replaced = text if what == "whole number for text" else number
        usual = [t for t in inputs(job, job["rows"][:1]) if t.name() != replaced]
        try:
            client.infer(job["model"], usual + tensors)
            told[what] = ""
        except InferenceServerException as error:
            told[what] = error.message()
    return told


def load(job: dict[str, Any], batch: int, connections: int) -> dict[str, Any]:
    """Send requests of one size on all connections, each one after the other."""
    draw, client = random.Random(batch), triton.InferenceServerClient(job["address"])
    pool = [inputs(job, draw.choices(job["rows"], k=batch)) for _ in range(POOL)]
    for tensors in pool[:3]:
        client.infer(job["model"], tensors)
    before, took = _counts(job, client), [[] for _ in range(connections)]
    started = time.perf_counter()
    end = started + job["seconds"]
    threads = [threading.Thread(target=_send, args=(job, pool, end, t)) for t in took]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, times = time.perf_counter() - started, np.concatenate(took)
    rows, executions = (now - then for now, then in zip(_counts(job, client), before))
    p50, p99 = np.percentile(times, [50, 99]) * 1e3
    return {
        "batch": batch,
        "connections": connections,
        "requests": len(times),
        "requests_per_second": round(len(times) / seconds, 1),
        "rows_per_second": round(batch * len(times) / seconds),
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
        "max_ms": round(times.max() * 1e3, 2),
        "rows_per_execution": round(rows / executions, 2),
    }


def _send(job: dict[str, Any], pool: list[Any], end: float, took: list[float]) -> None:
    client = triton.InferenceServerClient(job["address"], network_timeout=600)
    while (started := time.perf_counter()) < end or not took:
        client.infer(job["model"], pool[len(took) % len(pool)])
        took.append(time.perf_counter() - started)


def _counts(job: dict[str, Any], client: Any) -> tuple[int, int]:
    """Return the rows and executions of the model so far; they are counted after the answers."""
    found = None
    while True:
        (model,) = client.get_inference_statistics(job["model"])["model_stats"]
        last, found = found, (model["inference_count"], model["execution_count"])
        if found == last:
            return found
        time.sleep(0.2)


def main(job_file: str) -> None:
    """Do a job, and print the answers."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    client = triton.InferenceServerClient(job["address"], network_timeout=600)
    answers = {
        "version": client.get_server_metadata()["version"],
        "probabilities": probabilities(job, client),
        "refusals": refusals(job, client),
        "cases": [load(job, *case) for case in job["cases"]],
    }
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
