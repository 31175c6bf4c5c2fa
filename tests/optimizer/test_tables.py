"""Tables that rows are moved in: which ones are taken, and what is kept beside them."""

from types import SimpleNamespace

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.row_updates.engine import RowEngine


def restored(tf, path):
    """A new optimizer and table, as a new process has them, and the checkpoint of those."""
    table = tf.Variable(tf.ones([4, 2]), name="embeddings")
    adam = tf.keras.optimizers.legacy.Adam(1e-2)
    optimizer = cc.CowClip(adam, l2=0.1, update="exact")
    checkpoint = tf.train.Checkpoint(table=table, optimizer=optimizer)
    if path:
        checkpoint.restore(path)
    return table, optimizer, checkpoint


@pytest.mark.filterwarnings("default:update=.exact.")
def test_a_restored_optimizer_knows_its_tables_once_it_is_told(tf, tmp_path):
    table, optimizer, checkpoint = restored(tf, None)
    for row in (0, 1, 1, 1):
        optimizer.catch_up(table, [row])
        optimizer.apply_gradients(
            [(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([row]), (4, 2)), table)]
        )
    path = checkpoint.save(str(tmp_path / "c"))
    optimizer.flush()
    again, other, _ = restored(tf, path)
    with pytest.warns(UserWarning, match="knows no table, as after a checkpoint.*register_tables"):
        other.flush()
    assert np.abs(again.numpy() - table.numpy()).max() > 0.01
    again, other, _ = restored(tf, path)
    other.register_tables([again])
    other.flush()
    np.testing.assert_array_equal(again.numpy(), table.numpy())


def test_what_rows_owe_is_kept_beside_their_table(tf, monkeypatch):
    """On another device the kernels would write into copies."""
    from tensorflow.python.eager import context

    places, original = [], RowEngine._weight

    def made(self, *rest):
        places.append(context.context().device_name)
        return original(self, *rest)

    monkeypatch.setattr(RowEngine, "_weight", made)
    table = tf.Variable(tf.ones([4, 2]), name="embeddings")
    cc.CowClip(update="exact").catch_up(table, [1])
    assert places == [table.device] * 3


def test_a_constraint_is_refused(tf):
    table = tf.Variable(tf.ones([4, 2]), constraint=tf.keras.constraints.NonNeg())
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), (4, 2))
    for update in ("exact", "lazy"):
        with pytest.raises(InputError, match=r"has a constraint.* update=\"dense\" "):
            cc.CowClip(update=update).apply_gradients([(slices, table)])
    cc.CowClip(update="dense").apply_gradients([(slices, table)])


def variable_of(tf, module):
    """A variable whose class says that it comes from that module."""
    variable = tf.Variable(tf.ones([4, 2]), name="hashed")
    foreign = type("DynamicVariable", (type(variable),), {"__module__": module})
    variable.__class__ = foreign
    return variable


@pytest.mark.parametrize("update", ["dense", "exact", "lazy"])
def test_a_table_of_sok_is_refused_with_the_reason(tf, update):
    """Its gradients come with unique ids and summed values: every count would be 1."""
    table = variable_of(tf, "sparse_operation_kit.experiment.dynamic_variable")
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), (4, 2))
    optimizer = cc.CowClip(update=update)
    said = "'hashed:0' belongs to .*Sparse Operation Kit"
    for call in (
        lambda: optimizer.apply_gradients([(slices, table)]),
        lambda: optimizer.apply_gradients([(tf.ones([4, 2]), table)]),
        lambda: optimizer.catch_up(table, [1]),
        lambda: optimizer.register_tables([table]),
    )[: 4 if update == "exact" else 2]:
        with pytest.raises(InputError, match=said):
            call()
    np.testing.assert_array_equal(table.numpy(), 1)
    optimizer.apply_gradients([(slices, variable_of(tf, "sparse_operations"))])


def test_a_dense_table_too_large_for_tensorflows_adam_on_a_gpu_is_refused(tf):
    """Its kernel counts in int32, and would leave out numbers."""

    def table(device, rows):
        device = f"/job:localhost/replica:0/task:0/device:{device}:0"
        return SimpleNamespace(device=device, name="ids", shape=tf.TensorShape([rows, 64]))

    adam, sgd = cc.CowClip("adam")._engine, cc.CowClip("sgd")._engine
    with pytest.raises(InputError, match=r"'ids' has 2,147,483,648 numbers.* 2\^31"):
        adam.create([table("GPU", 1 << 25)])
    for engine, fine in ((adam, ("CPU", 1 << 25)), (adam, ("GPU", (1 << 25) - 1)),
                         (sgd, ("GPU", 1 << 25))):  # fmt: skip
        engine.create([table(*fine)])


def test_a_table_that_is_no_matrix_is_refused(tf):
    for shape in ([4], [4, 2, 2]):
        slices = tf.IndexedSlices(tf.ones([1, *shape[1:]]), tf.constant([1]), tuple(shape))
        with pytest.raises(InputError, match=r"\[rows, d\], .*\[rows, 1\]"):
            cc.CowClip().apply_gradients([(slices, tf.Variable(tf.ones(shape)))])


def test_a_layer_in_half_precision_may_catch_up(tf):
    """Keras hands it its variables in the type that it computes in; they are float32."""

    class Rows(tf.keras.layers.Layer):
        def build(self, _):
            self.table = self.add_weight("embeddings", [6, 3])

        def call(self, ids):
            optimizer.catch_up(self.table, ids)
            return tf.gather(self.table, ids)

    ends = []
    for update in ("dense", "exact"):
        optimizer = cc.CowClip(tf.keras.optimizers.legacy.Adam(1e-2), l2=1e-2, update=update)
        tf.keras.utils.set_random_seed(3)
        layer = Rows(dtype="mixed_bfloat16")
        for ids in ([1, 2], [3, 3], [1, 4], [2, 5]):
            with tf.GradientTape() as tape:
                out = layer(tf.constant(ids))
                loss = tf.reduce_sum(tf.cast(out, tf.float32) ** 2)
            assert out.dtype == tf.bfloat16
            gradient = tape.gradient(loss, layer.trainable_variables)
            optimizer.apply_gradients(zip(gradient, layer.trainable_variables))
        optimizer.flush()
        ends.append(layer.table.numpy())
    np.testing.assert_allclose(ends[1], ends[0], atol=1e-6)


def test_a_step_whose_gradients_are_summed_already_looks_for_tables_once(tf, monkeypatch):
    optimizer, calls = cc.CowClip(), []
    split = optimizer.tables.split
    monkeypatch.setattr(optimizer.tables, "split", lambda x: calls.append(x) or split(x))
    table = tf.Variable(tf.ones([4, 2]), name="embeddings")
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([4, 2]))
    optimizer.apply_gradients([(slices, table)], experimental_aggregate_gradients=False)
    assert len(calls) == 1
