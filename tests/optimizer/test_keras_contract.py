"""What Keras's own tests ask of any optimizer, asked of CowClip."""

import numpy as np
import pytest

import cowclip_merlin as cc


@pytest.fixture
def table(tf):
    return tf.Variable(tf.ones([4, 2]), name="embeddings")


@pytest.fixture
def kernel(tf):
    return tf.Variable(tf.ones([2, 2]), name="kernel")


def slices(tf):
    return tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([4, 2]))


@pytest.mark.parametrize("update", ["dense", "exact", "lazy"])
def test_slots_are_found_for_tables_and_dense_weights(tf, table, kernel, update):
    optimizer = cc.CowClip(update=update)
    with pytest.raises(KeyError):
        optimizer.get_slot(kernel, "m")
    optimizer.apply_gradients([(slices(tf), table), (tf.ones([2, 2]), kernel)])
    optimizer.flush()
    inside = optimizer.embedding_optimizer.get_slot(table, "v")
    assert optimizer.get_slot(table, "v") is inside
    np.testing.assert_allclose(optimizer.get_slot(kernel, "m"), np.full([2, 2], 0.1), rtol=1e-6)


def test_a_checkpoint_holds_every_slot_once(tf, table, kernel, tmp_path):
    optimizer = cc.CowClip()
    optimizer.apply_gradients([(slices(tf), table), (tf.ones([2, 2]), kernel)])
    path = tf.train.Checkpoint(optimizer=optimizer, table=table, kernel=kernel).save(
        str(tmp_path / "c")
    )
    names = [name for name, _ in tf.train.list_variables(path) if "OPTIMIZER_SLOT" in name]
    assert len(names) == 4


def test_a_gradient_aggregator_of_the_whole_is_called(tf, kernel):
    optimizer = cc.CowClip("sgd", tf.keras.optimizers.legacy.SGD(1.0))
    optimizer.gradient_aggregator = lambda pairs: [(g / 2, v) for g, v in pairs]
    optimizer.apply_gradients([(tf.ones([2, 2]), kernel)])
    np.testing.assert_array_equal(kernel, np.full([2, 2], 0.5))


def test_a_model_of_which_all_is_frozen_can_be_fitted(tf):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])])
    model.trainable = False
    model.compile(cc.CowClip(), "mse")
    before = model.get_weights()
    model.fit(np.ones([4, 2]), np.ones(4), verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], before[0])


def test_no_gradient_at_all_is_said_in_keras_words(table, kernel):
    with pytest.raises(ValueError, match=r"No gradients provided for any variable \(embeddings:0"):
        cc.CowClip().apply_gradients([(None, table), (None, kernel)])


def test_a_variable_without_gradient_is_told(tf, table, kernel, caplog):
    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    try:
        cc.CowClip().apply_gradients([(None, table), (tf.ones([2, 2]), kernel)])
    finally:
        logger.removeHandler(caplog.handler)
    assert "Gradients do not exist for variables embeddings:0" in caplog.text


@pytest.mark.parametrize("tables", [True, False])
def test_nadam_beside_a_kind_of_variable_that_is_not_there(tf, table, kernel, tables):
    """Nadam asks its first variable for a type; there is none of its kind in the model."""
    pair = (slices(tf), table) if tables else (tf.ones([2, 2]), kernel)

    @tf.function
    def step():
        optimizer.apply_gradients([pair])

    optimizer = cc.CowClip("nadam", "nadam")
    step()
    assert optimizer.iterations.numpy() == 1
    assert not np.array_equal(pair[1], np.ones(pair[1].shape))
