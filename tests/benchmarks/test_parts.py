"""What benchmarks compute themselves: ratios and times."""

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
