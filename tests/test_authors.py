"""Our optimizer against numbers recorded from the paper's authors' code; see authors/record.py."""

from pathlib import Path

import numpy as np
import pytest

import cowclip_merlin as cc
from cowclip_merlin import compat, kernels
from cowclip_merlin.kernels import RowSettings

tf = compat.tensorflow()
VECTORS = dict(np.load(Path(__file__).parent / "authors" / "vectors.npz"))
RATE, L2, ZETA = map(float, VECTORS["settings"])


@pytest.mark.parametrize("module", ["reference", "numba"])
def test_single_calls(module):
    for place in range(int(VECTORS["calls"])):
        w, g, ids, r, clipped = (
            VECTORS[f"call{place}_{name}"] for name in ("w", "g", "ids", "r", "clipped")
        )
        cnt = np.bincount(ids, minlength=len(w))
        # Their bound is multiplied by r twice: r * max(||w||, r * sqrt(d) * zeta).
        settings = RowSettings(l2=0.0, r=float(r), zeta=float(r) ** 2 * ZETA)
        got, _ = kernels.load(module).clip_rows(g, w, cnt, settings)
        np.testing.assert_allclose(got, clipped, rtol=2e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore:update=.exact.:UserWarning")
@pytest.mark.parametrize("update", ["dense", "exact"])
@pytest.mark.parametrize("r", [1.0, 0.1])
def test_twenty_training_steps(update, r):
    tables, direction, ids, label = (
        VECTORS[f"train{r:g}_{name}"] for name in ("tables", "direction", "ids", "label")
    )
    table = tf.Variable(tables[0], name="embeddings")
    adam = tf.keras.optimizers.legacy.Adam(RATE)
    optimizer = cc.CowClip(adam, r=r, zeta=r**2 * ZETA, l2=L2, update=update)
    clipped = []
    for step in range(len(ids)):
        optimizer.catch_up(table, ids[step])
        with tf.GradientTape() as tape:
            z = tf.linalg.matvec(tf.gather(table, ids[step]), direction) * 50
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label[step], z))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        clipped.append(float(optimizer.clipped_share.numpy()))
        if update == "dense":
            np.testing.assert_allclose(table.numpy(), tables[step + 1], atol=2e-6)
    optimizer.flush()
    np.testing.assert_allclose(table.numpy(), tables[-1], atol=2e-6)
    assert 0 < np.mean(clipped) < 1  # the clip was at work, and not always


def test_where_our_default_differs():
    """Our bound has no r: with r = 10 the same zeta clips harder than theirs does."""
    furthest = 0.0
    for place in range(int(VECTORS["calls"])):
        w, g, ids, r, clipped = (
            VECTORS[f"call{place}_{name}"] for name in ("w", "g", "ids", "r", "clipped")
        )
        cnt = np.bincount(ids, minlength=len(w))
        settings = RowSettings(r=float(r), zeta=ZETA)
        got, _ = kernels.load("reference").clip_rows(g, w, cnt, settings)
        if r == 1:
            np.testing.assert_allclose(got, clipped, rtol=2e-6, atol=1e-9)
        else:
            furthest = max(furthest, np.abs(got - clipped).max())
            assert (np.abs(got) <= np.abs(clipped) * (1 + 1e-5) + 1e-9).all()
    assert furthest > 1e-2
