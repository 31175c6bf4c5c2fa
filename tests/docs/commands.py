"""Command lines of the documentation: parsed by the real parsers, and run on small logs."""

from __future__ import annotations

import functools
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cowclip_merlin.cli import build_parser, main
from cowclip_merlin.cli.options import online_settings_from_args
from cowclip_merlin.cli.train import settings_from_args

ROOT = Path(__file__).parents[2]
MOST = {"--rows": 3000, "--events": 3000, "--batch-size": 256, "--epochs": 2}
RUN = {
    "generate",
    "online",
    "prepare",
    "train",
    "inspect",
    "evaluate",
    "explain",
    "fit",
    "score",
    "export",
    "scale",
}  # others take minutes
SHELL = {
    "awk",
    "mkdir",
    "chmod",
    "docker",
    "tensorboard",
    "DRY_RUN=1",
    "apt-get",
    "redis-server",
    "dask",
    "kubectl",
    "$broker",
}
parser = functools.cache(build_parser)  # of all commands, as no line has one of its own
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def lines(block: str) -> list[list[str]]:
    """Words of each command; `$run`, which containers/README.md sets, is `cowclip`."""
    joined = block.replace("\\\n", " ").replace("$run ", "cowclip ")
    split = [shlex.split(line, comments=True) for line in joined.splitlines()]
    return [words for words in split if words]


def check(words: list[str]) -> None:
    """Fail if the command could not be meant.

    Raises:
        SystemExit, InputError: by the own parser of `cowclip` or of a benchmark.
        AssertionError: a file, a target or a program that is not there.
    """
    program, *rest = words
    if "=" in program and rest[:1] == ["python"]:  # a variable for a script
        program, *rest = rest
    if program == "cowclip":
        args = parser().parse_args(_without_file(rest))
        if args.command == "train":
            settings_from_args(args)
        if getattr(args, "online_command", None) == "replay":
            online_settings_from_args(args)
    elif rest[:2] == ["-m", "venv"]:
        assert program == "python3"
    elif rest[:2] == ["-m", "pytest"]:
        assert all((ROOT / word).exists() for word in rest[2:] if "/" in word), rest
    elif re.fullmatch(r"(\.venv-\w+/bin/)?python3?", program):
        target = rest[1].replace(".", "/") + ".py" if rest[0] == "-m" else rest[0]
        assert (ROOT / target).is_file(), target
        if re.fullmatch(r"benchmarks/\w+\.py", target) and rest[1:]:
            check_benchmark(target, rest[1:])
    elif program == "make":
        assert rest[0] in TARGETS, rest[0]
    elif program == "pip":
        files = [rest[i + 1] for i, word in enumerate(rest) if word == "-r"]
        assert all((ROOT / file).is_file() for file in files), files
    elif program.startswith("requirements/"):
        assert (ROOT / program).is_file(), program
    elif program == "curl":
        assert "--json" not in rest, "curl 7.82; Ubuntu 22.04 has 7.81: -d and Content-Type"
    else:
        assert program in SHELL or "=" in program, f"{program}: unknown to this test"


def check_benchmark(script: str, words: list[str]) -> None:
    """Parse the options of a script of benchmarks, or of a part of it.

    Raises:
        SystemExit: by its own parser.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        module = importlib.import_module(Path(script).stem)
        if hasattr(module, "SUITE"):
            assert words[0] in module.SUITE.parts, words[0]
            benchmark, words = module.SUITE.parts[words[0]], words[1:]
        else:
            benchmark = module.BENCHMARK
        benchmark.parser(script).parse_args(words)


def _without_file(words: list[str]) -> list[str]:
    """The same with options in place of a file of settings, which is not there."""
    if "--settings" not in words:
        return words
    index = words.index("--settings")
    return [*words[:index], *words[index + 2 :]]


def run(words: list[str]) -> None:
    """Run what is short: `cowclip` without `bench`, and the examples."""
    program, *rest = words
    if program == "cowclip" and rest[0] in RUN:
        assert main(_small(rest)) == 0, words
    elif program == "python" and rest[0].startswith("examples/"):
        subprocess.run([sys.executable, ROOT / rest[0], *rest[1:]], check=True)


def _small(words: list[str]) -> list[str]:
    """The same on few rows; the second way to make a folder makes one beside it."""
    words = list(words)
    for option, most in MOST.items():
        if option in words:
            index = words.index(option) + 1
            words[index] = str(min(int(words[index]), most))
    if words[0] == "train" and "--epochs" not in words:
        words += ["--epochs", "1"]
    if "--out" in words:
        index = words.index("--out") + 1
        while Path(words[index]).is_dir():
            words[index] += "-too"
    return words
