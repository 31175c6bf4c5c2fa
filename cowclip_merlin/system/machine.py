"""What a result was measured on: hardware, versions of packages, and memory of a process."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
from functools import cache
from importlib import metadata
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


PACKAGES = (
    "tensorflow",
    "tf-keras",
    "merlin-models",
    "merlin-core",
    "merlin-dataloader",
    "nvtabular",
    "numpy",
    "pandas",
    "pyarrow",
    "dask",
    "cudf-cu12",
    "cupy-cuda12x",
)


def versions() -> dict[str, str]:
    """Return the versions of this package and its dependencies, and its git revision if any."""
    from cowclip_merlin import __version__

    found = {"cowclip_merlin": __version__, "python": platform.python_version()}
    revision = _git_revision()
    if revision:
        found["git_revision"] = revision
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["platform"] = platform.platform()
    return found


@cache  # the modules of this process stay what they are
def _git_revision() -> str | None:
    """Return the git revision of this package's checkout; None for an installed package."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def resident_megabytes(process: int | None = None) -> float:
    """Return the memory that a process has now, in MB of 10^6 bytes.

    Args:
        process: its id; None for this process.

    Raises:
        psutil.Error: there is no such process.

    >>> 1 < resident_megabytes() <= peak_megabytes() + 1
    True
    """
    import psutil

    return psutil.Process(process).memory_info().rss / 1e6


def peak_megabytes() -> float:
    """Return the most memory that this process had so far, in MB of 10^6 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def bytes_left() -> int:
    """Return how many bytes this process may still take.

    The limits of `ulimit -v` and `ulimit -d` count, and the free memory of the machine.

    >>> bytes_left() > 0
    True
    """
    import psutil

    own = psutil.Process().memory_info()
    left = [psutil.virtual_memory().available + psutil.swap_memory().free]
    data = getattr(own, "data", 0)  # only Linux and BSD tell it
    for limit, used in ((resource.RLIMIT_AS, own.vms), (resource.RLIMIT_DATA, data)):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            left.append(max(0, soft - used))
    return min(left)
