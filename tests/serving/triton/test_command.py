"""`cowclip export --triton`: what it prints, and what it refuses."""

import shutil

import pytest

from cowclip_merlin import compat
from cowclip_merlin.cli import main


@pytest.fixture
def export(trained_table, tmp_path, capsys):
    """Runs the command; returns its exit code and what it wrote to both streams."""

    def run(*words, data="DATA", out="REPO"):
        paths = [str(trained_table / "RUN"), str(trained_table / data)]
        code = main(["export", *paths, "--out", str(tmp_path / out), *words])
        return code, capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--model-name", "x"], "--model-name is for Triton; "),
        (["--model-version", "2"], "--model-version is for Triton; "),
        (["--max-batch-size", "9"], "--max-batch-size is for Triton; "),
        (["--triton", "--model-name", "a/b"], "--model-name 'a/b': "),
        (["--triton", "--model-version", "0"], "--model-version is 0; "),
        (["--triton", "--max-batch-size", "-1"], "--max-batch-size is -1; "),
    ],
)
def test_options_that_do_not_fit_are_refused(export, tmp_path, words, error):
    code, told = export(*words)
    assert code == 2 and error in told.err and told.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_stays_as_it_is(export, tmp_path):
    (tmp_path / "REPO").mkdir()
    (tmp_path / "REPO/mine").write_text("mine")
    code, told = export("--triton")
    assert code == 2 and "REPO: already exists" in told.err
    assert [file.name for file in tmp_path.rglob("*")] == ["REPO", "mine"]


@pytest.mark.thorough
def test_nothing_is_left_of_an_export_that_fails(export, tmp_path, monkeypatch):
    def full(*_, **__):
        raise compat.tensorflow().errors.ResourceExhaustedError(None, None, "No space left")

    monkeypatch.setattr(compat.tensorflow().saved_model, "save", full)
    code, told = export("--triton")
    assert code == 2 and "no space left" in told.err and not list(tmp_path.iterdir())


def test_a_damaged_vocabulary_is_named(trained_table, tmp_path, capsys):
    data = shutil.copytree(trained_table / "DATA", tmp_path / "DATA")
    file = data / "counts/user id.parquet"
    file.write_bytes(file.read_bytes()[:-9] + b"x" * 9)
    words = ["export", str(trained_table / "RUN"), str(data), "--out", str(tmp_path / "REPO")]
    assert main([*words, "--triton"]) == 2
    assert "counts/user id.parquet: damaged parquet" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["DATA"]
