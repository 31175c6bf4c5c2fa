"""The soak test of several workers: its verdict, and a short run of it."""

import sys

import pytest

from cowclip_merlin.errors import InputError


def test_growth_is_an_error(load):
    module, growth = load("worker_soak"), load("worker_scaling.soak").growth

    def result_of(megabytes, threads):
        """The result of a run of one worker with two of each of these samples."""
        samples = [
            {"seconds": i, "megabytes": megabytes[i // 2], "threads": threads[i // 2]}
            for i in range(2 * len(megabytes))
        ]
        facts = {"steps": 20_000, "seconds": 9.0, "tables": "mirrored"}
        return facts | {"samples": [samples], "growth": [growth(samples)]}

    good = result_of([50, 100, 400, 300, 105], [1, 9, 12, 12, 9])
    module.check(good)
    assert "| 0 | 100 | 105 | 9 | 9 |" in module.text(good)
    with pytest.raises(InputError, match="worker 0: 100 MB became 106 MB"):
        module.check(result_of([50, 100, 100, 100, 106], [1, 9, 9, 9, 9]))
    with pytest.raises(InputError, match="worker 0: 9 threads became 10"):
        module.check(result_of([50, 100, 100, 100, 100], [1, 9, 9, 9, 10]))


@pytest.mark.system
def test_a_short_run_is_sampled(load, tmp_path):
    settings = load("worker_scaling.soak").WorkerSoakSettings(
        steps=120, rows=2000, sample_every=0.1, work=tmp_path
    )
    result = load("worker_soak").measure(settings)
    assert result["steps"] >= 120
    assert len(result["samples"]) == len(result["growth"]) == 2
    assert all(x["megabytes"] > 1 and x["threads"] > 0 for w in result["samples"] for x in w)


@pytest.mark.system
def test_a_failed_run_is_one_line(load, tmp_path):
    soak = load("worker_scaling.soak")
    command = [sys.executable, "-c", "import sys; sys.exit('cowclip: error: no rows')"]
    with pytest.raises(InputError, match="failed with exit code 1: cowclip: error: no rows"):
        soak._watch(command, tmp_path / "errors.txt", 0.1)
