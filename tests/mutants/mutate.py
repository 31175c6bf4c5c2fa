"""Do the tests find faults? Mutants of the code, and the test that kills each.

    python tests/mutants/mutate.py choose            drop those whose line is gone, add new ones
    python tests/mutants/mutate.py run               run those without a verdict, and write it
    python tests/mutants/mutate.py check [--number]  run killed ones again; 1 if one now survives

A mutant is run in a copy of the tree. Its tests are the one that killed it before, then those of
the files that are nearest by their imports and words, without the tiers that `make test` leaves
out. A test is a witness only if it passes without the mutant. Of a survivor, the list says how many
tests it survived. To run it again, empty its verdict.
"""

import argparse
import ast
import contextlib
import csv
import fcntl
import gc
import importlib
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from points import FOLDERS, ROOT, Mutant, choose, component, located

HERE = Path(__file__).resolve().parent
TREE = HERE.parents[1]
LIST = HERE / "mutants.csv"
FIELDS = ("file", "function", "line", "occurrence", "mutated", "verdict", "test", "cpu_seconds")
QUICK = "quick or not (system or thorough or gpu)"
NEAR, FURTHER = 4, 6  # files of tests that are run at first, and if the mutant survives these
CPU_SECONDS, SECONDS = 60, 1800  # of one call of pytest
BATCH = 5  # mutants whose witnesses are checked together
# Modules that the process has loaded before it is copied for a mutant.
LOADED = re.compile(rf"{ROOT}\.(compat|types|errors)(\.|$)")


