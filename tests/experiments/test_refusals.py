"""What `cowclip experiment` refuses before the first run."""

import errno
import json
from pathlib import Path

import pytest
from small_experiment import experiment

from cowclip_merlin.cli import main
from cowclip_merlin.experiments.results.csv_table import read_rows
from cowclip_merlin.experiments.results.folder import (
    check_outputs_replaceable,
    check_results_folder,
)
from cowclip_merlin.experiments.results.replay_result import ReplayResult
from cowclip_merlin.experiments.results.result import example_result
from cowclip_merlin.experiments.results.results_csv import read_results, write_results
from cowclip_merlin.experiments.tables.files import read_table, write_table
from cowclip_merlin.experiments.tables.table import Table
from cowclip_merlin.system.folders import REPLAYS_CSV, RESULT_TABLES


def refused(capsys, words, *arguments, left=()):
    """Whether a command ends in one line with these words, and leaves nothing else behind."""
    out = arguments[2]
    assert experiment(*arguments) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(said) == 1 and words in said[0], said
    return not out.exists() or {path.name for path in out.iterdir()} == set(left)


@pytest.mark.parametrize("file", RESULT_TABLES)
def test_a_results_folder_may_hold_the_description_of_its_data(tmp_path, file):
    for name in ("dataset.json", file):
        (tmp_path / name).write_text("")
    check_results_folder(tmp_path)


def test_a_folder_that_cannot_be_written(mine, data, tmp_path, capsys, monkeypatch):
    def touch(path, *arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    out = tmp_path / "results"
    out.mkdir()
    monkeypatch.setattr(Path, "touch", touch)
    words = "results.csv: cannot be written (Read-only"
    assert refused(capsys, words, mine, data, out)


@pytest.mark.one_case
@pytest.mark.parametrize(("first", "second"), [("1", "1/2"), ("1/2", "1"), ("1/2", "1/3")])
def test_outputs_of_another_share_of_the_rows_are_not_replaced(
    data, tmp_path, capsys, first, second
):
    out = tmp_path / "results"
    assert experiment("figure3", data, out, "--scale", first) == 0
    left, file = {path.name for path in out.iterdir()}, out / "figures" / "figure3.json"
    before = file.read_bytes()
    words = "figure3.json: is of other data"
    assert refused(capsys, words, "figure3", data, out, "--scale", second, left=left)
    assert file.read_bytes() == before


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"name": ', "damaged JSON ("),
        ("[1]", "is no table or figure"),
    ],
)
def test_a_damaged_output_can_be_deleted(data, tmp_path, capsys, text, words):
    out = tmp_path / "results"
    file = out / "figures" / "figure3.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert refused(capsys, f"{file}: {words}", "figure3", data, out, left={"figures"})
    assert file.read_text() == text
    file.unlink()
    assert experiment("figure3", data, out) == 0


@pytest.mark.parametrize("file", ["tables/sync.json", "figures/sync_over_time.json"])
def test_each_output_of_other_data_is_found(tmp_path, file):
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text('{"fingerprint": "abc"}')
    with pytest.raises(ValueError, match="is of other data"):
        check_outputs_replaceable(tmp_path, "sync", "other")


@pytest.mark.thorough
def test_outputs_of_the_same_data_are_replaced(mine, data, tmp_path, capsys):
    out = tmp_path / "results"
    arguments = ["--lines", "no scaling", "--seeds", "1"]
    assert experiment(mine, data, out, *arguments) == 0
    table = read_table(out / "tables" / "mine.json")
    assert len(table.fingerprint) == 64
    figure = json.loads((out / "figures" / "mine_auc.json").read_text())
    assert figure["fingerprint"] == table.fingerprint
    assert experiment(mine, data, out, *arguments) == 0
    write_table(out / "tables", Table(**vars(table) | {"fingerprint": ""}))  # of an older version
    assert experiment(mine, data, out, *arguments) == 0


def test_a_figure_of_ids_without_ids(log, tmp_path, capsys, recwarn):
    data = tmp_path / "data"
    prepare = ["prepare", "criteo", str(log), "--out", str(data), "--freq-threshold", "1000000"]
    assert main(prepare) == 0
    words = f"{data}: every id is missing"
    assert refused(capsys, words, "figure3", data, tmp_path / "results")
    assert not [str(each.message) for each in recwarn.list if "legend" in str(each.message)]


@pytest.mark.thorough
def test_spaces_around_the_names_of_lines_do_not_matter(mine, data, tmp_path, capsys):
    lines = ["--lines", " no scaling ; CowClip", "--dry-run"]
    assert experiment(mine, data, tmp_path / "results", *lines) == 0
    assert "6 runs, about" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (lambda text: text.replace("auc,", "", 1), "results.csv: no column auc;"),
        (lambda text: text.replace("auc,", "auc,note,", 1), "unknown column 'note'"),
        (lambda text: text.replace("auc,log_loss", "log_loss,auc", 1), "have another order"),
        (lambda text: "", "results.csv: is empty"),
    ],
)
def test_a_table_of_results_with_other_columns(tmp_path, how, words):
    write_results(tmp_path, [example_result()])
    path = tmp_path / "results.csv"
    path.write_text(how(path.read_text()))
    with pytest.raises(ValueError, match=words):
        read_results(tmp_path)


def test_a_table_of_replays_with_other_columns(tmp_path):
    (tmp_path / REPLAYS_CSV).write_text("run_id,auc\n")
    with pytest.raises(ValueError, match=r"replays\.csv: no column "):
        read_rows(tmp_path / REPLAYS_CSV, ReplayResult)


def test_a_byte_order_mark_is_ignored(tmp_path):
    write_results(tmp_path, [example_result()])
    path = tmp_path / "results.csv"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_results(tmp_path) == [example_result()]
