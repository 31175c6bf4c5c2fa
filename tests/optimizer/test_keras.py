"""CowClip in Keras: fit, eager mode, loss scaling, callbacks, schedules, configs, checkpoints."""

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError


def click_model(tf, *, regularizer=None, mixed=False):
    ids = tf.keras.Input([2], dtype=tf.int32)
    rows = tf.keras.layers.Embedding(
        20, 4, embeddings_regularizer=regularizer, embeddings_initializer="he_normal"
    )(ids)
    hidden = tf.keras.layers.Dense(8, activation="relu")(tf.keras.layers.Flatten()(rows))
    p = tf.keras.layers.Dense(1, activation="sigmoid", dtype="float32")(hidden)
    return tf.keras.Model(ids, p)


@pytest.fixture
def clicks():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 20, (512, 2))
    return ids, (ids[:, 0] < 10).astype(np.float32)


@pytest.mark.one_case
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_fit_learns(tf, clicks, eager, update):
    tf.keras.utils.set_random_seed(1)
    model = click_model(tf)
    optimizer = cc.CowClip(
        tf.keras.optimizers.Adam(1e-2), tf.keras.optimizers.Adam(1e-2), update=update
    )
    model.compile(optimizer, "binary_crossentropy", run_eagerly=eager)
    history = model.fit(*clicks, batch_size=64, epochs=6, verbose=0).history["loss"]
    assert history[-1] < 0.8 * history[0]
    assert optimizer.iterations.numpy() == 6 * 8
    assert 0 <= optimizer.clipped_share.numpy() <= 1


def test_the_two_lines_of_the_readme(tf, clicks):
    """An existing Keras script becomes a CowClip one by its import and its optimizer."""
    import cowclip_merlin as cc

    model = click_model(tf)
    model.compile(optimizer=cc.CowClip(l2=1e-5), loss="binary_crossentropy")
    history = model.fit(*clicks, batch_size=128, epochs=1, verbose=0).history
    assert np.isfinite(history["loss"][0])


def test_the_weights_go_through_h5(tf, clicks, tmp_path):
    model = click_model(tf)
    model.compile(cc.CowClip(), "binary_crossentropy")
    model.fit(*clicks, batch_size=128, epochs=1, verbose=0)
    model.save(tmp_path / "m.h5", include_optimizer=False)
    again = tf.keras.models.load_model(tmp_path / "m.h5")
    np.testing.assert_array_equal(again(clicks[0]), model(clicks[0]))


@pytest.mark.thorough
def test_under_loss_scaling_nothing_changes(tf, clicks):
    ids, y = clicks
    ends = []
    for scaled in (False, True):
        tf.keras.utils.set_random_seed(2)
        model = click_model(tf)
        optimizer = cc.CowClip(tf.keras.optimizers.legacy.Adam(1e-2), l2=1e-3)
        if scaled:
            optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer)
        model.compile(optimizer, "binary_crossentropy")
        model.fit(ids, y, batch_size=64, epochs=2, verbose=0, shuffle=False)
        ends.append(model.get_weights())
    for plain, with_scale in zip(*ends, strict=True):
        np.testing.assert_allclose(plain, with_scale, atol=1e-5)


def rates_after(tf, clicks, callback, *, rate=1e-3, **settings):
    """Fit two epochs with a callback; return the model's optimizer and its weights."""
    tf.keras.utils.set_random_seed(4)
    model = click_model(tf)
    rates = (tf.keras.optimizers.Adam(10 * rate), tf.keras.optimizers.Adam(rate))
    model.compile(cc.CowClip(*rates, **settings), "binary_crossentropy")
    model.fit(*clicks, batch_size=128, epochs=2, verbose=0, shuffle=False, callbacks=[callback])
    return model.optimizer, model.get_weights()


