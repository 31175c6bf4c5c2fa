"""Adagrad and row-wise Adagrad as the embedding optimizer, against NumPy float64."""

import numpy as np
import pytest
from emulated_cupy import COMPILER
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError

ROWS, STEPS, LR = 9, 40, 0.05


def numpy_adagrad(w, batches, *, rowwise, l2, start, lazy=False, clip="none", bound=0.25):
    """Row by row: sum, L2, clip, accumulate, move; row-wise, a row has one sum of mean squares."""
    w, dim = w.astype(np.float64), w.shape[1]
    sums = np.full((len(w), 1 if rowwise else dim), start)
    for ids, values in batches:
        for k in range(len(w)):
            mine = np.flatnonzero(ids == k)
            if lazy and not len(mine):
                continue
            g = values[mine].astype(np.float64).sum(0) + 2 * l2 * w[k]
            limit = {
                "none": np.inf,
                "cowclip": max(len(mine), 1) * max(np.linalg.norm(w[k]), np.sqrt(dim) * 1e-5),
                "column": bound,
            }[clip]
            if np.linalg.norm(g) > limit:
                g = g * limit / np.linalg.norm(g)
            sums[k] += np.mean(g**2) if rowwise else g**2
            w[k] -= LR * g / (np.sqrt(sums[k]) + 1e-7)
    return w


def log(seed, dim=3):
    rng = np.random.default_rng(seed)
    w = rng.normal(0, 0.1, (ROWS, dim)).astype(np.float32)
    batches = []
    for _ in range(STEPS):
        ids = (rng.zipf(1.3, 12) - 1) % (ROWS - 2)  # two ids never come
        batches.append((ids, rng.normal(0, rng.choice([1e-3, 1.0]), (12, dim)).astype(np.float32)))
    return w, batches


def trained(tf, w, batches, *, rowwise=False, start=0.1, **arguments):
    table = tf.Variable(w)
    kind = cc.RowWiseAdagrad if rowwise else tf.keras.optimizers.legacy.Adagrad
    optimizer = cc.CowClip(kind(LR, initial_accumulator_value=start), **arguments)

    signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, w.shape[1]])]

    @tf.function(input_signature=signature)
    def step(ids, values):
        optimizer.catch_up(table, ids)
        optimizer.apply_gradients([(tf.IndexedSlices(values, ids, w.shape), table)])

    for batch in batches:
        step(*map(tf.constant, batch))
    optimizer.flush()
    return table.numpy()


def cases(*ways):
    """Decorator: draw numbers, and how to update rows from these pairs of update and backend."""
    return given(
        how=st.sampled_from(ways),
        start=st.sampled_from([0.0, 0.1, 1.0]),
        drawn=st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 40])),
        numbers=st.fixed_dictionaries(
            {
                "rowwise": st.booleans(),
                "clip": st.sampled_from(["none", "cowclip", "column"]),
                "l2": st.sampled_from([0.0, 1e-4, 1e-2]),
                "bound": st.just(0.25),
            }
        ),
    )


def check_forty_steps(tf, how, start, batches, numbers):
    update, backend = how
    numbers = numbers | {"start": start}
    # By itself, CowClip does not clip weights of length 1.
    got = trained(tf, *batches, update=update, backend=backend, skip=(), **numbers)
    expected = numpy_adagrad(*batches, lazy=update == "lazy", **numbers)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-6 if start else 1e-4)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@cases(("dense", "tensorflow"), ("lazy", "tensorflow"), ("lazy", "numba"))
def test_forty_steps(tf, how, start, drawn, numbers):
    check_forty_steps(tf, how, start, log(*drawn), numbers)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@cases(("dense", "cupy"), ("lazy", "cupy"))
def test_forty_steps_on_a_gpu(tf, where, how, start, drawn, numbers):
    """With "dense", rows that are not in the batch get L2 and a clip, too."""
    check_forty_steps(tf, how, start, log(*drawn), numbers)


