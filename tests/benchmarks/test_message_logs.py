"""The benchmark of message logs, small, on a log in files."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.system
def test_a_small_benchmark(load, tmp_path, capsys):
    file = tmp_path / "logs.json"
    load("message_logs").BENCHMARK.main(
        ["--logs", str(tmp_path / "log"), "--batches", "1", "50", "--rows", "64", "--seconds",
         "0.02", "--round-trips", "20", "--rounds", "2", "--json", str(file)]
    )  # fmt: skip
    results = json.loads(file.read_text())["results"]
    cases = [("messages", 1), ("messages", 50), ("sync rows", 64), ("there and back", 1)]
    assert [(r["what"], r["size"]) for r in results] == cases
    assert all(r["log"] == "files" and len(r["rounds"]) == 2 for r in results)
    speeds = [value for r in results for key, value in r.items() if "_per_second" in key]
    assert len(speeds) == 6 and min(speeds) > 0
    assert results[2]["message_bytes"] > 64 * (8 + 8 + 44)
    assert results[3]["p99_ms"] >= results[3]["median_ms"] > 0
    assert "| files | 64 |" in capsys.readouterr().out
    assert [each.name for each in tmp_path.iterdir()] == ["logs.json"]


@pytest.mark.parametrize(
    "wrong, words",
    [
        (["--batches", "0"], "--batches is 0"),
        (["--round-trips", "3"], "--round-trips is 3"),
        (["--seconds", "0"], "--seconds is 0.0"),
        (["--logs", "amqp://host/a"], "unknown kind of log 'amqp'"),
    ],
)
def test_wrong_settings_are_one_line(load, wrong, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        load("message_logs").BENCHMARK.main(wrong)
    told = capsys.readouterr().err
    assert stopped.value.code == 2 and words in told and told.count("\n") == 1


def test_tables_of_the_page_are_those_of_the_recorded_measurement(load):
    (file,) = (ROOT / "benchmarks/results").glob("*-message-logs.json")
    page = (ROOT / "docs/serving-performance.md").read_text()
    recorded = json.loads(file.read_text())
    for table in load("message_logs").text(recorded).split("\n\n"):
        assert table in page
    assert file.name in page and f"{recorded['load_before']}" in page