@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_callbacks_move_both_rates(tf, clicks, update):
    """Training with a callback equals training whose two rates are set by hand."""
    rate = 1e-2

    class ByHand(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            optimizer = self.model.optimizer
            optimizer.embedding_optimizer.learning_rate = 10 * rate / 4 ** (epoch + 1)
            optimizer.dense_optimizer.learning_rate = rate / 4 ** (epoch + 1)

    scheduler = tf.keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr / 4)
    linked, ours = rates_after(tf, clicks, scheduler, rate=rate, update=update)
    apart, right = rates_after(tf, clicks, ByHand(), rate=rate, update=update, link_rates=False)
    assert linked.learning_rates == pytest.approx((rate / 1.6, rate / 16))
    assert linked.learning_rates == pytest.approx(apart.learning_rates)
    for a, b in zip(ours, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


def test_reduce_on_plateau_moves_both_rates(tf, clicks):
    plateau = tf.keras.callbacks.ReduceLROnPlateau(
        monitor="loss", factor=0.1, patience=0, min_delta=100.0, cooldown=0
    )
    optimizer, _ = rates_after(tf, clicks, plateau)
    assert optimizer.learning_rates == pytest.approx((1e-3, 1e-4))  # the first epoch is better
    assert optimizer.learning_rate.numpy() == pytest.approx(1e-4)


def test_each_rate_can_be_set_alone(tf, clicks):
    """Before and after the first step; `learning_rate` of the whole moves both."""
    optimizer = cc.CowClip(tf.keras.optimizers.Adam(1e-2), tf.keras.optimizers.Adam(1e-3))
    model = click_model(tf)
    model.compile(optimizer, "binary_crossentropy")
    for _ in range(2):
        optimizer.embedding_optimizer.learning_rate = 4e-2
        optimizer.dense_optimizer.learning_rate = 2e-3
        assert optimizer.learning_rates == pytest.approx((4e-2, 2e-3))
        optimizer.learning_rate = 1e-3
        assert optimizer.learning_rates == pytest.approx((2e-2, 1e-3))
        optimizer.embedding_optimizer.learning_rate = 3e-2
        assert optimizer.learning_rates == pytest.approx((3e-2, 1e-3))
        again = cc.CowClip.from_config(optimizer.get_config())
        assert again.learning_rates == pytest.approx((3e-2, 1e-3))
        optimizer.dense_optimizer.learning_rate = 0.0  # as if it had never been linked
        assert optimizer.learning_rates == pytest.approx((3e-2, 0.0))
        optimizer.learning_rate = 1e-3
        assert optimizer.learning_rates == pytest.approx((3e-2, 1e-3))
        model.fit(*clicks, batch_size=128, epochs=1, verbose=0)


def test_rates_that_are_not_linked(tf, clicks):
    callback = tf.keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr / 10)
    optimizer, _ = rates_after(tf, clicks, callback, link_rates=False)
    assert optimizer.learning_rates == pytest.approx((1e-2, 1e-5))


def test_a_changed_rate_goes_through_the_configuration_and_checkpoints(tf, clicks, tmp_path):
    callback = tf.keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr / 10)
    optimizer, _ = rates_after(tf, clicks, callback)
    again = cc.CowClip.from_config(optimizer.get_config())
    assert again.learning_rates == pytest.approx(optimizer.learning_rates)
    again.learning_rate = 1e-6
    assert again.learning_rates == pytest.approx((1e-5, 1e-6))

    path = tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "rates"))
    other = cc.CowClip(tf.keras.optimizers.Adam(5.0), tf.keras.optimizers.Adam(3.0))
    other._create_own_weights()
    other.embedding_optimizer._create_hypers()
    other.dense_optimizer._create_hypers()
    tf.train.Checkpoint(optimizer=other).restore(path)
    assert other.learning_rates == pytest.approx(optimizer.learning_rates)


@pytest.mark.parametrize("of_embeddings", [False, True])
def test_a_rate_that_becomes_a_schedule_is_no_longer_linked(tf, clicks, of_embeddings):
    class Schedules(tf.keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            optimizer = self.model.optimizer
            optimizer.learning_rate = 1e-4
            changed = optimizer.embedding_optimizer if of_embeddings else optimizer
            changed.learning_rate = tf.keras.optimizers.schedules.InverseTimeDecay(1e-1, 1, 0)

    optimizer, _ = rates_after(tf, clicks, Schedules())
    right = (1e-1, 1e-4) if of_embeddings else (1e-2, 1e-1)
    assert optimizer.learning_rates == pytest.approx(right)
    again = cc.CowClip.from_config(optimizer.get_config())
    assert again.learning_rates == pytest.approx(right)


def test_dense_schedule_is_followed(tf):
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.1])
    optimizer = cc.CowClip(dense_optimizer=tf.keras.optimizers.legacy.SGD(schedule))
    kernel = tf.Variable([0.0])
    for expected in (-1.0, -2.0, -2.1):
        optimizer.apply_gradients([(tf.constant([1.0]), kernel)])
        assert kernel.numpy()[0] == pytest.approx(expected)