def test_without_a_clip_numba_has_the_bits_of_tensorflows_adagrad(tf):
    w, batches = log(3)
    numbers = {"update": "lazy", "clip": "none", "l2": 1e-3}
    ends = [trained(tf, w, batches, backend=each, **numbers) for each in ("numba", "tensorflow")]
    np.testing.assert_array_equal(*ends)


def test_a_row_without_any_gradient_stays(tf):
    """Also if its accumulator and epsilon are 0: a step must not divide 0 by 0."""
    w = np.ones((ROWS, 3), np.float32)
    nothing = [(np.array([1, 1]), np.zeros((2, 3), np.float32))]
    for update, backend in (("dense", "tensorflow"), ("lazy", "tensorflow"), ("lazy", "numba")):
        table = tf.Variable(w)
        inner = cc.RowWiseAdagrad(LR, initial_accumulator_value=0.0, epsilon=0.0)
        optimizer = cc.CowClip(inner, update=update, backend=backend, l2=0.0)
        for ids, values in nothing:
            gradient = tf.IndexedSlices(tf.constant(values), tf.constant(ids), w.shape)
            optimizer.apply_gradients([(gradient, table)])
        np.testing.assert_array_equal(table.numpy(), w)


def test_alone_it_sums_equal_ids_and_takes_any_variable(tf):
    """As any Keras optimizer, without CowClip."""
    table, bias = tf.Variable(tf.zeros([3, 2])), tf.Variable(tf.zeros([2]))
    adagrad = cc.RowWiseAdagrad(0.5, initial_accumulator_value=0.0, epsilon=0.0)
    twice = tf.IndexedSlices(tf.constant([[1.0, 4.0], [2.0, 0.0]]), tf.constant([2, 2]), (3, 2))
    adagrad.apply_gradients([(twice, table), (tf.constant([2.0, 0.0]), bias)])
    np.testing.assert_allclose(table.numpy()[2], -0.5 * np.array([3, 4]) / np.sqrt(12.5))
    np.testing.assert_array_equal(table.numpy()[:2], 0.0)
    np.testing.assert_allclose(bias.numpy(), [-0.5, 0.0])
    assert [tuple(adagrad.get_slot(x, "accumulator").shape) for x in (table, bias)] == [
        (3, 1),
        (2,),
    ]


def test_a_gradient_that_is_not_finite_stops_the_step(tf):
    w, batches = log(4)
    table = tf.Variable(w)
    optimizer = cc.CowClip(cc.RowWiseAdagrad(LR), update="lazy", backend="numba")
    values = np.full_like(batches[0][1], np.nan)
    with pytest.raises(InputError, match=r"gradient of .* is not finite"):
        gradient = tf.IndexedSlices(tf.constant(values), tf.constant(batches[0][0]), w.shape)
        optimizer.apply_gradients([(gradient, table)])
    np.testing.assert_array_equal(table.numpy(), w)


def test_a_checkpoint_holds_the_accumulators_of_each_table_once(tf, tmp_path):
    def made(first):
        first_rows = [first + tf.random.stateless_normal([5, d], [d, 0]) for d in (3, 1)]
        tables = [tf.Variable(x, name="embeddings") for x in first_rows]
        optimizer = cc.CowClip(cc.RowWiseAdagrad(0.1), update="lazy")
        optimizer.create_state(tables)
        sums = [optimizer.get_slot(table, "accumulator") for table in tables]
        return tf.train.Checkpoint(optimizer=optimizer, tables=tables), sums

    checkpoint, sums = made(1.0)
    for i, each in enumerate(sums):
        each.assign(tf.random.stateless_uniform([5, 1], [i, 1]))
    path = checkpoint.save(str(tmp_path / "c"))
    names = [name for name, _ in tf.train.list_variables(path) if "accumulator" in name]
    assert len(names) == 2
    other, found = made(2.0)
    other.restore(path).assert_consumed()
    for x, y in zip(found, sums, strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())


