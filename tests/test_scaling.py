import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import (
    ADAM_RULES,
    BETA_1_FLOOR,
    PRESETS,
    RULES,
    Hyperparameters,
    rebase,
    scale,
)

K = 1024

# docs/method.md, "When the batch grows": factors of embedding lr, dense lr, l2, epsilon, r and zeta
TABLE = {
    "none": lambda s: (1, 1, 1, 1, 1),
    "sqrt": lambda s: (s**0.5, s**0.5, s**0.5, 1, 1),
    "sqrt_star": lambda s: (s**0.5, s**0.5, 1, 1, 1),
    "linear": lambda s: (s, s, 1, 1, 1),
    "n2_lambda": lambda s: (1, s**0.5, s**2, 1, 1),
    "cowclip": lambda s: (1, s**0.5, s, 1, 1),
    "sde": lambda s: (s**0.5, s**0.5, 1, s**-0.5, 1 / s),
    "invariant": lambda s: (s**0.5, s**0.5, 1, s**-0.5, 1 / s),
}


@given(
    rule=st.sampled_from(sorted(RULES)),
    base=st.integers(1, 4096),
    batch=st.integers(1, 2**20),
    lr=st.floats(1e-6, 1),
    l2=st.floats(0, 1e-2),
)
def test_every_rule_is_its_row_of_the_table(rule, base, batch, lr, l2):
    start = Hyperparameters(batch_size=base, embedding_lr=lr, dense_lr=2 * lr, l2=l2)
    end = scale(start, to=batch, rule=rule)
    embedding, dense, penalty, epsilon, clip = TABLE[rule](batch / base)
    assert end.embedding_lr == pytest.approx(lr * embedding)
    assert end.dense_lr == pytest.approx(2 * lr * dense)
    assert end.l2 == pytest.approx(l2 * penalty)
    assert end.epsilon == pytest.approx(start.epsilon * epsilon)
    assert (end.r, end.zeta) == (pytest.approx(start.r * clip), pytest.approx(start.zeta * clip))
    assert end.init_std == start.init_std
    wanted = (1, "cowclip") if rule == "cowclip" else (0, "none")
    assert (end.warmup_epochs, end.clip) == wanted
    assert end.batch_size == batch
    if rule not in ADAM_RULES:
        assert (end.beta_1, end.beta_2) == (0.9, 0.999)
    parts = max(1, round(batch / base)) if rule == "invariant" else 1
    assert end.micro_batches == parts


@given(base=st.integers(1, 4096), batch=st.integers(1, 2**20), start=st.floats(0, 10))
def test_sde_for_adagrad(base, batch, start):
    given = {"embedding_lr": 0.03, "dense_lr": 0.01, "l2": 1e-6, "initial_accumulator": start}
    before = Hyperparameters(batch_size=base, optimizer="adagrad", **given)
    after, s = scale(before, to=batch), batch / base
    changed = ("batch_size", "initial_accumulator", "epsilon", "r", "zeta", "bound")
    stays = {"warmup_epochs": 0.0, "clip": "none"} | {n: getattr(before, n) for n in changed}
    assert replace(after, **stays) == replace(before, warmup_epochs=0.0, clip="none")
    assert after.initial_accumulator == pytest.approx(start / s**2)
    for name in ("epsilon", "r", "zeta"):
        assert getattr(after, name) == pytest.approx(getattr(before, name) / s)
    with pytest.raises(InputError, match=r"'invariant'.*'adagrad'; use 'sde'"):
        scale(before, to=batch, rule="invariant")
    for rule in set(RULES) - set(ADAM_RULES):
        other = scale(before, to=batch, rule=rule)
        assert (other.initial_accumulator, other.epsilon) == (start, before.epsilon)
        adam = scale(replace(before, optimizer="adam"), to=batch, rule=rule)
        assert replace(other, optimizer="adam") == adam


def test_invariant_is_sde_with_micro_batches_of_the_base():
    base = Hyperparameters(batch_size=512)
    found = scale(base, to=4096, rule="invariant")
    assert found == replace(scale(base, to=4096, rule="sde"), micro_batches=8)
    assert scale(found, to=16384, rule="invariant").micro_batches == 32
    with pytest.raises(InputError, match=r"micro_batches is 1.5; .* whole"):
        Hyperparameters(micro_batches=1.5)


def test_sde_keeps_the_rows_that_adam_remembers():
    base = Hyperparameters(batch_size=256)
    for s in (1 / 64, 1 / 8, 1, 2, 32, 128):
        end = scale(base, to=round(256 * s), rule="sde")
        assert (1 - end.beta_2) == pytest.approx(0.001 * s)
        assert (1 - end.beta_1) == pytest.approx(min(0.1 * s, 1 - BETA_1_FLOOR))


