"""Time a step and its operations on a GPU, and train an epoch of planted rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from cowclip_merlin.metrics.auc import auc_and_error
from cowclip_merlin.scaling import scale
from cowclip_merlin.types import JsonObject
from gpu import Sizes
from gpu.deepfm import DeepFM, Rows, criteo_fields
from gpu.operations import Gpu

CASES = (("bfloat16", "exact"), ("TF32", "exact"), ("bfloat16", "lazy"))


def step_times(gpu: Gpu, sizes: Sizes) -> list[JsonObject]:
    """Time steps with young tables, launched one by one and as a graph, and their operations."""
    found: list[JsonObject] = []
    for batch in (sizes.large, sizes.small):
        rows = Rows(gpu, 8 * batch, criteo_fields(sizes.many_ids), seed=11)
        for precision, update in CASES:
            model = _model(gpu, sizes, rows, batch, update, half=precision == "bfloat16")
            times = _times(gpu, model, 1 if sizes.tiny else max(32, 327_680 // batch))
            print(f"{batch:,} rows, {precision}, {update}: {times}", flush=True)
            found.append({"batch": batch, "precision": precision, "update": update} | times)
    return found


def _times(gpu: Gpu, model: DeepFM, steps: int) -> JsonObject:
    """Return milliseconds of a step in both ways, and microseconds of its operations."""
    gpu.run(model.step, 3)
    one_by_one = _milliseconds(gpu, lambda: gpu.run(model.step, steps)) / steps
    found: JsonObject = {"ms": round(one_by_one, 4)}
    per_call = min(steps, _per_call(model))
    if (graph := _graph(gpu, model, per_call)) is not None:
        calls = steps // per_call
        each = [_milliseconds(gpu, lambda: [graph() for _ in range(calls)]) for _ in range(3)]
        found["ms_graph"] = round(median(each) / (calls * per_call), 4)
    spent: dict[str, list[float]] = {name: [] for name in model.parts}
    for _ in range(min(steps, 10)):
        for name, node in model.parts.items():
            spent[name].append(1000 * _milliseconds(gpu, lambda node=node: gpu.run([node])))
    model.flush()
    return found | {"us": {name: round(median(each)) for name, each in spent.items()}}


def epoch(gpu: Gpu, sizes: Sizes, batch: int, count: int, seconds: float) -> JsonObject:
    """Train an epoch, or until the seconds have passed, and return its speed, loss and AUC."""
    fields = criteo_fields(sizes.many_ids)
    rows = Rows(gpu, count, fields, seed=1)
    held_out = Rows(gpu, max(2, min(count // 4, 1_000_000)), fields, seed=2)
    model = _model(gpu, sizes, rows, batch, "exact", half=True)
    gpu.run(model.step, 2)
    model.flush()
    per_call = 1 if sizes.tiny else _per_call(model)
    go = _graph(gpu, model, per_call) or (lambda: gpu.run(model.step, per_call))
    model.position.fill(0)
    model.loss.fill(0)
    steps, done, began = count // batch, 0, time.perf_counter()
    while done + per_call <= steps and time.perf_counter() - began < seconds:
        go()
        done += per_call
        if done % (64 * per_call) == 0:
            gpu.wait()  # or the host would be far ahead of its clock
    gpu.wait()
    trained = time.perf_counter() - began
    model.flush()
    whole = time.perf_counter() - began
    loss = float(gpu.host(model.loss)[0]) / max(1, done * batch)
    labels = gpu.host(held_out.y)
    auc = auc_and_error(labels, model.logits(held_out))[0]
    best = auc_and_error(labels, gpu.host(held_out.p))[0]
    print(
        f"epoch at {batch:,}: {done:,} of {steps:,} steps in {whole:.2f} s, of which the flush "
        f"{whole - trained:.3f}; loss {loss:.4f}, AUC {auc:.4f} of {best:.4f}",
        flush=True,
    )
    return {"batch": batch, "steps": done, "of": steps, "seconds": whole, "flush": whole - trained,
            "rows_per_second": done * batch / whole, "loss": loss, "auc": auc,
            "auc_of_the_planted_model": best}  # fmt: skip


def _model(gpu: Gpu, sizes: Sizes, rows: Rows, batch: int, update: str, *, half: bool) -> DeepFM:
    values = scale("criteo", to=batch)
    return DeepFM(gpu, rows, batch, values, sizes.widths, update=update, half=half)


def _per_call(model: DeepFM) -> int:
    return max(1, min(16, 16_384 // model.batch))  # as training puts steps into one call


def _graph(gpu: Gpu, model: DeepFM, steps: int) -> Callable[[], None] | None:
    try:
        return gpu.graph(model.step, steps)
    except Exception as error:  # CUDA's errors, of CuPy or of an operation
        print(f"no graph: {error}", flush=True)
        return None


def _milliseconds(gpu: Gpu, run: Callable[[], object]) -> float:
    begin = gpu.mark()
    run()
    return gpu.milliseconds(begin, gpu.mark())
