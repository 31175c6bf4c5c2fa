"""The step against the vocabulary, on tiny tables."""

import numpy as np
import pytest

from cowclip_merlin.bench.random_data import criteo_fields

SMALL = "--vocabularies 2000,4000 --batch-sizes 32,64 --mlp 8 --rounds 1 --steps 2 --warm-up 3"


@pytest.fixture
def vocabulary(load):
    return load("step_parts.vocabulary")


@pytest.mark.runs
@pytest.mark.thorough
def test_every_line_is_in_the_table_and_in_json(measured, tmp_path):
    figure = tmp_path / "vocabulary.svg"
    result, out = measured("step vocabulary", f"{SMALL} --missed 12", "--figure", figure)
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
    assert b"exact and its flush" in figure.read_bytes()


def test_what_does_not_fit_is_left_out(vocabulary, refused, monkeypatch, capsys):
    settings = vocabulary.BENCHMARK.settings_from(
        vocabulary.BENCHMARK.parser().parse_args([*SMALL.split(), "--memory-factor", "4"])
    )
    monkeypatch.setattr(vocabulary, "bytes_left", lambda: 4 * settings.table_bytes(4000) - 1)
    assert vocabulary.fitting(settings) == [2000]
    assert "omitted: 4,000 ids" in capsys.readouterr().out
    code, told = refused("step vocabulary", *SMALL.split(), "--memory-factor", "1e9")
    assert code == 2 and "no vocabulary fits" in told


def test_ids_are_spread_one_to_one_within_their_fields(vocabulary):
    settings = vocabulary.VocabularySettings(vocabularies=(2000,), batches=(64,))
    fields, rows = criteo_fields(123_457), vocabulary.draw(settings)
    moved = vocabulary.spread(rows, fields).ids
    assert (moved >= 0).all() and (moved.max(axis=0) < np.array(list(fields.values()))).all()
    for before, after in zip(rows.ids.T, moved.T, strict=True):
        pairs = {*zip(before.tolist(), after.tolist(), strict=True)}
        assert len(pairs) == len({*before.tolist()}) == len({*after.tolist()})
