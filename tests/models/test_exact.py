"""The five models under `update="exact"`: what fit, evaluate, predict and save see."""

import warnings

import numpy as np
import pytest
from exact_models import SMALL, clicks, fitted, tables_of
from tiers import thorough

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.diagnostics import gradient_norms
from cowclip_merlin.errors import InputError
from cowclip_merlin.models import MODELS, attach

mm = compat.merlin_models()


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("name", "tables"),
    [("deepfm", "fused"), ("wide_and_deep", "fused"), ("dcnv2", "per_field")],
)
def test_fit_gives_the_weights_of_dense(tf, schema, name, tables, recwarn):
    dense, exact = (
        fitted(tf, schema, name, update, tables=tables, validated=True)
        for update in ("dense", "exact")
    )
    assert not [w for w in recwarn if "exact" in str(w.message)]
    losses, seen = (model.history.history["val_loss"] for model in (dense, exact))
    assert len(losses) == 2
    np.testing.assert_allclose(seen, losses, rtol=1e-5)
    for a, b in zip(dense.get_weights(), exact.get_weights(), strict=True):
        np.testing.assert_allclose(b, a, atol=2e-5 * np.abs(a).max())


@pytest.mark.thorough
def test_without_bringing_rows_up_to_date_the_weights_differ(tf, schema, monkeypatch):
    """The test above can fail: here lookups read what they find."""
    expected = fitted(tf, schema, "deepfm", "dense")
    monkeypatch.setattr("cowclip_merlin.models.ctr_model.attach", lambda *_: None)
    with pytest.raises(InputError, match="nothing brings rows of"):
        fitted(tf, schema, "deepfm", "exact")
    monkeypatch.delattr(cc.CowClip, "_compute_gradients")  # which refuses
    with pytest.warns(UserWarning, match="not brought up to date"):
        stale = fitted(tf, schema, "deepfm", "exact")
    assert np.abs(stale.get_weights()[0] - expected.get_weights()[0]).max() > 1e-4


def own_loop(tf, schema, update, training):
    """Weights after a loop as users write them, and what they were told."""
    model = MODELS["deepfm"](schema, **SMALL)
    optimizer = cc.CowClip(tf.keras.optimizers.legacy.Adam(1e-2), l2=1e-2, update=update)
    attach(model, optimizer)
    variables, loss_of = model.trainable_variables, tf.keras.losses.BinaryCrossentropy()

    @tf.function
    def step(inputs, label):
        with tf.GradientTape() as tape:
            loss = loss_of(label, model(inputs, training=training))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    model(next(iter(clicks(tf)))[0])  # to look at it; this one sees current rows in any case
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in clicks(tf):
            step(*rows)
    optimizer.flush()
    told = [w for w in caught if "not brought up to date" in str(w.message)]
    return [v.numpy() for v in variables], told


@pytest.mark.one_case
@pytest.mark.parametrize("training", [True, None])
def test_a_loop_of_your_own(tf, schema, training):
    """In a graph only training brings rows up to date: without it you are told."""
    dense, _ = own_loop(tf, schema, "dense", training)
    exact, told = own_loop(tf, schema, "exact", training)
    assert bool(told) == (training is None)
    worst = max(np.abs(a - b).max() for a, b in zip(dense, exact, strict=True))
    assert worst <= 1e-6 if training else worst > 1e-4


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("eager", "views"),
    [(False, ("predict", "save", "save_weights", "call")), (True, ("predict", "call"))],
)
def test_predict_and_save_see_current_tables(tf, schema, batch, tmp_path, eager, views):
    """Training goes on after each of them: rows owe steps again."""
    model = fitted(tf, schema, "deepfm", "exact", epochs=1, rows=80, run_eagerly=eager)
    one = {k: v[:1] for k, v in batch.items()}
    for view in views:
        model.fit(tf.data.Dataset.from_tensors((one, np.ones([1, 1]))), verbose=0)
        stale = [v.numpy() for v in tables_of(model)]
        if view == "predict":
            got = model.predict(tf.data.Dataset.from_tensors(batch), verbose=0)
        elif view == "call":
            got = model(batch).numpy()
        elif view == "save":
            model.save(str(tmp_path / "model"))
            assert model.row_sync.cowclip is model.optimizer
            got = cc.load_model(str(tmp_path / "model"))(batch).numpy()
        else:
            model.save_weights(str(tmp_path / "weights"))
            other = MODELS["deepfm"](schema, **SMALL)
            other.load_weights(str(tmp_path / "weights")).expect_partial()
            got = other(batch).numpy()
        model.flush()
        assert any((s != v.numpy()).any() for s, v in zip(stale, tables_of(model), strict=True))
        assert got.shape == (40, 1)
        np.testing.assert_allclose(got, model(batch), atol=1e-6)


