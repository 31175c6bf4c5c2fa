"""Parts of tables become the parts of another number of workers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.training.checkpoint import COUNT_KEY, ShardFiles, merged_rows

TABLE = "weights/variables_in_order/3/"
VALUE = ".ATTRIBUTES/VARIABLE_VALUE"
SLOT = ".OPTIMIZER_SLOT/optimizer/embedding_optimizer/m/.ATTRIBUTES/VARIABLE_VALUE"
ACCUMULATOR = f"optimizer/embedding_optimizer/accumulator..0/{VALUE}"
DENSE, LAST = f"weights/variables_in_order/30/{VALUE}", f"optimizer/table..0..last/{VALUE}"


@settings(max_examples=100)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 5))
def test_merged_rows_are_those_of_the_whole_table(rows, before, now):
    table = np.arange(rows * 2).reshape(rows, 2)
    for rank in range(now):
        found = merged_rows((table[q::before] for q in range(before)), before, (rank, now))
        assert np.array_equal(found, table[rank::now])


def write(path, values):
    import tensorflow as tf

    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(values)
    tensors = [tf.constant(x) for x in values.values()]
    tf.raw_ops.SaveV2(
        prefix=str(path), tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors
    )


@pytest.fixture
def tables():
    rng = np.random.default_rng(0)
    return {
        TABLE + VALUE: rng.random((11, 4), np.float32),
        TABLE + SLOT: rng.random((11, 4), np.float32),
        LAST: rng.random(11, np.float32),
        ACCUMULATOR: rng.random((11, 1), np.float32),
    }


@pytest.fixture
def saved(tmp_path, tables):
    """A checkpoint of three workers; `DENSE` has as many rows as the part of the second one."""
    for rank in range(3):
        folder = tmp_path / "workers" / f"{rank}-of-3" if rank else tmp_path
        own = {name: x[rank::3] for name, x in tables.items()}
        own |= {DENSE: np.arange(4.0), COUNT_KEY: np.int64(3), "text": b"graph"}
        write(folder / "ckpt-7", own)
    return tmp_path


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_any_number_of_workers_reads_its_rows(saved, tables, size):
    import tensorflow as tf

    for rank in range(size):
        files = ShardFiles(saved, rank, size, [3])
        with files.own_path(str(saved / "ckpt-7")) as path:
            reader = tf.train.load_checkpoint(path)
            for name, whole in tables.items():
                assert np.array_equal(reader.get_tensor(name), whole[rank::size]), name
            assert np.array_equal(reader.get_tensor(DENSE), np.arange(4.0))
            assert reader.get_tensor("text") == b"graph"
        assert (size == 3) == path.startswith(str(saved))  # no copy for as many workers


def test_a_missing_part_is_one_line(saved):
    (saved / "workers" / "2-of-3" / "ckpt-7.index").unlink()
    files = ShardFiles(saved, 0, 2, [3])
    missing = pytest.raises(InputError, match="2-of-3/ckpt-7: no such checkpoint")
    with missing, files.own_path(str(saved / "ckpt-7")):
        pass


def test_each_worker_has_a_folder_of_its_own(tmp_path):
    found = [ShardFiles(tmp_path, rank, 2, [3]).own_folder for rank in range(2)]
    assert found == [tmp_path, tmp_path / "workers" / "1-of-2"]
