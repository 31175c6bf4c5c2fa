"""What benchmarks compute themselves: ratios and times."""

import numpy as np
import pytest

from cowclip_merlin.training import run_logs


@pytest.fixture(scope="module")
def workers(load):
    return load("workers")


def test_runs_are_read_without_their_first_epoch(workers, tmp_path):
    unread = {n: 0.5 for n in run_logs.METRICS if not n.startswith("validation_")}
    rows = [
        unread | {"epoch": i + 1, "step": 20, "rows_per_second": 1000 / s}
        for i, s in enumerate((9, 1, 3))
    ]
    run_logs.write_metrics(tmp_path / "metrics.csv", rows)
    line = "sent 2.5 MB a step to 1 other workers\n"
    (tmp_path / "train.log").write_text(line.replace("2.5", "9") + line * 2)
    found = workers.read_logs(tmp_path, workers.Case(100, "mirrored", 2), 1000, 3)
    assert found.step_ms == pytest.approx([100, 300]) and found.sent == [2.5e6] * 2


def test_the_clock_starts_after_the_warm_up(load, monkeypatch):
    job, now, waited = load("contestants.job"), iter([100.0, 104.0]), []
    monkeypatch.setattr(job.time, "perf_counter", lambda: next(now))
    clock = job.Clock(lambda: waited.append(1))
    for rows, steps in ((64, 1), (64, job.WARM_UP_STEPS - 1), (320, 5), (80, 2)):
        clock.tick(rows, steps)
    assert clock.rate() == 400 / 4 and len(waited) == 2


def test_ratios_are_those_of_the_rounds(load):
    peers = load("peers")

    def turns(*speeds):
        return [{"rows_per_second": speed, "auc": 0.5} for speed in speeds]

    made = {(64, name): turns(20.0, 20.0, 30.0) for name in peers.PeerSettings.contestants}
    made[64, peers.REFERENCE] = turns(10.0, 40.0, 10.0)
    assert peers.result_of((64, "deepctr"), made)["ratio_to_cowclip"] == 2.0  # of 2, 0.5 and 3


def test_an_id_is_its_smoothed_click_rate_and_its_count(load):
    others, ids = load("contestants.with_defaults"), np.array([[0, 1], [0, 2], [1, 2], [0, 0]], "i")
    numbers = np.array([[0.5], [0.25], [0.125], [1]], np.float32)
    rows = others.Rows(ids, numbers, np.array([1.0, 0, 0, 1]), np.array([3, 3]))
    new = others.Rows(np.array([[2, 2]], np.int32), numbers[:1], np.zeros(0), np.array([3, 3]))
    rates = [(2 + 5) / 13, 5 / 11, 5 / 10], [6 / 11, 6 / 11, 5 / 12]  # of no clicks in two rows
    counts = [3, 1, 0], [1, 1, 2]
    for asked in (rows, new):
        found = [[by[j][row[j]] for by in (rates, counts) for j in (0, 1)] for row in asked.ids]
        expected = np.column_stack([found, asked.numbers])
        np.testing.assert_allclose(others.encoded(rows, asked), expected)
    numbers = np.array([[0.5], [0.25]], np.float32)
    rows = others.Rows(ids[[1, 2]], numbers, np.zeros(0), np.array([2, 3]))
    expected = [[1, 0, 0, 0, 1, 0.5], [0, 1, 0, 0, 1, 0.25]]
    np.testing.assert_array_equal(others.one_hot(rows).toarray(), expected)
