"""Results tables and tuned values that were edited by hand, damaged, or written long ago."""

import json

import pytest
from small_experiment import experiment

from cowclip_merlin.experiments.results.result import example_result
from cowclip_merlin.experiments.results.results_csv import (
    append_result,
    read_results,
    write_results,
)
from cowclip_merlin.experiments.running.run_result import _scores
from cowclip_merlin.workflows import PreparedData

GOOD = example_result(run_id="GOOD", config_hash="b", seconds=1.5)


def damaged(text, how):
    """The table with its last line, that of `GOOD`, changed."""
    first, last = text[: text.index("GOOD")], text[text.index("GOOD") :]
    return first + how(last)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (lambda line: line.replace("0.78", "x"), "line 3 is damaged (auc is 'x',"),
        (lambda line: line.replace("0.78", "78"), "line 3 is damaged (auc is 78.0,"),
        (lambda line: line.replace("0.78", "nan"), "line 3 is damaged (auc is nan"),
        (lambda line: line[: len(line) // 2], "line 3 is damaged (it does not have 43"),
        (lambda line: line.rstrip() + ",1\r\n", "line 3 is damaged (it does not have 43"),
        (lambda line: line.replace("done", "ok"), "line 3 is damaged (status is 'ok',"),
        (lambda line: line.replace("test", "dev"), "line 3 is damaged (split is 'dev',"),
        (lambda line: line.replace("1.5", "-1.5"), "seconds is -1.5"),
        (lambda line: line + line, "line 4 has the same run as line 3"),
        (lambda line: line.replace("GOOD", "\udce4"), "not a table of runs"),
    ],
)
def test_a_damaged_results_table_is_named(mine, data, tmp_path, capsys, how, words):
    out = tmp_path / "results"
    out.mkdir()
    write_results(out, [example_result(), GOOD])
    path = out / "results.csv"
    text = damaged(path.read_bytes().decode(), how)
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert experiment(mine, data, out) == 2
    said = capsys.readouterr().err
    assert "results.csv: " in said and words in said
    assert not (out / "runs").exists()


def test_seconds_of_an_epoch_that_was_stopped_in_between():
    """Its metrics have the seconds since the last call; the speed tells those of all rows."""
    whole = {"test_auc": 0.75, "test_log_loss": 0.5, "seconds": 100.0, "rows_per_second": 1e4}
    rest = whole | {"seconds": 10.0}
    found = _scores([whole, rest], "done", "test", 1_000_000)
    assert (found["seconds"], found["rows_per_second"]) == (200, 10_000)


BETAS = "beta_1,beta_2,epsilon,targets"


@pytest.mark.parametrize(
    "missing", ["targets", BETAS, f"auc_error,{BETAS}", f"versions,auc_error,{BETAS}"]
)
def test_a_table_of_an_earlier_version_is_read_and_added_to(tmp_path, missing):
    write_results(tmp_path, [GOOD])
    path = tmp_path / "results.csv"
    lines = path.read_text().splitlines()
    commas = missing.count(",") + 1
    assert lines[0].endswith("," + missing) and lines[1].endswith("," * commas)
    path.write_text(f"{lines[0].removesuffix(',' + missing)}\n{lines[1][:-commas]}\n")
    assert read_results(tmp_path) == [GOOD]
    new = example_result(versions="python 3.11.9, numpy 1.26.4", auc_error=0.0007, beta_1=0.7)
    append_result(tmp_path, new)
    assert read_results(tmp_path) == [GOOD, new]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1], "has [1] instead"),
        ({"baseline": 1}, "has 1 instead"),
        ({"baseline": {"l3": 1}}, "'l3'; choose one of"),
        ({"baseline": {"l2": "x"}}, "values.l2 is 'x'; "),
    ],
)
def test_damaged_tuned_values_are_named(mine, data, tmp_path, capsys, value, words):
    out = tmp_path / "results"
    out.mkdir()
    (out / "tuned.json").write_text(json.dumps({PreparedData.load(data).fingerprint: value}))
    assert experiment(mine, data, out) == 2
    said = capsys.readouterr().err
    assert "tuned.json: " in said and words in said


@pytest.mark.parametrize("text", ["[1]", "{", '{"buy": 0.5}', '{"buy": {"auc": "x"}}'])
def test_damaged_scores_of_labels_are_refused(text):
    with pytest.raises(ValueError):
        example_result(targets=text)
