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


def test_a_callback_moves_only_the_dense_rate(tf, clicks):
    model = click_model(tf)
    optimizer = cc.CowClip(tf.keras.optimizers.Adam(1e-2), tf.keras.optimizers.Adam(1e-3))
    model.compile(optimizer, "binary_crossentropy")
    callback = tf.keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr / 10)
    model.fit(*clicks, batch_size=128, epochs=2, verbose=0, callbacks=[callback])
    assert float(optimizer.lr.numpy()) == pytest.approx(1e-5)
    assert float(optimizer.embedding_optimizer.lr.numpy()) == pytest.approx(1e-2)


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
    with pytest.raises(InputError, match=r"cannot be replaced: assign to iterations, embedding_op"):
        cc.CowClip().iterations = tf.Variable(5, dtype=tf.int64)
    rates = tf.keras.optimizers.schedules.PiecewiseConstantDecay([10], [1.0, 0.0])
    optimizer, kernel = cc.CowClip("sgd", tf.keras.optimizers.legacy.SGD(rates)), tf.Variable([1.0])
    for counter in (optimizer, optimizer.embedding_optimizer, optimizer.dense_optimizer):
        counter.iterations.assign(100)
    optimizer.apply_gradients([(tf.constant([1.0]), kernel)])
    assert kernel.numpy() == 1 and int(optimizer.iterations) == 101


@pytest.mark.parametrize("name", ["lr", "learning_rate"])
def test_a_single_learning_rate_is_refused(name):
    """Merlin gives one to every optimizer under Horovod."""
    with pytest.raises(InputError, match=r"two learning rates.*Horovod is not supported"):
        cc.CowClip.from_config(cc.CowClip().get_config() | {name: 1e-3})


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
    with pytest.raises(InputError, match="is float64, but rows are updated"):
        cc.CowClip(**given).apply_gradients([(slices, table)])


def test_a_keras_regularizer_is_refused_with_the_remedy(tf, clicks):
    for strength in (1e-5, 0.0):  # Keras adds a penalty of 0, too, as in DeepCTR's models
        model = click_model(tf, regularizer=tf.keras.regularizers.L2(strength))
        model.compile(cc.CowClip(), "binary_crossentropy")
        with pytest.raises(InputError, match=r"embeddings.*dense.*regularizer \(l2\(0\), too.*l2="):
            model.fit(*clicks, batch_size=64, verbose=0)


@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_a_model_rebuilt_without_its_regularizer_is_one_that_never_had_it(tf, clicks, update):
    """The way that docs/training.md shows."""
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"update": "exact", "clip": "column"}, 'update="exact" works with the clips'),
        ({"update": "eager"}, "unknown update 'eager'; choose one of dense, exact, lazy"),
        ({"clip": "cow"}, "unknown clip 'cow'"),
        ({"backend": "cuda"}, "unknown backend 'cuda'"),
        ({"update": "exact", "l2": 0.7}, "needs 2 \\* l2 <= r"),
        (
            {"update": "exact", "embedding_optimizer": "adagrad"},
            'update="exact" works with Adam, .*not with Adagrad and l2 1e-05; use l2=0',
        ),
        (
            {"update": "lazy", "clip": "field", "backend": "numba"},
            "does not work with the clip 'field'; use backend=\"tensorflow\"",
        ),
        ({"l2": -1.0}, "l2 is -1.0"),
        ({"r": float("nan")}, "r is nan"),
        ({"zeta": float("inf")}, "zeta is inf"),
        ({"embedding_optimizer": "adman"}, "unknown optimizer 'adman'"),
        ({"embedding_optimizer": 3}, "builtins.int is not an optimizer"),
        ({"embedding_optimizer": "nadam", "update": "lazy"}, "not with Nadam"),
        ({"skip": ["("]}, "not a regular expression"),
        ({"embeddings": [3]}, "neither a name, a regex nor a variable"),
    ],
)
def test_wrong_arguments_are_named(tf, arguments, message):
    with pytest.raises(InputError, match=message):
        cc.CowClip(**arguments)


def test_an_optimizer_with_weight_decay_is_refused(tf):
    with pytest.raises(InputError, match="weight_decay"):
        cc.CowClip(tf.keras.optimizers.Adam(weight_decay=0.1))


@pytest.mark.parametrize("setting", ["clipnorm", "clipvalue", "global_clipnorm", "amsgrad"])
@pytest.mark.parametrize("given", [{"update": "exact"}, {"backend": "numba"}])
def test_a_setting_that_rows_would_not_follow_is_refused(tf, setting, given):
    """Neither kernels nor replayed steps know a clip of the whole gradient."""
    adam = tf.keras.optimizers.legacy.Adam(**{setting: 1e-3})
    with pytest.raises(InputError, match=f"not with Adam with {setting}; use "):
        cc.CowClip(adam, **given)


def halved(pairs):
    return [
        (type(g)(g.values / 2, g.indices, g.dense_shape) if hasattr(g, "indices") else g / 2, v)
        for g, v in pairs
    ]


