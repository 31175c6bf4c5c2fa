"""What reads a table beside what `tests/contract` asks of all: graphs, exports, moments."""

import gc
import weakref

import numpy as np
import pytest

pytestmark = [pytest.mark.system, pytest.mark.quick]
EVERY = np.arange(60, dtype="int32").reshape(15, 4)


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


def test_an_optimizer_of_keras_takes_the_table(cowclip, trained, batches, train):
    model, dense = trained(), trained("dense")
    for each in (model, dense):
        each.compile("adam", "mse")
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


def test_a_model_that_nobody_uses_is_freed(keras, trained):
    model = trained()
    table = weakref.ref(next(iter(model.optimizer._tables.values())))
    del model
    keras.backend.clear_session()
    gc.collect()
    assert table() is None
