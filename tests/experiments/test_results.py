"""Results tables and tuned values that were edited by hand, damaged, or written long ago."""

import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.on_data.trainings import score_columns
from cowclip_merlin.experiments.results import (
    check_outputs_replaceable,
    check_results_folder,
    example_result,
    read_results,
    write_results,
)
from cowclip_merlin.system.folders import RESULT_TABLES


def test_a_byte_order_mark_is_ignored(tmp_path):
    write_results(tmp_path, [example_result()])
    path = tmp_path / "results.csv"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_results(tmp_path) == [example_result()]


def test_seconds_of_an_epoch_that_was_stopped_in_between():
    """Its metrics have the seconds since the last call; the speed tells those of all rows."""
    whole = {"test_auc": 0.75, "test_log_loss": 0.5, "seconds": 100.0, "rows_per_second": 1e4}
    rest = whole | {"seconds": 10.0}
    found = score_columns([whole, rest], "done", "test", 1_000_000)
    assert (found["seconds"], found["rows_per_second"]) == (200, 10_000)


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