@given(
    beta_1=st.floats(0, 0.999),
    beta_2=st.floats(0, 0.9999),
    base=st.integers(1, 2**20),
    batch=st.integers(1, 2**20),
)
def test_sde_keeps_its_limits(beta_1, beta_2, base, batch):
    start = Hyperparameters(batch_size=base, beta_1=beta_1, beta_2=beta_2)
    end = scale(start, to=batch, rule="sde")
    grown = batch >= base
    assert 0 <= end.beta_1 <= 1 - 1e-6 and 0 <= end.beta_2 <= 1 - 1e-6
    assert end.beta_1 >= min(beta_1, BETA_1_FLOOR) and end.beta_2 >= min(beta_2, end.beta_1**2)
    assert (end.beta_1 <= beta_1 and end.beta_2 <= beta_2) == grown or batch == base


def test_sde_far_beyond_the_memory_of_adam():
    """1 - beta_2 would be 4: with beta_2 = 0, absent rows would move 1e4 rates in a step."""
    end = scale(Hyperparameters(batch_size=1), to=4000, rule="sde")
    assert (end.beta_1, end.beta_2) == (BETA_1_FLOOR, BETA_1_FLOOR**2)
    m, v, moved = 1e-3 * (1 - end.beta_1), 1e-6 * (1 - end.beta_2), 0.0
    for _ in range(200):  # a gradient once, then none
        m, v = m * end.beta_1, v * end.beta_2
        moved += m / (math.sqrt(v) + end.epsilon)
    assert moved < 20


@pytest.mark.parametrize("s", [1, 2, 4, 8, 16, 32, 64, 128])
def test_criteo_preset(s):
    h = scale("criteo", to=s * K)
    assert h.embedding_lr == 1e-4
    assert h.dense_lr == pytest.approx(8e-4 * math.sqrt(s))
    assert h.l2 == pytest.approx(1e-5 * s)
    assert (h.r, h.zeta, h.init_std, h.warmup_epochs) == (1, 1e-5, 1e-2, 1)


@pytest.mark.parametrize("s", [1, 2, 4, 8, 16, 32, 64, 128])
def test_avazu_preset(s):
    h = scale(PRESETS["avazu"], to=s * K)
    assert (h.r, h.zeta) == ((10, 1e-3) if s <= 2 else (1, 1e-4))
    assert h.dense_lr == pytest.approx(16e-4 if s == 128 else 1e-4 * math.sqrt(s))
    assert h.l2 == pytest.approx(96e-5 if s == 128 else 1e-5 * s)


def test_baseline_of_a_preset():
    h = scale("criteo", to=K, rule="none")
    assert (h.embedding_lr, h.dense_lr, h.l2, h.init_std, h.warmup_epochs) == (
        1e-4,
        1e-4,
        1e-5,
        1e-4,
        0,
    )


def test_rebased_preset():
    preset = rebase("avazu", batch_size=1024, values={"l2": 3e-5})
    h = scale(preset, to=128 * K)
    assert (h.l2, h.dense_lr) == (pytest.approx(3e-5 * 128), 16e-4)
    moved = scale(rebase("avazu", batch_size=512, values={}), to=128 * K)
    assert moved.dense_lr == pytest.approx(1e-4 * 16)
    assert (moved.r, moved.l2) == (10, pytest.approx(1e-5 * 256))


@pytest.mark.parametrize("rule", sorted(RULES))
def test_constant_bounds_grow_with_the_square_root(rule):
    assert scale("criteo", to=4 * K, rule=rule).bound == 50.0


def test_the_identity_scale():
    h = Hyperparameters(batch_size=512, l2=3e-4)
    for rule in RULES:
        assert replace(scale(h, to=512, rule=rule), warmup_epochs=None, clip=None) == h


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_warm_up_and_a_clip_that_the_user_names_stay(rule):
    for warmup, clip in ((0.0, "none"), (2.5, "field")):
        end = scale(Hyperparameters(warmup_epochs=warmup, clip=clip), to=8 * K, rule=rule)
        assert (end.warmup_epochs, end.clip) == (warmup, clip)


def test_the_rule_is_the_papers_for_its_presets_and_sde_for_other_values():
    base = Hyperparameters(batch_size=512)
    assert scale(base, to=4096) == scale(base, to=4096, rule="sde")
    for name, preset in PRESETS.items():
        assert scale(name, to=4096) == scale(preset, to=4096, rule="cowclip")
