"""The command line: help, exit codes, full disks."""

import argparse
import errno
import functools
import os
import shlex
import signal
import subprocess
import sys

import hypothesis
import pytest
from hypothesis import strategies as st

from cowclip_merlin import choices, cli
from cowclip_merlin.cli import COMMANDS, build_parser, main
from cowclip_merlin.cli.train import settings_from_args, train_command
from cowclip_merlin.errors import StackError, error_message
from cowclip_merlin.scaling import RULES
from cowclip_merlin.training.run_settings import RunSettings

parser = functools.cache(build_parser)


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def disk_full(disk, command, capfd):
    code = main(command)
    error = capfd.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("cowclip: error")]
    assert code == 2, error
    assert len(lines) == 1 and f": {disk / 'out'}: no space left" in lines[0], lines
    assert not list(disk.iterdir()), "half-written output"


@pytest.mark.one_case
@pytest.mark.system
@pytest.mark.parametrize("command", ["prepare", "train", "generate"])
def test_disk_full(command, small_disk, data, log, capfd):
    out = ["--out", str(small_disk / "out")]
    disk_full(
        small_disk,
        {
            "prepare": ["prepare", "criteo", str(log), *out],
            "train": ["train", str(data), *out, "--model", "deepfm", "--batch-size", "256",
                      "--epochs", "1"],
            "generate": ["generate", "--rows", "5000", *out],
        }[command],
        capfd,
    )  # fmt: skip


def test_an_interrupt_while_the_options_are_built_is_one_line(monkeypatch, capsys):
    def interrupt(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "build_parser", interrupt)
    assert main(["scale", "--to", "8"]) == 130
    assert capsys.readouterr().err == "cowclip: interrupted\n"


def test_a_fault_of_ours_is_exit_code_1(monkeypatch, capsys):
    def broken(*_, **__):
        raise RuntimeError("boom")

    monkeypatch.setattr("cowclip_merlin.cli.bench.scale", broken)
    assert main(["scale", "--to", "2048"]) == 1
    assert "boom" in capsys.readouterr().err


@pytest.mark.system
def test_a_reader_that_has_seen_enough_is_no_error():
    """As in `cowclip experiment --list | head -1`, where Python flushes at its end once more."""
    command = [sys.executable, "-m", "cowclip_merlin", "experiment", "--list"]
    there = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=there
    ) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, b"")


class ResourceExhaustedError(Exception):
    """As TensorFlow names its own."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModuleNotFoundError("no", name="nvtabular"), "nvtabular is not installed"),
        (StackError("TensorFlow 2.21 has Keras 3"), "TensorFlow 2.21 has Keras 3"),
        (MemoryError("Unable to allocate 3 GiB"), "not enough memory (Unable"),
        (ResourceExhaustedError("OOM when allocating"), "not enough memory (OOM"),
    ],
)
def test_what_the_machine_lacks_is_one_line(monkeypatch, capsys, error, words):
    def lacking(*_, **__):
        raise error

    monkeypatch.setattr("cowclip_merlin.cli.bench.scale", lacking)
    assert main(["scale", "--to", "2048"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"cowclip: error: {words}") and len(said.splitlines()) == 1


def test_a_missing_module_of_ours_is_a_fault_of_ours(monkeypatch, capsys):
    def lacking(*_, **__):
        raise ModuleNotFoundError("no", name="cowclip_merlin.nothing")

    monkeypatch.setattr("cowclip_merlin.cli.bench.scale", lacking)
    assert main(["scale", "--to", "2048"]) == 1
    assert "bug in cowclip" in capsys.readouterr().err


def test_sigterm_unwinds_and_the_handler_of_before_is_back(monkeypatch):
    left = []

    def ended(*_, **__):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            left.append("cleaned up")

    monkeypatch.setattr("cowclip_merlin.cli.bench.scale", ended)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        main(["scale", "--to", "2048"])
    assert end.value.code == 143 and left == ["cleaned up"]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"cowclip {command}" in capsys.readouterr().out.split("examples:")[1]


def all_actions(parser):
    """Actions of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from all_actions(command)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_every_option_is_and_its_default(command):
    actions = list(all_actions(parser()._subparsers._group_actions[0].choices[command]))
    assert not [action.dest for action in actions if not action.help]
    silent = [
        action.option_strings[0]
        for action in actions
        if action.default not in (None, False, "", argparse.SUPPRESS, 0.0)
        and action.option_strings
        and "default: " not in action.help
    ]
    assert not silent


def test_scale_prints_every_rule(capsys):
    assert main(["scale", "--dataset", "criteo", "--to", "131072"]) == 0
    out = capsys.readouterr().out
    for text in ("n2_lambda", "sqrt_star", "0.00128", "0.00905097"):
        assert text in out


def test_scale_prints_the_betas_of_sde(capsys):
    assert main(["scale", "--dataset", "criteo", "--to", "32768", "--rule", "sde"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    expected = {"beta_1": "0.7", "beta_2": "0.968", "epsilon": "1.76777e-08", "clip": "none"}
    assert expected.items() <= {line[0]: line[-1] for line in lines if line}.items()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_file_that_cannot_grow_names_the_output(number):
    assert error_message(OSError(number, "x"), target="OUT").startswith("OUT: ")


ONE_OF = {
    "model": choices.MODELS,
    "rule": tuple(RULES),
    "clip": (None, *choices.CLIPS),
    "update": choices.UPDATES,
    "preset": (None, "criteo", "avazu"),
    "precision": choices.PRECISIONS,
    "continuous": choices.CONTINUOUS,
    "tables": choices.RUN_TABLES,
    "backend": choices.BACKENDS,
    "jit_compile": (False, True),
}


@hypothesis.given(st.data())
def test_the_command_of_settings_gives_the_settings(data):
    known = {name: data.draw(st.sampled_from(values)) for name, values in ONE_OF.items()}
    if known["tables"] == "sharded" and known["clip"] not in (None, *choices.kernel_clips()):
        known["clip"] = None  # other clips need the norms of several rows
    sizes = ("batch_size", "base_batch_size", "epochs", "seed", "embedding_dim")
    known |= {name: data.draw(st.integers(1, 2**31)) for name in sizes}
    known["mlp"] = tuple(data.draw(st.lists(st.integers(1, 999), min_size=1, max_size=3)))
    known["validation_fraction"] = data.draw(st.floats(0, 0.99))
    if known["validation_fraction"]:
        known["early_stopping"] = data.draw(st.none() | st.integers(1, 9))
    plain = st.sampled_from(["embedding_lr", "dense_lr", "l2", "init_std", "warmup_epochs"])
    known["overrides"] = data.draw(st.dictionaries(plain, st.floats(0, 1e9)))
    settings = RunSettings(**known)
    args = parser().parse_args(shlex.split(train_command(settings))[1:])
    assert settings_from_args(args) == settings


def test_the_command_leaves_out_what_the_clip_does_not_read():
    settings = RunSettings(model="dcn", batch_size=8, rule="none", overrides={"r": 0.5, "l2": 1.0})
    assert train_command(settings).endswith("--rule none --update dense --l2 1.0")


@pytest.mark.system
def test_the_program_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "cowclip_merlin", "scale", "--to", "0"], capture_output=True,
        text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("words", [[], ["online"]])
def test_without_a_command_it_helps(words, capsys):
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: cowclip") and "COMMAND" in said
    if not words:
        assert said.index("train") < said.index("score") < said.index("generate")
