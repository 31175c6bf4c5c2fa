"""CowClip beside or inside other optimizers of a model."""

import numpy as np
import pytest
from exact_models import SMALL, clicks

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.errors import InputError
from cowclip_merlin.models import MODELS, attach

mm = compat.merlin_models()


@pytest.mark.parametrize("updates", [("exact", "exact"), ("dense", "exact"), ("dense", "dense")])
def test_two_cowclips_are_refused_if_rows_may_wait(tf, schema, updates):
    model = MODELS["deepfm"](schema, **SMALL)
    first, second = (cc.CowClip(update=update, l2=1e-5) for update in updates)
    blocks = [mm.OptimizerBlocks(second, model.blocks[0].wide)]
    both = mm.MultiOptimizer(default_optimizer=first, optimizers_and_blocks=blocks)
    if "exact" in updates:
        with pytest.raises(InputError, match=r"two CowClips .*all tables"):
            model.compile(both, "mse")
    else:
        model.compile(both, "mse")
        assert model.row_sync.cowclip is first


@pytest.mark.thorough
def test_each_part_of_several_optimizers_has_patterns_of_its_own(tf, schema):
    """Merlin gives each optimizer only the variables of its blocks."""
    for pattern in ("wide_embeddings", "typo"):
        model = MODELS["deepfm"](schema, **SMALL)
        one, other = cc.CowClip(embeddings=["embeddings"]), cc.CowClip(embeddings=[pattern])
        blocks = [mm.OptimizerBlocks(other, [model.blocks[0].wide])]
        both = mm.MultiOptimizer(default_optimizer=one, optimizers_and_blocks=blocks)
        model.compile(both, "binary_crossentropy")
        if pattern == "typo":
            with pytest.raises(InputError, match="embeddings: 'typo' matches no table"):
                model.fit(clicks(tf), verbose=0)
        else:
            assert np.isfinite(model.fit(clicks(tf), verbose=0).history["loss"]).all()


def test_cowclip_is_found_inside_other_optimizers(tf, schema):
    cowclip, adam = cc.CowClip(update="exact"), tf.keras.optimizers.legacy.Adam()
    model = MODELS["deepfm"](schema, **SMALL)

    def several(first, other, part):
        blocks = [mm.OptimizerBlocks(other, part)]
        return mm.MultiOptimizer(default_optimizer=first, optimizers_and_blocks=blocks)

    body = model.blocks[0]
    scaled = tf.keras.mixed_precision.LossScaleOptimizer(cowclip, dynamic=False, initial_scale=1)
    for optimizer, found in (
        (scaled, cowclip),
        (adam, None),
        (several("adam", cowclip, body), cowclip),
        (several(cowclip, "adam", body.logit), cowclip),
    ):
        attach(model, optimizer)
        assert model.row_sync.cowclip is found