@pytest.mark.parametrize("form", ["model.keras", "model.h5", "model"])
def test_a_saved_model_trains_on_where_it_was(tf, tmp_path, form):
    keras = tf.keras
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(0, 20, (64, 2)), rng.integers(0, 2, (64, 1))
    embed = keras.layers.Embedding(20, 4, input_length=2)
    model = keras.Sequential([embed, keras.layers.Flatten(), keras.layers.Dense(1, "sigmoid")])
    adagrad = keras.optimizers.legacy.Adagrad(0.1)
    optimizer = cc.CowClip(cc.RowWiseAdagrad(0.2, epsilon=1e-6), adagrad, update="lazy")
    model.compile(optimizer, "binary_crossentropy")
    fit = {"batch_size": 16, "shuffle": False, "verbose": 0}
    model.fit(ids, labels, **fit)
    model.save(tmp_path / form)
    again = cc.load_model(str(tmp_path / form))
    sums = [m.optimizer.embedding_optimizer.get_slot(m.layers[0].embeddings, "accumulator")
            for m in (model, again)]  # fmt: skip
    assert sums[0].shape == (20, 1) and np.ptp(sums[0].numpy()) > 0
    np.testing.assert_array_equal(sums[0].numpy(), sums[1].numpy())
    for each in (model, again):
        each.fit(ids, labels, **fit)
    for x, y in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd", "rowwise"])
@pytest.mark.parametrize("clip", ["none", "cowclip"])
def test_without_l2_exact_is_dense_bit_for_bit(tf, optimizer, clip):
    w, batches = log(1)
    ends = {}
    for update in ("dense", "exact"):
        table = tf.Variable(w)
        inner = cc.RowWiseAdagrad() if optimizer == "rowwise" else optimizer
        opt = cc.CowClip(inner, update=update, clip=clip, l2=0.0, backend="tensorflow")
        for ids, values in batches:
            opt.apply_gradients(
                [(tf.IndexedSlices(*map(tf.constant, (values, ids)), w.shape), table)]
            )
        ends[update] = table.numpy()
    np.testing.assert_array_equal(ends["exact"], ends["dense"])
    assert np.abs(ends["exact"][: ROWS - 2] - w[: ROWS - 2]).max() > 1e-3
    np.testing.assert_array_equal(ends["exact"][ROWS - 2 :], w[ROWS - 2 :])


@pytest.mark.parametrize("rowwise", [False, True])
@pytest.mark.parametrize("backend", ["numba", "tensorflow"])
def test_exact_touches_only_the_rows_of_the_batch(tf, rowwise, backend):
    """An id outside of it may then hold anything: NaN spreads nowhere."""
    w, batches = log(2)
    w[ROWS - 1] = np.nan
    how = {"update": "exact", "clip": "none", "l2": 0.0, "backend": backend}
    got = trained(tf, w, batches, rowwise=rowwise, **how)
    assert np.isfinite(got[: ROWS - 1]).all() and np.isnan(got[ROWS - 1]).all()


def test_the_configuration_keeps_what_was_asked_for(tf, kernels):
    for inner in ("adagrad", cc.RowWiseAdagrad(0.3, initial_accumulator_value=0.2, epsilon=1e-4)):
        optimizer = cc.CowClip(inner, update="exact", l2=0.0)
        config = optimizer.get_config()
        assert config["update"] == "exact" and optimizer.config.update == "lazy"
        assert optimizer.backend == kernels
        assert cc.CowClip.from_config(config).get_config() == config


@pytest.mark.system
@pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")
def test_where_a_gpu_is_its_kernels_update_rows(tf, emulated, monkeypatch):
    """`auto` takes them for the rows of a batch; "dense" is TensorFlow's unless asked for."""
    from cowclip_merlin.optimizer import config

    monkeypatch.setattr(config.tf.config, "list_logical_devices", lambda kind: ["GPU:0"])
    monkeypatch.setattr(config, "find_spec", lambda name: name)
    for inner in ("adagrad", cc.RowWiseAdagrad()):
        found = [cc.CowClip(inner, update=x, l2=0.0).backend for x in ("exact", "lazy", "dense")]
        assert found == ["cupy", "cupy", "tensorflow"]
        assert cc.CowClip(inner, update="dense", backend="cupy", l2=1e-3).backend == "cupy"