@pytest.fixture(scope="module")
def owing(tf, schema):
    """Make a model whose absent rows have missed 80 steps, and an optimizer to go on with.

    With "dense" no step is missed: those models share the weights of one that was trained.
    """
    trained = {}

    def make(update):
        model = MODELS["deepfm"](schema, **SMALL)
        optimizer = cc.CowClip(tf.keras.optimizers.legacy.Adam(1e-2), l2=1e-2, update=update)
        model.compile(optimizer, "binary_crossentropy")
        start = model.get_weights()
        if update in trained:
            model.set_weights(trained[update])
        else:
            model.fit(clicks(tf), verbose=0)
        if update == "dense":
            trained[update] = model.get_weights()
        return model, start, cc.CowClip.from_config(optimizer.get_config())

    return make


@pytest.mark.one_case
@pytest.mark.parametrize(
    "way", ["set_weights", "set_weights of parts", "load_weights", "compile", "attach"]
)
def test_no_step_is_lost_or_comes_late(schema, owing, tmp_path, way):
    """Replaced weights stay as they are; steps an optimizer owes are done when it is replaced."""
    ends = []
    for update in ("dense", "exact"):
        model, start, other = owing(update)
        if way == "set_weights":
            model.set_weights(start)
        elif way == "set_weights of parts":
            body = model.blocks[0]
            body.set_weights([w / 2 for w in body.get_weights()])
            for part in (body.embedding, body.wide):
                part.set_weights([w + 1 for w in part.get_weights()])
        elif way == "load_weights":
            fresh = MODELS["deepfm"](schema, **SMALL)
            fresh.save_weights(str(tmp_path / "start.h5"))
            model.load_weights(str(tmp_path / "start.h5"))
        elif way == "compile":
            model.blocks[0].embedding.trainable = False
            model.compile(other, "binary_crossentropy")
        else:
            attach(model, other)
            model.optimizer = other
        ends.append(model.get_weights())
    for dense, exact in zip(*ends, strict=True):
        np.testing.assert_allclose(exact, dense, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("view", ["predict_on_batch", "test_on_batch"])
def test_one_batch_sees_current_tables(owing, batch, view):
    label = np.zeros([40, 1], "f")
    seen = []
    for update in ("dense", "exact"):
        model, *_ = owing(update)
        given = (batch,) if view == "predict_on_batch" else (batch, label)
        seen.append(getattr(model, view)(*given))
    np.testing.assert_allclose(seen[1], seen[0], atol=1e-6)


def test_xla_is_refused(tf, schema):
    model = MODELS["deepfm"](schema, **SMALL)
    with pytest.raises(InputError, match="jit_compile=True: XLA has no operation that counts ids"):
        model.compile(cc.CowClip(), "binary_crossentropy", jit_compile=True)
    model.compile("adam", "binary_crossentropy", jit_compile=True)


@pytest.mark.thorough
@pytest.mark.parametrize("tables", ["fused", "per_field"])
def test_state_is_in_the_order_of_the_variables(tf, schema, tables):
    """So `set_weights` of an optimizer that has not seen a batch takes what one that has gives."""
    one = fitted(tf, schema, "deepfm", "exact", epochs=1, tables=tables)
    other = MODELS["deepfm"](schema, tables=tables, **SMALL)
    optimizer = cc.CowClip.from_config(one.optimizer.get_config())
    other.compile(optimizer, "binary_crossentropy")
    optimizer.create_state(other.trainable_variables)
    other.set_weights(one.get_weights())
    optimizer.set_weights(one.optimizer.get_weights())
    for model in (one, other):
        model.fit(clicks(tf, 40), verbose=0)
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-6)


@pytest.mark.thorough
def test_keras_saves_the_best_model(tf, schema, batch, tmp_path):
    """`ModelCheckpoint` gives `save` arguments that Merlin's does not take."""
    path = str(tmp_path / "best")
    kept = tf.keras.callbacks.ModelCheckpoint(path, monitor="val_loss", save_best_only=True)
    model = MODELS["deepfm"](schema, **SMALL)
    optimizer = cc.CowClip(tf.keras.optimizers.legacy.Adam(1e-2), l2=1e-2, update="exact")
    model.compile(optimizer, "binary_crossentropy")
    model.fit(clicks(tf), validation_data=clicks(tf, 40), callbacks=[kept], verbose=0)
    np.testing.assert_allclose(cc.load_model(path)(batch), model(batch), atol=1e-6)
    assert (tmp_path / "best" / ".merlin").is_dir()


