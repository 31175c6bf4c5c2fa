"""The step against the vocabulary, on tiny tables."""

import json

import numpy as np
import pytest

from cowclip_merlin.bench.random_data import criteo_fields


@pytest.fixture
def vocabulary(load):
    return load("vocabulary")


@pytest.fixture
def small():
    return ["--vocabularies", "2000,4000", "--batch-sizes", "32,64", "--mlp", "8", "--rounds", "1",
            "--steps", "2", "--warm-up", "3", "--missed", "12"]  # fmt: skip


@pytest.mark.runs
@pytest.mark.thorough
def test_every_line_is_in_the_table_and_in_json(vocabulary, small, tmp_path, capsys):
    file, figure = tmp_path / "vocabulary.json", tmp_path / "vocabulary.svg"
    vocabulary.BENCHMARK.main([*small, "--json", str(file), "--figure", str(figure)])
    out, result = capsys.readouterr().out, json.loads(file.read_text())
    for batch in (32, 64):
        for update in ("dense", "exact", "lazy"):
            for ids in ("2,000", "4,000"):
                assert f"| {batch} | {update} | {ids} |" in out
    rows = result["results"]
    assert len(rows) == 2 * 2 * 3 and all(len(r["rounds"]) == 1 for r in rows)
    assert all(0 < r["fastest"] <= r["ms_per_step"] <= r["slowest"] for r in rows)
    assert all(r["ratio_to_smallest"] == 1 for r in rows if r["vocabulary"] == 2000)
    assert [(f["vocabulary"], f["missed_steps"]) for f in result["flushes"]] == [
        (2000, 12), (4000, 12)
    ]  # fmt: skip
    assert all(f["seconds"] > 0 for f in result["flushes"])
    assert "| 2,000 | 12 |" in out and "| 4,000 | 12 |" in out
    distinct = {(d["vocabulary"], d["batch"]): d["rows"] for d in result["distinct_rows"]}
    assert all(distinct[2000, b] == distinct[4000, b] > b for b in (32, 64))
    assert result["hardware"] and result["versions"]["tensorflow"] and result["date"]
    assert result["command"].startswith("python benchmarks/vocabulary.py --vocabularies")
    assert str(tmp_path) not in file.read_text()
    drawn = figure.read_bytes()
    vocabulary.draw_figure(result, figure)
    assert drawn == figure.read_bytes() and b"exact and its flush" in drawn


def test_what_does_not_fit_is_left_out(vocabulary, small, monkeypatch, capsys):
    settings = vocabulary.BENCHMARK.settings_from(
        vocabulary.BENCHMARK.parser().parse_args([*small, "--memory-factor", "4"])
    )
    monkeypatch.setattr(vocabulary, "bytes_left", lambda: 4 * settings.table_bytes(4000) - 1)
    assert vocabulary.fitting(settings) == [2000]
    assert "omitted: 4,000 ids" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        vocabulary.BENCHMARK.main([*small, "--memory-factor", "1e9"])
    assert stopped.value.code == 2 and "no vocabulary fits" in capsys.readouterr().err


@pytest.mark.parametrize("vocabulary_size", [2000, 4000, 123_457])
def test_ids_are_spread_one_to_one_within_their_fields(vocabulary, vocabulary_size):
    settings = vocabulary.VocabularySettings(vocabularies=(2000,), batches=(64,))
    fields, rows = criteo_fields(vocabulary_size), vocabulary.draw(settings)
    moved = vocabulary.spread(rows, fields).ids
    assert (moved >= 0).all() and (moved.max(axis=0) < np.array(list(fields.values()))).all()
    for before, after in zip(rows.ids.T, moved.T, strict=True):
        pairs = {*zip(before.tolist(), after.tolist(), strict=True)}
        assert len(pairs) == len({*before.tolist()}) == len({*after.tolist()})


@pytest.mark.parametrize(
    "bad",
    [["--updates", "eager"], ["--vocabularies", "3"], ["--vocabularies", "4000,2000"],
     ["--rounds", "0"], ["--model", "fm"], ["--batch-sizes", "x"], ["--batch-sizes", "64,64"],
     ["--seconds", "nan"], ["--memory-factor", "nan"], ["--figure", "no-such-folder/a.svg"],
     ["--figure", "a.svg", "--json", "a.svg"], ["--vocabularies", "2000,99999999999"]],
)  # fmt: skip
def test_wrong_arguments_are_told_in_one_line(vocabulary, bad, capsys):
    with pytest.raises(SystemExit) as stopped:
        vocabulary.BENCHMARK.main(bad)
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert told.startswith("error: ") and told.count("\n") == 1