@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_configuration_round_trip(tf, update):
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    optimizer = cc.CowClip(
        tf.keras.optimizers.Adam(schedule), "adagrad", r=0.5, zeta=1e-4, l2=3e-5, update=update,
        clip="field", bound=2.0, skip=["wide"], embeddings=["emb"], fields={"a": 3},
    )  # fmt: skip
    config = optimizer.get_config()
    again = cc.CowClip.from_config(config)
    assert again.get_config() == config == optimizer.get_config()
    assert again.embedding_optimizer.learning_rate.decay_rate == 0.5
    rebuilt = tf.keras.optimizers.deserialize(tf.keras.optimizers.serialize(optimizer))
    assert rebuilt.get_config() == config


def test_state_is_in_checkpoints(tf, tmp_path, clicks):
    ids, y = clicks

    def build():
        tf.keras.utils.set_random_seed(3)
        model = click_model(tf)
        optimizer = cc.CowClip(
            tf.keras.optimizers.legacy.Adam(1e-2), "adam", l2=1e-3, embeddings=["embeddings"]
        )
        model.compile(optimizer, "binary_crossentropy")
        return model, tf.train.Checkpoint(model=model, optimizer=optimizer)

    def fit(model):
        model.fit(ids, y, batch_size=64, epochs=1, shuffle=False, verbose=0)

    straight, checkpoint = build()
    fit(straight)
    path = checkpoint.save(tmp_path / "half")
    fit(straight)
    resumed, checkpoint = build()
    status = checkpoint.restore(path)
    fit(resumed)
    status.assert_existing_objects_matched()
    assert resumed.optimizer.iterations.numpy() == straight.optimizer.iterations.numpy() == 16
    for a, b in zip(straight.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_saved_model_keeps_predictions_and_settings(tf, tmp_path, clicks):
    model = click_model(tf)
    model.compile(cc.CowClip(l2=2e-5, r=0.7), "binary_crossentropy")
    model.fit(*clicks, batch_size=128, epochs=1, verbose=0)
    model.save(tmp_path / "model")
    loaded = tf.keras.models.load_model(tmp_path / "model")
    np.testing.assert_array_equal(
        model.predict(clicks[0], verbose=0), loaded.predict(clicks[0], verbose=0)
    )
    assert loaded.optimizer.get_config()["r"] == 0.7


@pytest.mark.one_case
@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_a_model_in_hdf5_goes_on_where_it_was(tf, tmp_path, clicks, update):
    adam = tf.keras.optimizers.legacy.Adam
    one = click_model(tf)
    one.compile(cc.CowClip(adam(1e-2), adam(1e-2), update=update, l2=1e-2), "binary_crossentropy")
    one.fit(*clicks, batch_size=20, shuffle=False, verbose=0)
    one.save(str(tmp_path / "model.h5"))
    other = tf.keras.models.load_model(str(tmp_path / "model.h5"))
    assert int(other.optimizer.iterations) == int(one.optimizer.iterations) > 0
    for model in (one, other):
        model.fit(*clicks, batch_size=20, shuffle=False, verbose=0)
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)


def test_all_variables_are_all_weights(tf):
    table, kernel = tf.Variable(tf.ones([4, 2])), tf.Variable([1.0])
    optimizer = cc.CowClip(update="exact")
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), (4, 2))
    optimizer.apply_gradients([(slices, table), (tf.constant([1.0]), kernel)])
    assert [v.ref() for v in optimizer.variables()] == [v.ref() for v in optimizer.weights]
    assert len(optimizer.variables()) == 3 + 2 + 2  # counters, and two of each Adam


def test_the_counters_are_three(tf):
    with pytest.raises(InputError, match=r"cannot be replaced: .*iterations, embedding_op"):
        cc.CowClip().iterations = tf.Variable(5, dtype=tf.int64)
    rates = tf.keras.optimizers.schedules.PiecewiseConstantDecay([10], [1.0, 0.0])
    optimizer, kernel = cc.CowClip("sgd", tf.keras.optimizers.legacy.SGD(rates)), tf.Variable([1.0])
    for counter in (optimizer, optimizer.embedding_optimizer, optimizer.dense_optimizer):
        counter.iterations.assign(100)
    optimizer.apply_gradients([(tf.constant([1.0]), kernel)])
    assert kernel.numpy() == 1 and int(optimizer.iterations) == 101


