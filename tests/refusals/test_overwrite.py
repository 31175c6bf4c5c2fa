"""A file of the user's is replaced if a command is asked to; the YAML files have the others."""

import pytest

from cowclip_merlin.cli import main


@pytest.fixture(scope="module")
def folder(copy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mine")
    for name in ("data", "run", "table"):
        copy(name, folder)
    return folder


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("evaluate run data --predictions mine.csv", "mine.csv"),
        ("generate --rows 9 --out mine", "mine"),
        ("inspect run --out .", "clip.svg"),
        ("explain table/RUN table/new.csv --out f.svg --repeats 1", "f.svg"),
        ("export table/RUN --out MODEL", "MODEL/saved_model.pb"),
        ("train table/DATA --out table/RUN --batch-size 32 --epochs 1", "table/RUN/metrics.csv"),
        ("score table/RUN table/new.csv --out scores.csv", "scores.csv"),
    ],
)
def test_a_file_is_replaced_if_asked(words, name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    if words.startswith("export"):
        assert main(words.split()) == 0
    (folder / name).write_text("the user's")
    assert main([*words.split(), "--overwrite"]) == 0
    assert (folder / name).read_bytes() != b"the user's"


@pytest.mark.thorough
def test_figures_of_a_run_are_drawn_again_in_the_run(folder):
    assert main(["inspect", str(folder / "run")]) == main(["inspect", str(folder / "run")]) == 0


def test_a_run_stays_if_the_next_one_fails(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    before = (folder / "run/config.json").read_bytes()
    assert main(["train", "data", "--out", "run", "--overwrite", "--batch-size", "1000000"]) == 2
    assert (folder / "run/config.json").read_bytes() == before
    assert not [*folder.glob(".run*")]
