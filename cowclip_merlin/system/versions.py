"""Record the versions of the packages that produced a result."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

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