def test_every_variable_has_a_name_of_its_own(tf):
    table, optimizer = tf.Variable(tf.ones([4, 2]), name="embeddings"), cc.CowClip(update="exact")
    optimizer.catch_up(table, tf.constant([1]))
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([4, 2]))
    optimizer.apply_gradients([(slices, table), (tf.ones([1]), tf.Variable([1.0], name="w"))])
    names = [variable.name for variable in optimizer.weights]
    assert len(names) == len(set(names)) == 7


@pytest.mark.parametrize("given", [{"update": "exact"}, {"update": "lazy", "backend": "numba"}])
def test_a_table_of_another_type_is_refused(tf, given):
    table = tf.Variable(tf.ones([5, 2], tf.float64), name="embeddings")
    slices = tf.IndexedSlices(tf.ones([1, 2], tf.float64), tf.constant([1]), tf.constant([5, 2]))
    with pytest.raises(InputError, match="is float64, "):
        cc.CowClip(**given).apply_gradients([(slices, table)])


def test_a_keras_regularizer_is_refused_with_the_remedy(tf, clicks):
    for strength in (1e-5, 0.0):  # Keras adds a penalty of 0, too, as in DeepCTR's models
        model = click_model(tf, regularizer=tf.keras.regularizers.L2(strength))
        model.compile(cc.CowClip(), "binary_crossentropy")
        with pytest.raises(InputError, match=r"embeddings.*dense.*regularizer \(l2\(0\), too.*l2="):
            model.fit(*clicks, batch_size=64, verbose=0)


@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_a_model_rebuilt_without_its_regularizer_is_one_that_never_had_it(tf, clicks, update):
    """The way that docs/optimizer.md shows."""
    plain, regularized = click_model(tf), click_model(tf, regularizer=tf.keras.regularizers.L2(0.0))
    for layer in regularized.layers:
        if isinstance(layer, tf.keras.layers.Embedding):
            layer.embeddings_regularizer = None
    rebuilt = tf.keras.models.clone_model(regularized)
    rebuilt.set_weights(plain.get_weights())
    for model in (plain, rebuilt):
        model.compile(cc.CowClip(update=update), "binary_crossentropy")
        model.fit(*clicks, batch_size=64, shuffle=False, verbose=0)
    for a, b in zip(plain.get_weights(), rebuilt.get_weights()):
        np.testing.assert_array_equal(a, b)


def test_an_empty_batch_is_l2_alone(tf):
    w = np.full((3, 2), 0.5, np.float32)
    table = tf.Variable(w)
    optimizer = cc.CowClip(tf.keras.optimizers.legacy.SGD(1.0), l2=0.1)
    empty = tf.IndexedSlices(tf.zeros([0, 2]), tf.zeros([0], tf.int64), (3, 2))
    optimizer.apply_gradients([(empty, table)])
    np.testing.assert_allclose(table.numpy(), w - 0.2 * w, atol=1e-7)
    assert optimizer.clipped_share.numpy() == 0


def test_lazy_leaves_absent_rows_bit_equal(tf):
    w = np.random.default_rng(0).normal(0, 1, (6, 3)).astype(np.float32)
    table = tf.Variable(w)
    optimizer = cc.CowClip(tf.keras.optimizers.legacy.Adam(0.1), l2=0.1, update="lazy")
    for _ in range(5):
        slices = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([1, 4]), (6, 3))
        optimizer.apply_gradients([(slices, table)])
    np.testing.assert_array_equal(table.numpy()[[0, 2, 3, 5]], w[[0, 2, 3, 5]])
    assert (table.numpy()[[1, 4]] != w[[1, 4]]).all()


def test_a_pattern_that_matches_nothing_stops_fit(tf, clicks):
    model = click_model(tf)
    model.compile(cc.CowClip(skip=["wide"]), "binary_crossentropy")
    before = model.get_weights()
    with pytest.raises(InputError, match=r"skip: 'wide' matches no table .*embeddings:0'"):
        model.fit(*clicks, batch_size=64, verbose=0)
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)
