import json
from types import SimpleNamespace

import numpy as np
import pytest

from cowclip_merlin import compat
from cowclip_merlin.bench.random_data import criteo_fields, random_rows
from cowclip_merlin.bench.throughput import (
    BARE_MLP,
    BenchCase,
    _result,
    _rows_per_second,
    bare_mlp_train_function,
)
from cowclip_merlin.cli import main
from cowclip_merlin.system.machine import hardware


@pytest.mark.runs
def test_a_small_bench(tmp_path, capsys):
    file = tmp_path / "bench.json"
    arguments = ["--batch-sizes", "64", "--vocabulary", "2000", "--rounds", "2",
                 "--update", "dense,lazy", "--rows-per-turn", "128",
                 "--json", str(file)]  # fmt: skip
    assert main(["bench", *arguments]) == 0
    result = json.loads(file.read_text())
    rows = result["results"]
    assert len(rows) == 2 * 2 + 1 and result["versions"]["tensorflow"]
    assert all(r["slowest"] <= r["rows_per_second"] <= r["fastest"] for r in rows)
    assert rows[0]["ratio_to_baseline"] == 1.0
    assert [r["ratio_to_mlp"] for r in rows if r["model"] == "bare MLP"] == [1.0]
    printed = capsys.readouterr().out
    assert printed.count("deepfm") == 4
    assert "\nbackend auto: tensorflow for dense; numba for lazy\n" in printed
    used = {(r["update"], r["used_backend"]) for r in rows}
    assert used == {("dense", "tensorflow"), ("lazy", "numba"), ("-", "-")}


@pytest.mark.runs
def test_a_small_bench_with_lists(tmp_path, capsys):
    file = tmp_path / "bench.json"
    arguments = ["--batch-sizes", "64", "--vocabulary", "2000", "--rounds", "1", "--clip"]
    arguments += ["cowclip", "--update", "lazy", "--rows-per-turn", "640", "--multi-values", "3"]
    arguments += ["--json", str(file)]
    assert main(["bench", *arguments]) == 0
    result = json.loads(file.read_text())
    assert result["multi_values"] == 3
    assert result["ids_per_row"] == pytest.approx(26 * 3, rel=0.02)
    assert f"a row has {result['ids_per_row']:.0f} ids, in lists\n" in capsys.readouterr().out


def test_random_lists_lie_in_their_fields():
    fields = criteo_fields(5000)
    rows = random_rows(300, fields, multi_values=4)
    for f, n in enumerate(fields.values()):
        values, lengths = rows.column(f)
        assert len(values) == lengths.sum() and values.min() >= 0 and values.max() < n
        assert set(lengths) == set(range(1, 8))
    again = random_rows(300, fields, multi_values=4)
    np.testing.assert_array_equal(again.ids, rows.ids)


def test_a_turn_trains_in_calls_as_long_as_those_of_training():
    seen, waited = [], []

    def train(rows, batch):
        seen.append((rows.numpy(), batch))
        return SimpleNamespace(numpy=lambda: waited.append(len(seen)))

    assert _rows_per_second(train, 64, 64 * 40, 64 * 40) > 0
    assert waited == [3]  # once, after the last call
    assert [(len(rows), batch) for rows, batch in seen] == [(1024, 64), (1024, 64), (512, 64)]
    assert sorted(np.concatenate([rows for rows, _ in seen])) == list(range(64 * 40))


def test_the_bare_mlp_makes_as_many_steps_as_it_is_told():
    ends = []
    for steps in ([64] * 5, [64 * 5]):
        compat.tensorflow().keras.utils.set_random_seed(1)
        train = bare_mlp_train_function(64)
        losses = [float(train(range(rows), 64).numpy()) for rows in steps]
        ends.append(losses[-1])
    assert ends[1] == pytest.approx(ends[0], rel=1e-5)
    assert ends[1] > 0


def test_ratios_are_to_the_bare_mlp_and_to_the_own_baseline():
    base = BenchCase("deepfm", 64, "dense", "numba", "none", "bfloat16")
    mine, other = base._replace(batch=256, clip="cowclip"), base._replace(precision="float32")
    speeds = {
        other: [1.0, 1.0, 1.0], base: [10.0, 20.0, 30.0], mine: [40.0, 40.0, 30.0],
        BenchCase(BARE_MLP, 64): [5.0, 5.0, 5.0], BenchCase(BARE_MLP, 256): [80.0, 160.0, 120.0],
    }  # fmt: skip
    found = _result(mine, speeds)
    assert (found["rows_per_second"], found["slowest"], found["fastest"]) == (40, 30, 40)
    assert (found["ratio_to_baseline"], found["ratio_to_mlp"]) == (2.0, 0.25)


def test_ids_lie_in_their_fields():
    fields = criteo_fields(5000)
    ids = random_rows(2000, fields).ids
    assert (ids >= 0).all() and (ids.max(axis=0) < np.array(list(fields.values()))).all()
    assert np.bincount(ids[:, 0]).argmax() == 0


def test_small_vocabularies_have_no_empty_field():
    for vocabulary in range(104, 400):
        rows = criteo_fields(vocabulary).values()
        assert sum(rows) == vocabulary and min(rows) >= 4


def test_the_hardware_is_named(monkeypatch):
    tf = compat.tensorflow()
    assert hardware()["gpus"] == 0 and {"processor", "cores", "machine"} <= set(hardware())
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["one", "two"])
    details = {"one": {"device_name": "NVIDIA H200"}, "two": {}}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.get)
    assert hardware() | {"gpus": 2, "gpu": "NVIDIA H200, unknown"} == hardware()
