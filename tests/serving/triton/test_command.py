"""`cowclip export --triton`: what it prints, and what it refuses."""

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
