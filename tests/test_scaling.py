import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.scaling import PRESETS, RULES, Hyperparameters, rebase, scale

K = 1024

# algorithm.md, "Scaling rules": (embedding lr, dense lr, l2) as functions of s
TABLE = {
    "none": lambda s: (1, 1, 1),
    "sqrt": lambda s: (s**0.5, s**0.5, s**0.5),
    "sqrt_star": lambda s: (s**0.5, s**0.5, 1),
    "linear": lambda s: (s, s, 1),
    "n2_lambda": lambda s: (1, s**0.5, s**2),
    "cowclip": lambda s: (1, s**0.5, s),
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
    embedding, dense, penalty = TABLE[rule](batch / base)
    assert end.embedding_lr == pytest.approx(lr * embedding)
    assert end.dense_lr == pytest.approx(2 * lr * dense)
    assert end.l2 == pytest.approx(l2 * penalty)
    assert (end.r, end.zeta, end.init_std) == (start.r, start.zeta, start.init_std)
    assert end.batch_size == batch


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
    assert all(scale(h, to=512, rule=rule) == h for rule in RULES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scale("kaggle", to=K), "unknown preset 'kaggle'"),
        (lambda: scale("criteo", to=K, rule="cubic"), "unknown rule 'cubic'"),
        (lambda: scale("criteo", to=0), "batch size is 0"),
        (lambda: Hyperparameters(l2=-1.0), "l2 is -1.0"),
        (lambda: Hyperparameters(dense_lr=float("nan")), "dense_lr is nan"),
        (lambda: Hyperparameters(batch_size=0), "batch_size is 0"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
