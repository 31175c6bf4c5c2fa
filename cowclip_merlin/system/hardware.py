"""Describe the hardware that a result was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from cowclip_merlin.types import JsonObject


def hardware() -> JsonObject:
    """Return the processor, its cores, and the names of the GPUs that TensorFlow uses."""
    from cowclip_merlin import compat

    tf = compat.tensorflow()
    known = [
        tf.config.experimental.get_device_details(g) for g in tf.config.get_visible_devices("GPU")
    ]
    names = [details.get("device_name", "unknown") for details in known]
    return processor() | {"gpus": len(names), "gpu": ", ".join(names)}


def processor() -> JsonObject:
    """Return the model and the cores of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    model = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")
    return {"machine": platform.machine(), "processor": model, "cores": os.cpu_count()}
