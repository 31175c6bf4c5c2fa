"""Rows on the device and streamed to it: always the same rows."""

import threading

import numpy as np
import pytest
from run_weights import assert_same_bits

from cowclip_merlin.bench.random_data import criteo_fields, random_rows
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import (
    DeviceData,
    StreamedData,
    batches,
    load_to_device,
    row_order,
    streamed_data,
)
from cowclip_merlin.training import RunSettings, train

ROWS, BATCH = 1003, 16


@pytest.fixture(scope="module")
def columns():
    return random_rows(ROWS, criteo_fields(2000), seed=1)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(streamed_data, "BATCHES_PER_CHUNK", 4)
    monkeypatch.setattr(streamed_data, "ROWS_AT_ONCE", 5)
    monkeypatch.setattr(streamed_data, "cpu_threads", lambda: 5)


def taken(data, batch):
    columns = data.unpack(batch)
    return [columns.ids.values.numpy(), columns.numbers.numpy(), columns.labels.numpy()]


def epoch(data, **how):
    how = {"seed": 1, "epoch": 0} | how
    return [taken(data, batch) for batch in data.batches(BATCH, **how)]


def assert_equal(a, b):
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        for x, y in zip(one, other, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("cowclip-stream")]


def test_pieces_of_several_batches_are_those_batches(columns):
    data, one_by_one = DeviceData(columns), epoch(DeviceData(columns), start=2)
    lengths = [3 * BATCH, BATCH, ROWS]
    pieces = [
        taken(data, p) for p in data.variable_batches(lengths, seed=1, epoch=0, first=2 * BATCH)
    ]
    assert [len(p[2]) for p in pieces] == [3 * BATCH, BATCH, ROWS - 6 * BATCH]
    whole = [[np.concatenate(part) for part in zip(*each)] for each in (pieces, one_by_one)]
    assert_equal(whole[:1], whole[1:])


@pytest.mark.parametrize("kind", [DeviceData, StreamedData])
def test_every_row_comes_once_in_the_order_of_the_seed(columns, kind, small_chunks):
    data = kind(columns)
    got = epoch(data)
    assert [len(label) for *_, label in got] == [BATCH] * 62 + [11]
    rows = np.concatenate(list(batches(ROWS, BATCH, seed=1, epoch=0)))
    assert sorted(rows) == list(range(ROWS))
    expected = [columns.ids[rows], columns.continuous[rows], columns.label[rows]]
    assert_equal([[np.concatenate(part) for part in zip(*got, strict=True)]], [expected])
    assert_equal(got, epoch(data))
    for other in ({"epoch": 1}, {"seed": 2}):
        assert not np.array_equal(got[0][0], epoch(data, **other)[0][0])


@pytest.mark.parametrize("order", row_order.ORDERS)
def test_streamed_rows_are_the_resident_ones(columns, small_chunks, order):
    resident, streamed = kinds = [DeviceData(columns), StreamedData(columns)]
    for data in kinds:
        data.generator = order
    for start in (0, 1, 5, 62, 63):
        assert_equal(epoch(resident, epoch=3, start=start), epoch(streamed, epoch=3, start=start))
    if order == row_order.PHILOX:
        rows = row_order.philox_permutation(ROWS, seed=1, epoch=1).numpy()
        expected = [columns.ids[rows], columns.continuous[rows], columns.label[rows]]
        whole = epoch(resident, epoch=1)
        assert_equal([[np.concatenate(part) for part in zip(*whole, strict=True)]], [expected])
    in_order = [[taken(d, b) for b in d.batches_in_file_order(100)] for d in kinds]
    assert_equal(*in_order)
    np.testing.assert_array_equal(np.concatenate([b[0] for b in in_order[0]]), columns.ids)
    assert not threads()


def test_the_order_is_written_down():
    """Another one would silently break the resumption of runs that were stopped before."""
    assert row_order.permutation(8, seed=1234, epoch=2).tolist() == [2, 3, 4, 5, 0, 6, 1, 7]
    assert row_order.permutation(8, seed=0, epoch=0).dtype == np.int32


def test_the_order_of_a_gpu_is_written_down():
    order = row_order.philox_permutation(8, seed=1234, epoch=2).numpy()
    assert order.tolist() == [1, 2, 3, 6, 5, 0, 7, 4]


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_the_order_of_a_gpu_is_a_permutation(rows):
    """Made by the operations of a GPU, on a CPU."""
    made = row_order.philox_permutation
    order = made(rows, seed=3, epoch=1).numpy()
    assert order.dtype == np.int64 and sorted(order) == list(range(rows))
    assert order.tolist() == made(rows, seed=3, epoch=1).numpy().tolist()
    if rows == 1000:
        for other in ({"seed": 3, "epoch": 2}, {"seed": 4, "epoch": 1}, {"seed": 1, "epoch": 3}):
            assert (made(rows, **other).numpy() == order).sum() < 10
        assert abs(np.corrcoef(order, np.arange(rows))[0, 1]) < 0.1


def test_an_early_stop_ends_the_thread(columns, small_chunks):
    got = StreamedData(columns).batches(BATCH, seed=0, epoch=0)
    next(got)
    assert threads()
    got.close()
    assert not threads()


def test_an_error_in_the_thread_surfaces(columns, small_chunks, monkeypatch):
    data, calls = StreamedData(columns), []
    load = data._load

    def failing(rows, gatherer):
        calls.append(rows)
        if len(calls) == 3:
            raise OSError("the disk is gone")
        return load(rows, gatherer)

    monkeypatch.setattr(data, "_load", failing)
    seen = 0
    with pytest.raises(OSError, match="the disk is gone"):
        for _ in data.batches(BATCH, seed=0, epoch=0):
            seen += 1
    assert seen == 2 * 4 and not threads()


def test_memory_bounds_the_chunks(columns):
    batch = BATCH * columns.bytes_per_row
    sizes = [StreamedData(columns, memory=n * batch)._batches_per_chunk(BATCH) for n in (3, 9, 999)]
    assert sizes == [1, 4, 64]


def test_what_is_streamed(columns):
    test = random_rows(100, criteo_fields(2000))
    size, least = ROWS * 168, 3 * BATCH * 160

    def chosen(memory):
        loaded = load_to_device(columns, test, batch_size=BATCH, scoring_batch=32, memory=memory)
        return loaded.train.resident, loaded.test.resident

    assert chosen(None) == chosen(size + 100 * 168) == (True, True)
    assert chosen(size + 2 * least) == (True, False)
    assert chosen(size) == chosen(2 * least) == (False, False)
    with pytest.raises(InputError, match=r"three batches; .* 0\.016"):
        chosen(2 * least - 1)


@pytest.mark.thorough
def test_a_run_with_little_memory_is_the_same_run(folder, tmp_path, small_chunks):
    settings = RunSettings(model="deepfm", mlp=(8,), batch_size=64, base_batch_size=64, epochs=2)
    least = 3 * folder.rows["test"] * 160 / 1e6
    ends = {}
    for name, memory in {"resident": None, "streamed": least}.items():
        out = tmp_path / name
        ends[name] = train(folder.path, settings, out=out, data_memory=memory, device="cpu")
        say = "streamed" if name == "streamed" else "on the device"
        assert (
            f"train rows {say}, scored rows {say}: 160 bytes per row"
            in (out / "train.log").read_text()
        )
    assert [r["test_auc"] for r in ends["streamed"]] == [r["test_auc"] for r in ends["resident"]]
    assert_same_bits(tmp_path / "resident", tmp_path / "streamed")
    assert not threads()
