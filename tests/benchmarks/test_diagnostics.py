"""The benchmark of the diagnostics, on tiny tables."""

import json

import pytest


@pytest.fixture
def benchmark(load):
    return load("diagnostics")


@pytest.mark.runs
@pytest.mark.thorough
def test_both_numbers_of_the_cost_are_in_the_table_and_in_json(benchmark, tmp_path, capsys):
    file = tmp_path / "cost.json"
    small = "--batch-sizes 32,64 --mlp 8 --vocabulary 2000 --every 3 --rounds 2 --seconds 0"
    benchmark.BENCHMARK.main([*small.split(), "--json", str(file)])
    out, result = capsys.readouterr().out, json.loads(file.read_text())
    assert "| 32 |" in out and "| 64 |" in out
    for r in result["results"]:
        assert len(r["rounds"]) == 2 and all(x["watched"] > x["probe"] > 0 for x in r["rounds"])
        assert r["least"] <= r["cost"] <= r["most"]
        assert r["cost_of_probes"] == pytest.approx(r["ms_per_probe"] / r["ms_per_step"] / 3)
    assert result["every"] == 3 and result["hardware"] and result["versions"]["tensorflow"]
    assert result["command"].startswith("python benchmarks/diagnostics.py --batch-sizes")


@pytest.mark.parametrize(
    "bad",
    [["--update", "eager"], ["--every", "0"], ["--vocabulary", "9"], ["--seconds", "inf"],
     ["--mlp", "0"], ["--batch-sizes", "8,8"], ["--json", "no-such-folder/a.json"]],
)  # fmt: skip
def test_wrong_arguments_are_told_in_one_line(benchmark, bad, capsys):
    with pytest.raises(SystemExit) as stopped:
        benchmark.BENCHMARK.main(bad)
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert told.startswith("error: ") and told.count("\n") == 1
