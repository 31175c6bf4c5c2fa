"""The probe's numbers against plain NumPy, and against what the optimizer says of its step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import thorough

from cowclip_merlin import choices, compat
from cowclip_merlin.contrib.diagnostics.probe import make_probe, row_norms_by_field
from cowclip_merlin.contrib.diagnostics.record import MEASURES, group_means
from cowclip_merlin.diagnostics import gradient_norms
from cowclip_merlin.errors import InputError
from cowclip_merlin.models import attach, logits
from cowclip_merlin.tables import TableLayout
from cowclip_merlin.training.train_step import make_train_step

CLIPS = [name for name, clip in choices.CLIPS.items() if clip.acts_on == "gradient"]
LAYOUT = TableLayout({"a": 25, "b": 15})


def batch_of(rows, places):
    return (
        {"categorical": rows.ids[places], "continuous": rows.continuous[places]},
        rows.label[places],
    )


def reference(model, inputs, label, optimizer):
    """(field, id) -> cnt, ||w||, ||g||, ||g + 2 l2 w||, factor; one id at a time, in float64."""
    tf, config = compat.tensorflow(), optimizer.get_config()
    tables = model.blocks[0].embedding.tables
    with tf.GradientTape() as tape:
        z = logits(model, inputs)[:, 0]
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label, z))
    slices = tape.gradient(loss, tables)
    values = np.concatenate([s.values.numpy().astype(np.float64) for s in slices])
    starts = np.cumsum([0, *(t.shape[0] for t in tables)])
    hit = np.concatenate([s.indices.numpy() + start for s, start in zip(slices, starts)])
    w = np.concatenate([t.numpy().astype(np.float64) for t in tables])
    found, first = {}, 0
    for field, size in enumerate(model.blocks[0].embedding.layout.fields.values()):
        for id_ in range(size):
            mine = hit == first + id_
            if not mine.any():
                continue
            row, g, cnt = w[first + id_], values[mine].sum(axis=0), mine.sum()
            full = g + 2 * config["l2"] * row
            floor = np.sqrt(len(row)) * config["zeta"]
            threshold = cnt * max(config["r"] * np.linalg.norm(row), floor)
            norm = np.linalg.norm(full)
            factor = min(1.0, threshold / norm) if norm > 0 else 1.0
            found[field, id_] = (cnt, np.linalg.norm(row), np.linalg.norm(g), norm, factor)
        first += size
    return found


def assert_as_reference(norms, expected):
    assert [*zip(norms.field.tolist(), norms.id.tolist())] == sorted(expected)
    wanted = np.array([expected[key] for key in sorted(expected)])
    np.testing.assert_array_equal(norms.cnt, wanted[:, 0])
    got = np.stack([norms.w_norm, norms.g_norm, norms.l2_g_norm, norms.factor], axis=1)
    np.testing.assert_allclose(got, wanted[:, 1:], rtol=2e-5, atol=1e-8)


@pytest.fixture(scope="module", params=["fused", "per_field"])
def probed(request, small_model, small_data, cowclip):
    """A model whose rows differ in scale, so that some are clipped; its optimizer and probe."""
    model, optimizer = small_model(request.param), cowclip(r=0.01)
    attach(model, optimizer)
    for table in model.blocks[0].embedding.tables:
        table.assign(table * np.logspace(-4, 0, table.shape[0])[:, None].astype(np.float32))
    return model, optimizer, make_probe(model, optimizer, small_data)


# Places of 64 rows, duplicates wanted; one row is enough for a batch.
@pytest.mark.one_case
@given(places=st.lists(st.integers(0, 63), min_size=1, max_size=40))
@settings(max_examples=25)
def test_the_probe_is_the_plain_reference(probed, small_rows, places):
    model, optimizer, probe = probed
    norms = probe(compat.tensorflow().constant(places, "int64"))
    assert_as_reference(norms, reference(model, *batch_of(small_rows, places), optimizer))


def test_the_example_rows_are_partly_clipped(probed, small_rows):
    model, optimizer, _ = probed
    norms = gradient_norms(model, optimizer, *batch_of(small_rows, np.arange(64)))
    assert 0.05 < (norms.factor < 1).mean() < 0.9
    assert_as_reference(norms, reference(model, *batch_of(small_rows, np.arange(64)), optimizer))


def test_a_zero_gradient_is_not_clipped_and_no_nan(small_model, small_rows, cowclip):
    model = small_model()
    for variable in model.trainable_variables:
        variable.assign(variable * 0)
    norms = gradient_norms(model, cowclip(zeta=0.0), *batch_of(small_rows, [0, 0, 1]))
    assert not norms.g_norm.any() and not norms.l2_g_norm.any()
    assert (norms.factor == 1).all() and norms.cnt.sum() == 9


@pytest.fixture
def eagerly():
    tf = compat.tensorflow()
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize(
    ("update", "clip", "tables"),
    [
        *(("dense", clip, "fused") for clip in CLIPS),
        ("exact", "cowclip", "fused"),
        ("dense", "cowclip", "per_field"),
        *(thorough("lazy", clip, "fused") for clip in CLIPS),
        *(thorough("dense", clip, "per_field") for clip in ("global", "adaptive_field")),
        thorough("exact", "cowclip", "per_field"),
        thorough("exact", "none", "fused"),
    ],
)
def test_the_optimizer_says_the_same_of_its_step(
    small_model, small_data, cowclip, eagerly, update, clip, tables
):
    """After some steps, so that with update="exact" rows are behind.

    Graphs take long to trace, and runs with diagnostics have them: see test_recording.py.
    """
    tf, model = compat.tensorflow(), small_model(tables)
    r = 1e-4 if clip == "adaptive_field" else 0.03
    optimizer = cowclip(update=update, clip=clip, r=r, bound=0.02, backend="tensorflow")
    optimizer.create_state(model.trainable_variables)
    step = make_train_step(model, optimizer, small_data, tf.Variable(0.0, dtype=tf.float64))
    for first in range(3):
        step(tf.range(first, first + 4, dtype=tf.int64))
    before = [v.numpy() for v in model.trainable_variables]
    norms = make_probe(model, optimizer, small_data)(tf.range(1, 41, dtype=tf.int64))
    if update != "exact":  # there the probe brings up to date what the step would have
        for v, b in zip(model.trainable_variables, before):
            np.testing.assert_array_equal(v.numpy(), b)
    step(tf.range(1, 41, dtype=tf.int64))
    share, factor = float(optimizer.clipped_share), float(optimizer.mean_clip_factor)
    assert (norms.factor < 1).mean() == pytest.approx(share, abs=1e-6)
    assert norms.factor.mean() == pytest.approx(factor, rel=1e-5)
    assert (share > 0) == (clip != "none")


def test_a_global_norm_takes_in_the_wide_part_if_it_is_not_skipped(
    small_model, small_rows, small_data, cowclip
):
    tf, model = compat.tensorflow(), small_model()
    optimizer = cowclip(clip="global", bound=1e-3, skip=(), update="lazy", backend="tensorflow")
    optimizer.create_state(model.trainable_variables)
    step = make_train_step(model, optimizer, small_data, tf.Variable(0.0, dtype=tf.float64))
    norms = make_probe(model, optimizer, small_data)(tf.range(40, dtype=tf.int64))
    step(tf.range(40, dtype=tf.int64))
    assert norms.factor.mean() == pytest.approx(float(optimizer.mean_clip_factor), rel=1e-5)


def test_skipped_embeddings_have_norms_but_no_clip(small_model, small_rows, cowclip):
    optimizer = cowclip(r=1e-9, zeta=0.0, skip=["embeddings"])
    norms = gradient_norms(small_model(), optimizer, *batch_of(small_rows, np.arange(9)))
    assert (norms.factor == 1).all() and (norms.g_norm > 0).all()


def test_a_scaled_loss_changes_no_norm(small_model, small_rows, cowclip):
    tf, model, batch = compat.tensorflow(), small_model(), batch_of(small_rows, np.arange(64))
    scaled = tf.keras.mixed_precision.LossScaleOptimizer(cowclip(), initial_scale=2.0**10)
    plain, other = (gradient_norms(model, o, *batch) for o in (cowclip(), scaled))
    np.testing.assert_allclose(other.g_norm, plain.g_norm, rtol=1e-6)
    np.testing.assert_allclose(other.factor, plain.factor, rtol=1e-6)


def test_an_optimizer_without_cowclip_is_refused(small_model, small_rows):
    adam = compat.tensorflow().keras.optimizers.legacy.Adam()
    with pytest.raises(InputError, match="Adam wraps no CowClip"):
        gradient_norms(small_model(), adam, *batch_of(small_rows, np.arange(3)))


def test_inputs_by_column_give_the_same(small_model, small_rows, cowclip, fields):
    model, (stacked, label) = small_model(), batch_of(small_rows, np.arange(20))
    columns = {name: stacked["categorical"][:, f] for f, name in enumerate(fields)}
    columns |= {f"I{i + 1}": stacked["continuous"][:, i] for i in range(13)}
    a = gradient_norms(model, cowclip(), stacked, label)
    b = gradient_norms(model, cowclip(), columns, label)
    np.testing.assert_array_equal(a.g_norm, b.g_norm)
    np.testing.assert_array_equal(a.id, b.id)


@st.composite
def grouped_rows(draw):
    u = draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.exponential(size=(4, u)).astype(np.float32)
    values[3] = np.minimum(values[3], 1)
    rows = rng.permutation(40)[:u]
    return row_norms_by_field(LAYOUT, rows, rng.integers(1, 9, u), values), rng.integers(0, 4, u)


@given(drawn=grouped_rows())
@settings(max_examples=50)
def test_means_are_those_of_each_group_alone(drawn):
    norms, group = drawn
    found = group_means(norms, group, 4)
    assert found.keys() == set(MEASURES)
    for place in range(4):
        mine = group == place
        if not mine.any():
            assert found["rows"][place] == 0 and np.isnan(found["g_norm"][place])
            continue
        expected = {
            "rows": mine.sum(),
            "occurrences": norms.cnt[mine].sum(),
            "clipped_share": np.mean(norms.factor[mine] < 1),
            "mean_clip_factor": np.mean(norms.factor[mine]),
            "w_norm": np.mean(norms.w_norm[mine]),
            "g_norm": np.mean(norms.g_norm[mine]),
            "l2_g_norm": np.mean(norms.l2_g_norm[mine]),
            "g_norm_per_cnt": np.mean([g / c for g, c in zip(norms.g_norm[mine], norms.cnt[mine])]),
        }
        for name, value in expected.items():
            assert found[name][place] == pytest.approx(value, rel=1e-5), name


def test_rows_are_found_in_their_fields():
    rows = np.array([24, 25, 0, 39])
    norms = row_norms_by_field(LAYOUT, rows, np.ones(4), np.ones((4, 4), np.float32))
    assert [*zip(norms.field.tolist(), norms.id.tolist())] == [(0, 0), (0, 24), (1, 0), (1, 14)]
