"""The weights of 12 trainings, and the rows of their metrics that no clock decides."""

import csv
import shlex
from pathlib import Path

import folders
import numpy as np
from record import SAME, TRAININGS, Value, sha

from cowclip_merlin.cli import main
from cowclip_merlin.training import load_run


def record() -> dict[str, Value]:
    """Prepare and train in the working directory; return name -> SHA-256, or losses and AUCs."""
    found = folders.write()
    for name, (folder, arguments) in TRAININGS.items():
        command = ["train", folder, "--out", f"run-{name}", *shlex.split(f"{SAME} {arguments}")]
        assert main(command) == 0, name
        found[f"trainings: weights {name}"] = weights_of(load_run(f"run-{name}", folder))
        found[f"trainings: metrics {name}"] = metrics_of(Path(f"run-{name}/metrics.csv"))
    return found


def weights_of(model) -> str:
    """Hash all weights; neither their order nor their names count."""
    arrays = [np.asarray(weight) for weight in model.weights]
    return sha("".join(sorted(f"{a.dtype}{a.shape}{sha(a.tobytes())}" for a in arrays)).encode())


def metrics_of(file: Path) -> dict[str, float]:
    """Return what a training has written of its epoch, without seconds."""
    with file.open(encoding="utf-8", newline="") as lines:
        (row,) = csv.DictReader(lines)
    return {k: round(float(x), 6) for k, x in row.items() if x and "second" not in k}
