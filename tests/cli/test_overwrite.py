"""No command replaces a file of the user's unless it is asked to."""

import pytest

from cowclip_merlin.cli import main

BENCH = ["bench", "--model", "deepfm", "--batch-sizes", "256", "--update", "dense", "--rounds", "1"]
COMMANDS = {
    "evaluate": lambda p, data, run: (
        ["evaluate", str(run), str(data), "--predictions", str(p / "mine.csv")], "mine.csv"
    ),
    "generate": lambda p, data, run: (
        ["generate", "--rows", "9", "--out", str(p / "mine")], "mine"
    ),
    "generate, what is known": lambda p, data, run: (
        ["generate", "--rows", "9", "--out", str(p / "log")], "log.json"
    ),
    "bench": lambda p, data, run: ([*BENCH, "--json", str(p / "mine")], "mine"),
    "inspect": lambda p, data, run: (["inspect", str(run), "--out", str(p)], "clip.svg"),
    "report": lambda p, data, run: (["report", str(p), "--out", str(p / "mine")], "mine"),
}  # fmt: skip


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("probed") / "run"
    words = ["--model", "deepfm", "--batch-size", "512", "--mlp", "8", "--epochs", "1"]
    command = ["train", str(data), "--out", str(folder), *words, "--diagnostics-every", "2"]
    assert main(command) == 0
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_there_stays(command, data, run, tmp_path, capsys):
    words, name = COMMANDS[command](tmp_path, data, run)
    (tmp_path / name).write_text("the user's")
    assert main(words) == 2
    error = capsys.readouterr().err
    assert f"{name}: already exists" in error
    assert (tmp_path / name).read_text() == "the user's"
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("command", ["evaluate", "generate", "inspect"])
def test_a_file_is_replaced_if_asked(command, data, run, tmp_path):
    words, name = COMMANDS[command](tmp_path, data, run)
    (tmp_path / name).write_text("the user's")
    assert main([*words, "--overwrite"]) == 0
    assert (tmp_path / name).read_bytes() != b"the user's"


@pytest.mark.parametrize(
    ("command", "option"),
    [("evaluate RUN DATA", "--predictions"), ("bench", "--json"), ("inspect RUN", "--out")],
)
def test_nothing_to_replace_is_refused(command, option, data, run, capsys):
    folders = {"RUN": str(run), "DATA": str(data)}
    assert main([*(folders.get(word, word) for word in command.split()), "--overwrite"]) == 2
    assert f"--overwrite has no effect without {option};" in capsys.readouterr().err


@pytest.mark.thorough
def test_figures_of_a_run_are_drawn_again_in_the_run(run):
    assert main(["inspect", str(run)]) == main(["inspect", str(run)]) == 0