@pytest.mark.parametrize("setting", [{"clipvalue": 1e-3}, {"gradient_transformers": [halved]}])
def test_lazy_keeps_what_the_optimizer_does_to_gradients(tf, setting):
    """With all rows in the batch it is "dense"."""
    ends = []
    for update in ("dense", "lazy"):
        table = tf.Variable(tf.ones([3, 2]))
        # SGD would show a scale, Adam only a large epsilon.
        adam = tf.keras.optimizers.legacy.Adam(0.1, epsilon=1.0, **setting)
        optimizer = cc.CowClip(adam, l2=0.0, update=update)
        slices = tf.IndexedSlices(tf.fill([3, 2], 0.5), tf.range(3), tf.constant([3, 2]))
        optimizer.apply_gradients([(slices, table)])
        ends.append(table.numpy())
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-6)


def test_one_object_as_both_optimizers_is_refused(tf):
    adam = tf.keras.optimizers.legacy.Adam()
    with pytest.raises(InputError, match="one object, which would count each step twice"):
        cc.CowClip(adam, adam)


@pytest.mark.parametrize("role", ["embedding_optimizer", "dense_optimizer"])
def test_a_cowclip_in_a_cowclip_is_refused(tf, role):
    """Its state would be kept, and its gradients clipped, twice."""
    inner = cc.CowClip()
    scaled = tf.keras.mixed_precision.LossScaleOptimizer(inner)
    for given in (inner, scaled, tf.keras.optimizers.serialize(inner)):
        with pytest.raises(InputError, match=f"^{role} is or holds a CowClip.* be clipped once"):
            cc.CowClip(**{role: given})


def test_variables_in_a_configuration_are_refused(tf):
    optimizer = cc.CowClip(skip=[tf.Variable(tf.ones([2, 2]), name="wide")])
    with pytest.raises(InputError, match="wide"):
        optimizer.get_config()


def sparse(tf, variable):
    return tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), (3, 2)), variable


@pytest.mark.parametrize("update", ["dense", "exact", "lazy"])
@pytest.mark.parametrize("argument", ["embeddings", "skip"])
def test_a_pattern_that_matches_no_table_is_named(tf, argument, update):
    """Without a word nothing would be clipped, or nothing left unclipped."""
    table, kernel = (tf.Variable(tf.ones([3, 2]), name=name) for name in ("users", "kernel"))
    pairs = [sparse(tf, table), (tf.ones([3, 2]), kernel)]
    cc.CowClip(**{argument: ["^users", "sers"], "update": update}).apply_gradients(pairs)
    before = table.numpy()
    for patterns in (["typo"], ["users", "typo"]):
        optimizer = cc.CowClip(**{argument: patterns, "update": update})
        with pytest.raises(InputError, match=f"{argument}: 'typo' matches no table of this .*'use"):
            optimizer.apply_gradients(pairs)
        np.testing.assert_array_equal(table.numpy(), before)
    with pytest.raises(InputError, match="skip: 'kernel' matches no table"):
        cc.CowClip(skip=["kernel"], update=update).apply_gradients(pairs)


def test_a_pattern_that_matches_nothing_stops_fit(tf, clicks):
    model = click_model(tf)
    model.compile(cc.CowClip(skip=["wide"]), "binary_crossentropy")
    before = model.get_weights()
    with pytest.raises(InputError, match=r"skip: 'wide' matches no table .*embeddings:0'"):
        model.fit(*clicks, batch_size=64, verbose=0)
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)


def test_gradients_may_come_in_several_calls(tf):
    one, two = (tf.Variable(tf.ones([3, 2]), name=name) for name in ("one", "two"))
    for argument in ("embeddings", "skip"):
        optimizer = cc.CowClip(**{argument: ["one", "two"]})
        with pytest.raises(
            InputError, match=r"'two' .*in another call .*, call register_tables\(\[table\]"
        ):
            optimizer.apply_gradients([sparse(tf, one)])
        optimizer.register_tables([two])
        for table in (one, two, one):
            optimizer.apply_gradients([sparse(tf, table)])
        assert int(optimizer.iterations) == 3


def test_a_table_without_a_gradient_in_this_step_matches_too(tf):
    one, two = (tf.Variable(tf.ones([3, 2]), name=name) for name in ("one", "two"))
    optimizer = cc.CowClip(embeddings=["one", "two"], skip=["two"])
    optimizer.apply_gradients([sparse(tf, one), (None, two)])
    assert int(optimizer.iterations) == 1


def test_tables_can_be_given_as_the_variables_they_are(tf):
    clipped, skipped, other = (tf.Variable(tf.ones([3, 2]), name="same") for _ in range(3))
    optimizer = cc.CowClip("sgd", "sgd", l2=0.0, embeddings=[clipped, skipped], skip=[skipped])
    g = tf.IndexedSlices(tf.constant([[300.0, 400.0]]), tf.constant([1]), tf.constant([3, 2]))
    optimizer.apply_gradients([(g, clipped), (g, skipped), (g, other)])
    moved = [1 - v.numpy() for v in (clipped, skipped, other)]
    np.testing.assert_allclose(moved[0][1], 0.01 * np.sqrt(2) * np.array([0.6, 0.8]), rtol=1e-5)
    for whole in moved[1:]:
        np.testing.assert_allclose(whole[1], [3.0, 4.0], rtol=1e-6)
    assert not np.concatenate([x[[0, 2]] for x in moved]).any()
