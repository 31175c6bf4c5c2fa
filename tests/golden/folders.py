"""The files of three prepared folders."""

import json
import re
from pathlib import Path

import numpy as np
from record import PREPARED, ROWS, sha

from cowclip_merlin.cli import main


def write() -> dict[str, str]:
    """Write the logs and folders into the working directory; return file -> SHA-256."""
    assert main(f"generate --rows {ROWS} --seed 1 --out criteo.txt".split()) == 0
    write_roles(Path("roles.csv"))
    found = {}
    for name, arguments in PREPARED.items():
        assert main(["prepare", *arguments, "--out", name]) == 0, name
        for file in sorted(Path(name).rglob("*")):
            if file.is_file() and not file.name.startswith("."):
                found[f"trainings: file {file}"] = sha(stable(file))
    return found


def write_roles(file: Path) -> None:
    """Write a log with a column of each role."""
    rng = np.random.default_rng(1)
    lines = ["y,seconds,w,user,item,seen,price,image"]
    for i in range(ROWS):
        user, item = int(rng.zipf(1.3)) % 500, int(rng.zipf(1.5)) % 80
        seen = "|".join(str(x) for x in rng.integers(0, 80, rng.integers(0, 6)))
        image = "|".join(f"{x:.3f}" for x in rng.normal(size=3))
        y = int(rng.random() < 0.2 + 0.5 * (user * item % 7 == 0))
        price = "" if i % 50 == 7 else f"{rng.exponential(20):.2f}"
        seconds, weight = f"{rng.exponential(5):.2f}", f"{1 + i % 3}"
        lines.append(f"{y},{seconds},{weight},u{user},{item},{seen},{price},{image}")
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def stable(file: Path) -> bytes:
    """The content of a file without versions of packages."""
    data = file.read_bytes()
    if file.suffix == ".json":
        value = json.loads(data)
        value.pop("versions", None)
        return json.dumps(value, sort_keys=True).encode()
    return re.sub(rb"parquet-cpp-arrow version [0-9.]+", b"", data)
