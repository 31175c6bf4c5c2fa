"""Results tables and tuned values that were edited by hand, damaged, or written long ago."""

import json

import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.results.folder import (
    check_outputs_replaceable,
    check_results_folder,
    read_tuned,
)
from cowclip_merlin.experiments.results.result import (
    ReplayResult,
    example_result,
    read_results,
    read_rows,
    write_results,
)
from cowclip_merlin.experiments.running.runner import _scores
from cowclip_merlin.system.folders import REPLAYS_CSV, RESULT_TABLES

GOOD = example_result(run_id="GOOD", config_hash="b", seconds=1.5)


def last(before, after):
    """Replace in the last line of the table, that of `GOOD`."""
    return lambda text: (
        text[: text.index("GOOD")] + text[text.index("GOOD") :].replace(before, after)
    )


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (last("0.78", "x"), r"line 3 is damaged \(auc is 'x',"),
        (last("0.78", "78"), r"line 3 is damaged \(auc is 78.0,"),
        (last("0.78", "nan"), r"line 3 is damaged \(auc is nan"),
        (lambda text: text[:-100], r"line 3 is damaged \(it does not have 43"),
        (lambda text: text.rstrip() + ",1\r\n", r"line 3 is damaged \(it does not have 43"),
        (last("done", "ok"), r"line 3 is damaged \(status is 'ok',"),
        (last("test", "dev"), r"line 3 is damaged \(split is 'dev',"),
        (last("1.5", "-1.5"), "seconds is -1.5"),
        (lambda text: text + text[text.index("GOOD") :], "line 4 has the same run as line 3"),
        (last("GOOD", "\udce4"), "not a table of runs"),
        (lambda text: text.replace("auc,", "", 1), r"results\.csv: no column auc;"),
        (lambda text: text.replace("auc,", "auc,note,", 1), "unknown column 'note'"),
        (lambda text: text.replace("auc,log_loss", "log_loss,auc", 1), "have another order"),
        (lambda text: "", r"results\.csv: is empty"),
    ],
)
def test_a_damaged_results_table_is_named(tmp_path, how, words):
    write_results(tmp_path, [example_result(), GOOD])
    path = tmp_path / "results.csv"
    path.write_bytes(how(path.read_bytes().decode()).encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=words) as error:
        read_results(tmp_path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


def test_a_table_of_replays_with_other_columns(tmp_path):
    (tmp_path / REPLAYS_CSV).write_text("run_id,auc\n")
    with pytest.raises(InputError, match=r"replays\.csv: no column "):
        read_rows(tmp_path / REPLAYS_CSV, ReplayResult)


def test_a_byte_order_mark_is_ignored(tmp_path):
    write_results(tmp_path, [example_result()])
    path = tmp_path / "results.csv"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_results(tmp_path) == [example_result()]


def test_seconds_of_an_epoch_that_was_stopped_in_between():
    """Its metrics have the seconds since the last call; the speed tells those of all rows."""
    whole = {"test_auc": 0.75, "test_log_loss": 0.5, "seconds": 100.0, "rows_per_second": 1e4}
    rest = whole | {"seconds": 10.0}
    found = _scores([whole, rest], "done", "test", 1_000_000)
    assert (found["seconds"], found["rows_per_second"]) == (200, 10_000)


def test_a_table_without_a_column_is_refused(tmp_path):
    write_results(tmp_path, [GOOD])
    path = tmp_path / "results.csv"
    path.write_text("\n".join(line.rpartition(",")[0] for line in path.read_text().splitlines()))
    with pytest.raises(InputError, match=r"results\.csv: no column targets; restore a copy, or"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1], r"has \[1\] instead"),
        ({"baseline": 1}, "has 1 instead"),
        ({"baseline": {"l3": 1}}, "'l3'; choose one of"),
        ({"baseline": {"l2": "x"}}, r"values.l2 is 'x'; "),
    ],
)
def test_damaged_tuned_values_are_named(tmp_path, value, words):
    (tmp_path / "tuned.json").write_text(json.dumps({"data": value}))
    with pytest.raises(InputError, match=rf"tuned\.json: .*{words}"):
        read_tuned(tmp_path, "data")


@pytest.mark.parametrize("text", ["[1]", "{", '{"buy": 0.5}', '{"buy": {"auc": "x"}}'])
def test_damaged_scores_of_labels_are_refused(text):
    with pytest.raises(ValueError):
        example_result(targets=text)


@pytest.mark.parametrize("file", RESULT_TABLES)
def test_a_results_folder_may_hold_the_description_of_its_data(tmp_path, file):
    for name in ("dataset.json", file):
        (tmp_path / name).write_text("")
    check_results_folder(tmp_path)


@pytest.mark.parametrize("file", ["tables/sync.json", "figures/sync_over_time.json"])
def test_each_output_of_other_data_is_found(tmp_path, file):
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text('{"fingerprint": "abc"}')
    with pytest.raises(InputError, match="is of other data"):
        check_outputs_replaceable(tmp_path, "sync", "other")
