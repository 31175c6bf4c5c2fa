"""Nobody reads a row of a table that has missed a step."""

import gc
import weakref

import numpy as np
import pytest

pytestmark = [pytest.mark.system, pytest.mark.quick]
EVERY = np.arange(60, dtype="int32").reshape(15, 4)

READS = {
    "lookup": lambda keras, tf, model, path: tf.reshape(model.layers[0](EVERY), [60, 3]),
    "ragged": lambda keras, tf, model, path: model.layers[0](
        tf.RaggedTensor.from_row_lengths(EVERY.ravel(), [7, 53])
    ).flat_values,
    "sparse": lambda keras, tf, model, path: tf.reshape(
        model.layers[0](tf.sparse.from_dense(EVERY)), [60, 3]
    ),
    "function": lambda keras, tf, model, path: tf.function(model.layers[0])(EVERY.ravel()),
    "get_weights": lambda keras, tf, model, path: model.get_weights()[0],
    "of_layer": lambda keras, tf, model, path: model.layers[0].get_weights()[0],
    "numpy": lambda keras, tf, model, path: model.weights[0].numpy(),
    "embeddings": lambda keras, tf, model, path: model.layers[0].embeddings + 0,
    "index": lambda keras, tf, model, path: model.weights[0][:],
    "value": lambda keras, tf, model, path: model.weights[0].value.read_value(),
    "gather_nd": lambda keras, tf, model, path: model.weights[0].value.gather_nd(
        EVERY.reshape(60, 1)
    ),
    "in_function": lambda keras, tf, model, path: tf.function(lambda: model.weights[0] + 0)(),
    "ops": lambda keras, tf, model, path: keras.ops.take(model.weights[0], EVERY.ravel(), axis=0),
    "save": lambda keras, tf, model, path: saved(keras, model, path / "a.keras").get_weights()[0],
    "save_weights": lambda keras, tf, model, path: with_weights_of(keras, model, path),
    "checkpoint": lambda keras, tf, model, path: tf.train.load_checkpoint(
        tf.train.Checkpoint(table=model.weights[0].value).write(str(path / "checkpoint"))
    ).get_tensor("table/.ATTRIBUTES/VARIABLE_VALUE"),
}  # fmt: skip


def saved(keras, model, path):
    model.save(path)
    return keras.saving.load_model(path, compile=False)


def with_weights_of(keras, model, path):
    model.save_weights(path / "a.weights.h5")
    other = keras.models.clone_model(model)
    other.load_weights(path / "a.weights.h5")
    return other.get_weights()[0]


@pytest.fixture
def rows_of(keras, tf):
    def read(model, how="get_weights", path=None):
        return np.asarray(READS[how](keras, tf, model, path))

    return read


@pytest.mark.parametrize("how", READS)
def test_every_read_is_of_rows_that_are_up_to_date(trained, rows_of, tmp_path, how):
    model, dense = trained(), trained("dense")
    found = rows_of(model, how, tmp_path)
    np.testing.assert_allclose(found, rows_of(dense), rtol=1e-5, atol=1e-7)


def test_moments_are_up_to_date(trained):
    model, dense = trained(), trained("dense")
    for mine, other in zip(model.optimizer.variables, dense.optimizer.variables):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-5, atol=1e-9)


def test_moments_that_a_function_reads_after_a_step(tf, trained, batches):
    """And those that it reads before the step are of the step before."""
    model = trained()
    optimizer, moment = model.optimizer, model.optimizer.variables[2].value

    @tf.function
    def step(ids):
        before = moment + 0
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(ids) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return before, moment + 0, tf.gather(moment, tf.range(60))

    for seed in range(4):
        last = moment.numpy()
        before, *after = step(batches(1, seed=seed)[0])
        np.testing.assert_array_equal(before, last)
        for found in after:
            np.testing.assert_array_equal(found, moment)
        assert (moment.numpy() != last).any()


def test_functions_that_were_compiled_before_the_optimizer(
    cowclip, model_of, batches, train, trained
):
    """As `predict` before `fit`, which has no state of the optimizer yet."""
    model, dense = model_of(cowclip(1e-2, l2=1e-3)), trained("dense")
    model.predict(EVERY, verbose=0)
    for seed in (0, 3):
        train(model, batches(30, seed=seed))
        if seed:
            train(dense, batches(30, seed=seed))
        ours, theirs = (each.predict(EVERY, verbose=0) for each in (model, dense))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_lookup_updates_its_rows_alone(trained):
    model = trained()
    (table,) = model.optimizer._tables.values()
    behind = np.flatnonzero(table.steps._last < table.steps.missed)
    assert len(behind) > 10
    model.layers[0](behind[:2])
    still = np.flatnonzero(table.steps._last < table.steps.missed)
    np.testing.assert_array_equal(still, behind[2:])


def test_what_a_user_writes_is_not_replayed(trained, batches, train):
    model, dense = trained(), trained("dense")
    for each in (model, dense):
        each.weights[0].assign(np.full((60, 3), 0.25))
        np.testing.assert_array_equal(each.get_weights()[0], 0.25)
        train(each, batches(5))
    np.testing.assert_allclose(model.get_weights()[0], dense.get_weights()[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("after", ["exact", "dense", "adam"])
def test_another_optimizer_takes_the_table(cowclip, trained, batches, train, after):
    model, dense = trained(), trained("dense")
    for each, update in ((model, after), (dense, "dense")):
        each.compile("adam" if after == "adam" else cowclip(update=update), "mse")
        train(each, batches(5))
    np.testing.assert_allclose(model.get_weights()[0], dense.get_weights()[0], rtol=1e-5, atol=1e-6)


def test_an_optimizer_that_lost_its_table_is_refused(tf, cowclip, trained, batches, train):
    from cowclip_merlin import InputError

    model = trained()
    first = model.optimizer
    model.compile(cowclip(), "mse", run_eagerly=True)
    train(model, batches(1))
    gradient = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([2]), tf.constant([60, 3]))
    with pytest.raises(InputError, match="belongs to another optimizer now; compile the model"):
        first.apply_gradients([(gradient, model.weights[0])])


def test_an_exported_model_calls_no_python(tf, trained, tmp_path):
    model, dense = trained(), trained("dense")
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served"))
    found = served.serve(EVERY).numpy()
    np.testing.assert_allclose(found, dense.predict(EVERY, verbose=0), rtol=1e-5, atol=1e-6)
    graph = served.signatures["serving_default"].graph.as_graph_def()
    nodes = [graph.node, *(each.node_def for each in graph.library.function)]
    assert not any("PyFunc" in node.op for each in nodes for node in each)


@pytest.mark.parametrize("steps", [5, 12])
def test_a_long_training_updates_all_rows_now_and_then(trained, monkeypatch, steps):
    monkeypatch.setattr("cowclip_merlin.kernels.table_steps.HISTORY", 5)
    model, dense = trained(steps=steps), trained("dense", steps=steps)
    (table,) = model.optimizer._tables.values()
    assert table.steps.missed == steps % 5
    np.testing.assert_allclose(model.get_weights()[0], dense.get_weights()[0], rtol=1e-5, atol=1e-7)


def test_a_model_that_nobody_uses_is_freed(keras, trained):
    model = trained()
    table = weakref.ref(next(iter(model.optimizer._tables.values())))
    del model
    keras.backend.clear_session()
    gc.collect()
    assert table() is None
