"""What the package writes, as SHA-256: weights after 50 steps, prepared folders, a stream's files.

    python tests/golden/record.py            compare with golden.json
    python tests/golden/record.py --write    write golden.json anew, after an intended change

A refactoring must leave every value as it is. Weights are read by `load_run`, so a change of the
format of checkpoints does not change them. Processors and threads differ in the last bits of sums:
the record is made with one thread and the instructions of AVX2. On another model of processor than
that of golden.json, weights are not compared, but losses and AUCs are. There, write the record at
the commit before the change.
"""

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cowclip_merlin.system import machine

PLAIN = {
    "CUDA_VISIBLE_DEVICES": "",
    "DNNL_MAX_CPU_ISA": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL",
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+bmi,+bmi2,+popcnt,+sse4.2",
    "NUMBA_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}
"""Environment of a process whose sums have the same bits on all machines with AVX2."""

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden.json"
SECTIONS = {"trainings": "trainings", "streams": "played_stream"}  # name -> module
Value = str | dict[str, float]
ROWS, BATCH = 4000, 64  # 3,600 training rows: 56 steps of an epoch

LIST_COLUMNS = ["--label", "y", "--categorical", "user,item", "--multi", "seen"]
LIST_COLUMNS += ["--share-embedding", "seen=item", "--continuous", "price"]
PREPARED = {
    "criteo": ["criteo", "criteo.txt", "--freq-threshold", "2"],
    "roles": [
        "table", "roles.csv", "--label", "y,seconds", "--regression", "seconds", "--weight", "w",
        "--categorical", "user,item", "--multi", "seen", "--share-embedding", "seen=item",
        "--continuous", "price", "--vector", "image",
    ],
    "lists": ["table", "roles.csv", *LIST_COLUMNS, "--log", "--split", "time"],
}  # fmt: skip
"""Prepared folder -> arguments of `cowclip prepare`."""

TRAININGS = {
    "wide_and_deep-exact": ("criteo", "--model wide_and_deep --update exact"),
    "deepfm-dense": ("criteo", "--model deepfm --update dense"),
    "deepfm-dense-tensorflow": ("criteo", "--model deepfm --update dense --backend tensorflow"),
    "dcn-lazy": ("criteo", "--model dcn --update lazy --rule sde --base-batch-size 16"),
    "dcn-lazy-tensorflow": ("criteo", "--model dcn --update lazy --backend tensorflow"),
    "dcnv2-exact-per-field": ("criteo", "--model dcnv2 --update exact --tables per_field"),
    "din-exact-lists": ("lists", "--model din --update exact --lr-schedule cosine"),
    "deepfm-lists-regularized": (
        "lists",
        "--model deepfm --update exact --dropout 0.2 --batch-norm --activation dice",
    ),
    "deepfm-roles": ("roles", "--model deepfm --update dense --multi-task mmoe --experts 2"),
    "dcn-adagrad": (
        "criteo",
        "--model dcn --update lazy --optimizer adagrad --l2 0 --rule none --clip cowclip",
    ),
    "deepfm-two-workers": ("criteo", "--model deepfm --update exact --workers 2"),
    "deepfm-sharded": (
        "criteo",
        "--model deepfm --update exact --workers 2 --tables sharded",
    ),
}
"""Name -> prepared folder, and arguments of `cowclip train`."""
SAME = f"--batch-size {BATCH} --mlp 16,16 --epochs 1 --seed 7 --diagnostics-every 0 --device cpu"


def main() -> int:
    """Compare, or write golden.json; the exit code is 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write golden.json anew")
    write = parser.parse_args().write
    found = {}
    for section in SECTIONS:
        with tempfile.TemporaryDirectory() as work:
            found |= record(section, Path(work))
    if write:
        found["processor"] = processor()
        GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"wrote {GOLDEN}: {len(found)} values")
        return 0
    different = differences(found)
    print("\n".join(different) or f"all {len(found)} values are those of golden.json")
    return bool(different)


def differences(found: dict[str, Value], section: str = "") -> list[str]:
    """Return a line for each value that differs from golden.json, is missing there or is new.

    Args:
        found: what `record` returns, of all sections or of one.
        section: that one.
    """
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    same_bits = golden.pop("processor") == processor()
    known = {name: x for name, x in golden.items() if name.startswith(section)}
    return [
        f"{name}: was {known.get(name)}, is {found.get(name)}"
        for name in sorted(known.keys() | found.keys())
        if not _equal(known.get(name), found.get(name), bits=same_bits or " file " in name)
    ]


def _equal(golden: Value | None, found: Value | None, *, bits: bool) -> bool:
    if isinstance(golden, str) and isinstance(found, str):
        return golden == found or not bits
    if golden is None or found is None or golden.keys() != found.keys():
        return False
    return all(abs(golden[k] - found[k]) <= 2e-3 * abs(golden[k]) for k in golden)


def record(section: str, work: Path) -> dict[str, Value]:
    """Run a section in a new process with `PLAIN`; return name -> SHA-256, or numbers."""
    command = [sys.executable, str(HERE / "record.py"), "--here", section]
    subprocess.run(command, check=True, env=os.environ | PLAIN, cwd=work, stdout=subprocess.DEVNULL)
    return json.loads((work / "found.json").read_text(encoding="utf-8"))


def processor() -> str:
    """Return what decides the bits; machines of a cloud give models of many years one name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return machine.processor()["processor"]
    keys = ("model name", "cpu family", "model", "stepping")
    first = dict(line.split("\t: ", 1) for line in reversed(lines) if "\t: " in line)
    first = {key.strip(): value for key, value in first.items()}
    known = ", ".join(first[key] for key in keys if key in first)
    return known or machine.processor()["processor"]


def sha(data: bytes) -> str:
    """Return the start of a SHA-256, which is enough to see a change."""
    return hashlib.sha256(data).hexdigest()[:16]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        values = importlib.import_module(SECTIONS[sys.argv[2]]).record()
        Path("found.json").write_text(json.dumps(values), encoding="utf-8")
    else:
        sys.exit(main())
