"""The benchmark of outages, small, and its tables on the page."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.runs
@pytest.mark.thorough
@pytest.mark.parametrize("rule", ["cowclip", "sde"])
def test_a_small_benchmark(load, tmp_path, capsys, rule):
    file = tmp_path / "outages.json"
    load("outages").BENCHMARK.main(
        ["--rows", "4000", "--seeds", "1", "--snapshot-hours", "12", "--catch-up", "1,4",
         "--batch-size", "64", "--rule", rule, "--json", str(file)]
    )  # fmt: skip
    result = json.loads(file.read_text())
    assert list(result["skip"]) == ["none", "12 h"]
    assert list(result["backlog"]) == ["1", "4", "4, not scaled", "not trained"]
    every = [*result["skip"].values(), *result["backlog"].values()]
    assert all(0 < each["auc"] < 100 for each in every)
    assert result["backlog"]["4"]["auc"] != result["backlog"]["4, not scaled"]["auc"]
    assert "| not trained |" in capsys.readouterr().out


def test_a_wrong_number_is_one_line(load, capsys):
    with pytest.raises(SystemExit) as stopped:
        load("outages").BENCHMARK.main(["--seeds", "0"])
    told = capsys.readouterr().err
    assert stopped.value.code == 2 and "--seeds" in told and told.count("\n") == 1


def test_tables_of_the_page_are_those_of_the_recorded_measurement(load):
    (file,) = (ROOT / "benchmarks/results").glob("*-outages.json")
    page = (ROOT / "docs/online-results.md").read_text()
    for table in load("outages").text(json.loads(file.read_text())).split("\n\n"):
        assert table in page
    assert file.name in page