@pytest.fixture(scope="module")
def checkpoint(tf, schema, tmp_path_factory):
    """A checkpoint whose rows owe steps; tables as they are in it, and after those steps."""
    model = fitted(tf, schema, "deepfm", "exact")
    model.fit(clicks(tf, 40), verbose=0)
    folder = tmp_path_factory.mktemp("checkpoint")
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(folder / "c"))
    stale = [w.numpy() for w in tables_of(model)]
    model.flush()
    return path, stale, [w.numpy() for w in tables_of(model)]


@pytest.mark.one_case
@pytest.mark.parametrize("look", ["get_weights", "predict", "save_weights"])
def test_a_restored_model_sees_what_its_rows_had_missed(tf, schema, checkpoint, tmp_path, look):
    """A checkpoint in the middle: the steps that rows owe are in it, in state made later."""
    path, stale, current = checkpoint
    other = MODELS["deepfm"](schema, **(SMALL | {"seed": 4}))
    adam = tf.keras.optimizers.legacy.Adam
    other.compile(cc.CowClip(adam(1e-2), adam(1e-3), l2=1e-2, update="exact"), "mse")
    tf.train.Checkpoint(model=other, optimizer=other.optimizer).restore(path)
    given = {"get_weights": (), "predict": (clicks(tf, 40),), "save_weights": (tmp_path / "w.h5",)}
    getattr(other, look)(*map(lambda x: str(x) if look == "save_weights" else x, given[look]))
    for table, before, after in zip(tables_of(other), stale, current, strict=True):
        np.testing.assert_array_equal(table.numpy(), after)
        assert np.abs(after - before).max() > 0


@pytest.mark.thorough
def test_a_look_at_gradients_leaves_the_model_with_its_optimizer(tf, schema, batch):
    """Training afterwards gives the weights of dense, as without the look."""
    ends = []
    for update in ("dense", "exact"):
        model = fitted(tf, schema, "deepfm", update, epochs=1)
        label = np.zeros(len(next(iter(batch.values()))), "f")
        gradient_norms(model, cc.CowClip(r=0.1), batch, label)
        model.run_eagerly = True  # traces anew
        model.fit(clicks(tf, 60), verbose=0)
        ends.append(model.get_weights())
    for a, b in zip(*ends, strict=True):
        np.testing.assert_allclose(b, a, atol=2e-5 * np.abs(a).max())


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(mm.Model, "export"), reason="Keras exports from 2.13 on")
def test_an_export_by_keras_has_current_tables(tf, schema, batch, tmp_path):
    model = fitted(tf, schema, "deepfm", "exact", epochs=1)
    model.fit(clicks(tf, 40), verbose=0)
    stale = [w.numpy() for w in tables_of(model)]
    model.export(str(tmp_path / "MODEL"))
    assert any(np.abs(w.numpy() - old).max() > 0 for w, old in zip(tables_of(model), stale))
    loaded = [v for v in tf.saved_model.load(str(tmp_path / "MODEL")).variables]
    for table in tables_of(model):
        assert any(v.shape == table.shape and (v.numpy() == table.numpy()).all() for v in loaded)


def test_a_lookup_brings_all_tables_up_to_date_at_once(tf, schema, batch):
    """One call for embeddings and first-order weights: they have the same ids to be sorted."""
    calls = []

    class Watched(cc.CowClip):
        def catch_up(self, table, ids):
            calls.append([tuple(each.shape) for each in table])
            super().catch_up(table, ids)

    model = MODELS["deepfm"](schema, **SMALL)
    attach(model, Watched(update="exact"))
    model.blocks[0](batch, training=True)
    rows = sum(model.blocks[0].columns.fields.values())
    assert calls == [[(rows, SMALL["embedding_dim"]), (rows, 1)]]


@pytest.mark.parametrize("update", ["exact", thorough("lazy")])
def test_a_loaded_model_trains_on_where_it_was(tf, schema, tmp_path, update):
    one = fitted(tf, schema, "deepfm", update, epochs=1, rows=40)
    one.save(str(tmp_path / "model"))
    other = cc.load_model(str(tmp_path / "model"))
    assert int(other.optimizer.iterations) == 10
    for model in (one, other):
        model.fit(clicks(tf, 40), verbose=0)
    for mine, saved in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, saved)


def test_a_second_model_is_refused(tf, schema):
    first = fitted(tf, schema, "deepfm", "exact", epochs=1, rows=8)
    second = MODELS["deepfm"](schema, **SMALL)
    second.compile(first.optimizer, "binary_crossentropy")
    with pytest.raises(InputError, match="has trained another model than that of"):
        second.fit(clicks(tf, 8), verbose=0)
