"""A file of the user's is replaced if a command is asked to; tests/refusals has the others."""

import pytest

from cowclip_merlin.cli import main

COMMANDS = {
    "evaluate": lambda p, data, run: (
        ["evaluate", str(run), str(data), "--predictions", str(p / "mine.csv")], "mine.csv"
    ),
    "generate": lambda p, data, run: (
        ["generate", "--rows", "9", "--out", str(p / "mine")], "mine"
    ),
    "inspect": lambda p, data, run: (["inspect", str(run), "--out", str(p)], "clip.svg"),
}  # fmt: skip


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("probed") / "run"
    words = ["--model", "deepfm", "--batch-size", "512", "--mlp", "8", "--epochs", "1"]
    command = ["train", str(data), "--out", str(folder), *words, "--diagnostics-every", "2"]
    assert main(command) == 0
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_is_replaced_if_asked(command, data, run, tmp_path):
    words, name = COMMANDS[command](tmp_path, data, run)
    (tmp_path / name).write_text("the user's")
    assert main([*words, "--overwrite"]) == 0
    assert (tmp_path / name).read_bytes() != b"the user's"


@pytest.mark.thorough
def test_figures_of_a_run_are_drawn_again_in_the_run(run):
    assert main(["inspect", str(run)]) == main(["inspect", str(run)]) == 0