def main() -> int:
    """Run a command; the exit code of `check` is 1 if a killed mutant survives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("choose", "run", "check"))
    parser.add_argument("--only", nargs="+", default=[], help="packages, such as optimizer")
    parser.add_argument("--number", type=int, help="mutants of the sample (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.command == "choose":
        with _open_list() as rows:
            places = [(row, located(TREE, _mutant(row))) for row in rows]
            for row, place in places:
                if place is None:
                    print("gone", *_told(row))
            rows[:] = [{**row, **vars(place)} for row, place in places if place]
            kept = [_mutant(row) for row in rows]
            rows += [{**vars(each), "verdict": "", "test": ""} for each in choose(TREE, kept)]
            print(f"{len(rows) - len(kept)} new mutants, {len(rows)} in all")
        return 0
    wanted = "killed" if args.command == "check" else ""
    rows = [row for row in _read() if row["verdict"] == wanted]
    rows = [row for row in rows if not args.only or component(row["file"]) in args.only]
    random.Random(args.seed).shuffle(rows)
    rows = rows[: args.number]
    # Modules that are loaded before the process is copied come first.
    rows.sort(key=lambda row: LOADED.match(_module(row["file"])) is None)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        runner = Runner(Path(folder).resolve())
        worse = 0
        for start in range(0, len(rows), BATCH):
            batch, found = rows[start : start + BATCH], []
            for row in batch:
                found.append(runner.verdict(row))
                print(found[-1]["verdict"], *_told(found[-1]), flush=True)
                if args.command == "run":
                    _write_verdicts(found)
            for row in runner.unfounded(found):
                print("fails without a mutant:", row["test"], flush=True)
                row["verdict"] = "unfounded"
            if args.command == "run":
                _write_verdicts(found)
            for old, new in zip(batch, found, strict=True):
                if wanted and new["verdict"] not in ("killed", "gone"):
                    print("WORSE", *_told(old), flush=True)
                    worse += 1
    print(f"{len(rows)} mutants run, {worse} formerly killed ones were not killed")
    return int(worse > 0)


def _told(row):
    place = f"{row['file']}:{row['function']}"
    return place, f"{row['line']!r} -> {row['mutated']!r}", row["test"], row["cpu_seconds"]


def _mutant(row):
    return Mutant(row["file"], row["function"], row["line"], int(row["occurrence"]), row["mutated"])


def _module(file):
    name = ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")
    return name if name.startswith(ROOT) else f"{ROOT}.{name}"


def _read():
    with open(LIST, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


class _open_list:
    """The rows of the list, for one process at a time; they are written at the end."""

    def __enter__(self):
        self._lock = os.open(HERE, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._rows = _read() if LIST.exists() else []
        return self._rows

    def __exit__(self, error, *_):
        if error is None:
            new = LIST.with_suffix(".new")
            with open(new, "w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(sorted(self._rows, key=lambda r: (r["file"], r["function"])))
            new.replace(LIST)
        os.close(self._lock)


def _write_verdicts(found):
    known = {_mutant(row): row for row in found}
    with _open_list() as rows:
        rows[:] = [known.get(_mutant(row), row) for row in rows]


class Runner:
    """Runs mutants in a copy of the tree.

    TensorFlow is imported once: the process is copied by fork for each call of pytest, and the copy
    imports the package.

    Args:
        folder: an empty one, for the copy.
    """

    def __init__(self, folder: Path):
        self._tree, self._notes = folder / "tree", folder / "notes.txt"
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=TREE, check=True, capture_output=True, text=True,
        ).stdout.split("\0")  # fmt: skip
        for name in filter(None, names):
            if (TREE / name).is_file():
                (self._tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(TREE / name, self._tree / name)
        for name in FOLDERS[1:]:  # as if it was installed there
            (self._tree / ROOT / name).symlink_to(self._tree / name)
        os.chdir(self._tree)
        os.environ |= {"PYTHONPATH": str(self._tree), "CUDA_VISIBLE_DEVICES": "",
                       "OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(folder)}  # fmt: skip
        sys.path.insert(0, str(self._tree))

    def unfounded(self, rows: list[dict]) -> list[dict]:
        """Return the rows of killed mutants whose test fails, or does not run, without a mutant."""
        killed = [row for row in rows if row["verdict"] == "killed"]
        if not killed:
            return []
        tests = sorted({row["test"] for row in killed})
        notes, _ = self._run(tests, stop=False, cpu_seconds=BATCH * CPU_SECONDS)
        passed = {test for word, test in notes if word == "start"}
        passed -= {test for word, test in notes if word != "start"}
        return [row for row in killed if row["test"] not in passed]

    def verdict(self, row: dict) -> dict:
        """Return the row with a new verdict: killed, survived, gone, or why it is undecided.

        `import`: the module breaks; `limit`: a test takes too long.
        """
        found = {**row, "verdict": "survived", "test": "", "cpu_seconds": "0"}
        mutant = located(self._tree, _mutant(row))
        if mutant is None:
            return {**found, "verdict": "gone"}
        path = self._tree / mutant.file
        source = path.read_text(encoding="utf-8")
        if not LOADED.match(_module(mutant.file)):
            _load()
        near = nearest(mutant)
        stages = [[row["test"]]] if row["verdict"] == "killed" else []
        stages += [near[:NEAR], near[NEAR : NEAR + FURTHER]]
        stat, cpu, survived = path.stat(), 0.0, 0
        path.write_text(mutant.applied(source), encoding="utf-8")
        try:
            for tests in filter(None, stages):
                notes, seconds = self._run(tests, stop=True)
                cpu += seconds
                survived += len(notes)
                found["test"] = f"{survived} tests"
                if notes and notes[-1][0] != "start":
                    found["verdict"], found["test"] = notes[-1]
                    break
        finally:
            path.write_text(source, encoding="utf-8")
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        return {**found, "cpu_seconds": f"{cpu:.0f}"}

    def _run(self, tests, *, stop, cpu_seconds=CPU_SECONDS):
        """Run tests in a copy of this process; return its notes, (word, test), and CPU seconds."""
        self._notes.write_text("", encoding="utf-8")
        pid = os.fork()
        if pid == 0:
            try:
                self._be_pytest(tests, stop, cpu_seconds)
            finally:
                os._exit(1)
        end = time.monotonic() + SECONDS
        try:
            while not (done := os.wait4(pid, os.WNOHANG))[0] and time.monotonic() < end:
                time.sleep(0.2)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what the tests have left, or this call's rest
        if not done[0]:
            done = os.wait4(pid, 0)
        _, status, usage = done
        lines = self._notes.read_text(encoding="utf-8").splitlines()
        notes = [tuple(line.split(" ", 2)) for line in lines]
        if os.WIFSIGNALED(status) and notes:
            limit = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
            _, begun, test = notes[-1]
            used = usage.ru_utime + usage.ru_stime - float(begun)
            if not limit:
                notes.append(("killed", "0", test))  # it has crashed
            elif used > cpu_seconds / 2 or used < 1:  # it may run, or wait, for ever
                notes.append(("limit", "0", test))
        return [(word, test) for word, _, test in notes], usage.ru_utime + usage.ru_stime

    def _be_pytest(self, tests, stop, cpu_seconds):
        os.setsid()
        output = os.open(self._tree.parent / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
        kept = {name: module for name, module in sys.modules.items() if LOADED.match(name)}
        for name in [each for each in sys.modules if each.split(".")[0] == ROOT]:
            if name not in kept:
                del sys.modules[name]
        import pytest

        if kept:
            package = __import__(ROOT)
            for name, module in kept.items():
                if name.count(".") == 1:
                    setattr(package, name.split(".")[1], module)
        words = ["-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-m", QUICK]
        words += [*["-x"] * stop, *tests]
        pytest.main(words, plugins=[_Notes(self._notes)])


class _Notes:
    """Plugin of pytest: writes which test begins and which fails, with the CPU time so far."""

    def __init__(self, file):
        self._file = file

    def _note(self, word, test):
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(f"{word} {time.process_time():.1f} {test}\n")

    def pytest_runtest_logstart(self, nodeid):
        self._note("start", nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._note("killed", report.nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            self._note("import", report.nodeid)


@cache
def _load():
    compat = importlib.import_module(f"{ROOT}.compat")
    compat.tensorflow()
    compat.nvtabular()
    # Not merlin.models.tf: it starts TensorFlow's threads, which a copied process lacks.
    for name in ("anyio.pytest_plugin", "hypothesis", "matplotlib.pyplot", "numba", "pytest",
                 "merlin.dataloader.tensorflow", "pyarrow.csv", "sklearn.metrics",
                 "xdist.plugin"):  # fmt: skip
        importlib.import_module(name)
    gc.freeze()  # the copies need not look at it


@cache
def _tests():
    """File of tests or of their fixtures -> (modules and names that it imports, all its words)."""
    found = {}
    for path in sorted((TREE / "tests").rglob("*.py")):
        text, imports = path.read_text(encoding="utf-8"), set()
        if re.search(r"^pytestmark = .*\.(system|gpu|thorough)\b", text, re.M):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                imports |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imports |= {node.module} | {f"{node.module}.{a.name}" for a in node.names}
        found[path.relative_to(TREE)] = imports, set(re.findall(r"\w+", text))
    return found


def _users(mutant):
    """Return the names of the public functions of its file through which a mutant is reached."""
    code = {}
    for node in ast.parse((TREE / mutant.file).read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            code[node.name] = set(re.findall(r"\w+", ast.unparse(node)))
    names, more = set(), set(mutant.function.split("."))
    while more:
        names |= more
        more = {user for user, words in code.items() if words & more} - names
    return {name for name in names if not name.startswith("_")}


def nearest(mutant: Mutant) -> list[str]:
    """Return files of tests by how much they have to do with a mutant, the nearest first."""
    module, stem = _module(mutant.file), Path(mutant.file).stem
    folders = [part for part in Path(mutant.file).parts[:-1] if part != ROOT] or [stem]
    names, scores = _users(mutant), {}
    for path, (imports, words) in _tests().items():
        if not path.name.startswith("test_"):
            continue
        helper = _tests().get(path.with_name("conftest.py"), (set(), set()))
        score = 8 * (path.stem == f"test_{stem}") + 6 * (module in imports)
        score += 3 * (module in helper[0]) + 2 * min(3, len(names & words)) + (stem in words)
        score += 3 * sum(part in path.parts for part in folders)
        score += any(each.startswith(module.rsplit(".", 1)[0]) for each in imports)
        scores[path.as_posix()] = score, -len(words)  # of equal ones, the smallest first
    best = [file for file in scores if scores[file][0] >= 3]
    return sorted(best, key=scores.get, reverse=True)


if __name__ == "__main__":
    sys.exit(main())
