"""Hidden layers as one operation, with emulated kernels and a strict fake of cuBLASLt."""

import itertools

import numpy as np
import pytest
from emulated_cublas import DRELU, MASK, PLAIN, RELU, WIDE_SUMS
from emulated_cupy import COMPILER, another_order, launches
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cowclip_merlin.contrib.fused_mlp import reference

pytestmark = [pytest.mark.system, pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")]
TYPES = ["float32", "bfloat16"]
REFUSED = [0, WIDE_SUMS, MASK, DRELU, RELU | DRELU]


@pytest.fixture
def engine(tf, fake):
    from cowclip_merlin.contrib.fused_mlp import engine_for

    return {name: engine_for(0, tf.as_dtype(name)) for name in TYPES}


class Case:
    """A random MLP whose sums are exact: see `check.difference`."""

    def __init__(self, b, widths, seed=0, padding=0, output=False):
        rng = np.random.default_rng(seed)
        shapes = [(b, widths[0]), *itertools.pairwise(widths), (b, widths[-1])]
        numbers = [rng.integers(-1, 2, shape).astype(np.float64) for shape in shapes]
        self.x, *self.kernels, self.of_result = numbers
        self.biases = [rng.choice([-1, 1], n) * 2.0 ** -(1 + i) for i, n in enumerate(widths[1:])]
        self.padding, self.output = padding, None
        if output:  # nothing negative, or rounded activations would cancel each other
            self.output = rng.integers(0, 3, (widths[-1], 1)).astype(np.float64)
            self.of_result = rng.integers(0, 3, (b, 1)).astype(np.float64)

    def exact(self):
        return reference(self.x, self.kernels, self.biases, self.of_result, self.output)

    def ours(self, tf, engine, dtype, x_type="float32"):
        from cowclip_merlin.contrib.fused_mlp import hidden_layers

        wide = np.pad(self.x, [(0, 0), (0, self.padding)], constant_values=1.0)
        inputs = [tf.constant(x, tf.float32) for x in (*self.kernels, *self.biases)]
        inputs.insert(0, tf.constant(wide, x_type))
        output = [] if self.output is None else [tf.constant(self.output, tf.float32)]
        how = {"engine": engine[dtype], "dtype": dtype, "output": None}

        @tf.function
        def run(x, kernels, biases, output, of_result):
            every = [x, *kernels, *biases, *output]
            with tf.GradientTape() as tape:
                tape.watch(every)
                result = hidden_layers(x, kernels, biases, **how | dict(zip(["output"], output)))
            return result, *tape.gradient(result, every, of_result)

        count = len(self.kernels)
        of_result = tf.constant(self.of_result, "float32" if output else dtype)
        found = run(inputs[0], inputs[1 : 1 + count], inputs[1 + count :], output, of_result)
        assert found[0].dtype == of_result.dtype and found[1].dtype == x_type
        result, dx, *rest = [tf.cast(each, tf.float64).numpy() for each in found]
        assert not dx[:, self.x.shape[1] :].any()
        return [result, dx[:, : self.x.shape[1]], *rest]

    def assert_right(self, tf, engine, dtype, x_type="float32"):
        bound = 2.0**-7 if dtype == "bfloat16" else 2.0**-22
        for ours, right in zip(self.ours(tf, engine, dtype, x_type), self.exact(), strict=True):
            assert ours.shape == right.shape
            np.testing.assert_allclose(ours, right, rtol=bound, atol=0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    b=st.integers(1, 70),
    widths=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    padding=st.integers(0, 9),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(TYPES),
    x_type=st.sampled_from(TYPES),
    refused=st.sampled_from(REFUSED),
    output=st.booleans(),
)
def test_equal_to_numpy(tf, engine, fake, b, widths, padding, seed, dtype, x_type, refused, output):
    """Sums of deep layers are rounded in bfloat16, so only two layers of it are exact."""
    if dtype == "bfloat16":
        widths = widths[:3]
    fake.reset(refuse=refused)
    Case(b, widths, seed, padding, output).assert_right(tf, engine, dtype, x_type)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "refused, forward, backward",
    [
        (0, ["relu+mask", "relu+mask", "relu"], ["plain", "drelu"] * 2 + ["plain"]),
        (WIDE_SUMS, ["relu+mask", "relu+mask", "relu"], ["plain", "drelu"] * 2 + ["plain"]),
        (MASK, ["relu", "relu", "relu"], ["plain"] * 5),
        (DRELU, ["relu", "relu", "relu"], ["plain"] * 5),
        (RELU | DRELU, ["plain", "plain", "plain"], ["plain"] * 5),
    ],
)
def test_products_and_launches(tf, engine, fake, dtype, refused, forward, backward):
    """Three layers: 3 products forward, 3 + 3 backward, and few small kernels."""
    names = ["copy_matrices", "add_bias_relu", "relu_gradient", "join_bias"]
    before = [launches(name) for name in names]
    fake.reset(refuse=refused)
    Case(24, [16, 24, 16, 8], padding=8).ours(tf, engine, dtype, x_type=dtype)
    assert fake.products() == [*forward, *backward, "plain"]
    fused, masked = forward[0] != "plain", "drelu" in backward
    rounded = dtype == "bfloat16" and refused == WIDE_SUMS
    expected = [1 + rounded, 0 if fused else 3, 1 if masked else 3, 1 if masked else 3]
    assert [launches(name) - x for name, x in zip(names, before)] == expected


@pytest.mark.parametrize("refused, first", [(0, 8 * 257), (WIDE_SUMS, 8 * 256), (DRELU, 8 * 257)])
def test_bias_gradients_are_sums_in_float32(tf, engine, fake, refused, first):
    """bfloat16 cannot hold 257. Only if cuBLASLt has no such sums are the first layer's rounded."""
    case = Case(257, [8, 8, 8])
    fake.reset(refuse=refused)
    for each in (case.x, *case.kernels, case.of_result):
        each[:] = 1
    *_, of_first, of_last = case.ours(tf, engine, "bfloat16")
    assert set(of_first) == {first} and set(of_last) == {257}


def test_both_operations_are_on_the_device_of_the_engine(tf, engine):
    """A tape calls the gradient outside of the device scope of the forward pass."""
    from cowclip_merlin.contrib.fused_mlp import hidden_layers

    ours = engine["float32"]

    @tf.function
    def run(x, kernel, bias):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = hidden_layers(x, [kernel], [bias], engine=ours, dtype=tf.float32)
        return tape.gradient(result, x)

    graph = run.get_concrete_function(tf.ones([4, 8]), tf.ones([8, 8]), tf.ones([8])).graph
    devices = {op.type: op.device for op in graph.get_operations() if "CowClip" in op.type}
    assert set(devices) == {"CowClipMlp", "CowClipMlpGradient"}
    assert {tf.DeviceSpec.from_string(x).device_type for x in devices.values()} == {"CPU"}


@pytest.mark.thorough
def test_the_check_of_a_gpu_passes_with_right_products(tf, engine, monkeypatch):
    """With fewer rows, for time."""
    from cowclip_merlin.contrib import fused_mlp as check

    monkeypatch.setattr(check, "SMALL", (512, check.LARGE[1]))
    for name in TYPES:
        assert check.difference_from_numpy(engine[name], tf.as_dtype(name)) == ""


def test_in_any_order_of_threads(tf, engine, fake):
    for refused in REFUSED:
        fake.reset(refuse=refused)
        with another_order(7):
            for dtype in TYPES:
                Case(67, [13, 20, 9], refused, output=True).assert_right(tf, engine, dtype)


def test_wide_layers_take_columns_in_turns(tf, engine):
    """More than 256 threads have of 16 bytes each; with 400, five threads of a block share them."""
    for output in (False, True):
        Case(5, [3, 2100], output=output).assert_right(tf, engine, "bfloat16")
        Case(40, [3, 1100], output=output).assert_right(tf, engine, "float32")
        Case(131, [5, 398], output=output).assert_right(tf, engine, "bfloat16")


@pytest.mark.parametrize("dtype", TYPES)
def test_an_empty_batch(tf, engine, dtype):
    result, dx, *rest = Case(0, [3, 8, 5]).ours(tf, engine, dtype)
    assert result.shape == (0, 5) and dx.shape == (0, 3)
    assert [x.shape for x in rest] == [(3, 8), (8, 5), (8,), (5,)]
    assert not any(x.any() for x in rest)


def test_many_layers_take_more_copies_than_a_launch_has_room_for(tf, engine):
    Case(9, [4] * 2 + [1] * 18).assert_right(tf, engine, "float32")


@pytest.mark.parametrize("dtype", TYPES)
def test_an_output_on_an_empty_batch(tf, engine, dtype):
    result, _, *rest = Case(0, [3, 8, 5], output=True).ours(tf, engine, dtype)
    assert result.shape == (0, 1) and rest[-1].shape == (5, 1) and not rest[-1].any()


@pytest.mark.parametrize("dtype", TYPES)
def test_an_output_adds_one_launch_forward_and_one_backward(tf, engine, dtype):
    """They need no activations in float32, and no gradient of these."""
    names = ["copy_matrices", "row_products", "relu_gradient", "join_bias"]
    before = [launches(name) for name in names]
    Case(24, [16, 24, 16, 8], output=True).ours(tf, engine, dtype, x_type=dtype)
    assert [launches(name) - x for name, x in zip(names, before)] == [1, 1, 1, 2]


@pytest.mark.parametrize("dtype", TYPES)
def test_an_output_of_another_length_is_named(tf, engine, dtype):
    case = Case(2, [3, 5], output=True)
    case.output = case.output[:4]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"output .*\[4,1\], not \[5, 1\]"):
        case.ours(tf, engine, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_shapes_that_do_not_fit_are_named(tf, engine, dtype):
    case = Case(2, [3, 4, 5])
    case.kernels[1] = case.kernels[1][:3]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"layer 1 has a kernel \[3,5\]"):
        case.ours(tf, engine, dtype)


def test_without_any_algorithm_the_error_says_what_to_do(tf, engine, fake):
    fake.reset(refuse=PLAIN)
    with pytest.raises(tf.errors.InternalError, match="jit-compile"):
        Case(2, [3, 27, 5]).ours(tf, engine, "float32")


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_near_keras_at_deepfms_shapes(tf, engine, policy):
    """Random numbers: bfloat16 moves some activations across 0, so norms are compared.

    On processors without AVX-512, Keras rounds parts of a sum, too: 0.07 there, 0.01 elsewhere.
    """
    rng = np.random.default_rng(1)
    dtype = "float32" if policy == "float32" else "bfloat16"
    x = tf.constant(rng.normal(size=(64, 273)), tf.float32)
    layers = [tf.keras.layers.Dense(400, "relu", dtype=policy) for _ in range(3)]
    of_result = tf.constant(rng.normal(size=(64, 400)), dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = x
        for layer in layers:
            h = layer(h)
    weights = [layer.kernel for layer in layers] + [layer.bias for layer in layers]
    theirs = [h, *tape.gradient(h, [x, *weights], of_result)]
    from cowclip_merlin.contrib.fused_mlp import hidden_layers

    with tf.GradientTape() as tape:
        tape.watch(x)
        kernels, biases = weights[:3], weights[3:]
        kernels, biases = [[tf.convert_to_tensor(w) for w in some] for some in (kernels, biases)]
        result = hidden_layers(x, kernels, biases, engine=engine[dtype], dtype=dtype)
    ours = [result, *tape.gradient(result, [x, *weights], of_result)]
    for one, other in zip(ours, theirs, strict=True):
        one, other = tf.cast(one, tf.float64).numpy(), tf.cast(other, tf.float64).numpy()
        distance = np.linalg.norm(one - other) / np.linalg.norm(other)
        assert distance < (2e-6 if dtype == "float32" else 0.1), distance


@pytest.mark.thorough
def test_plans_of_very_many_batches_are_dropped(tf, engine, fake):
    """A batch of another size has another plan, of four descriptors; 4,096 plans stay."""
    from cowclip_merlin.contrib.fused_mlp import hidden_layers

    kernel, bias = tf.ones([8, 8]), tf.ones([8])
    for b in range(1, 4200):
        result = hidden_layers(
            tf.ones([b, 8]), [kernel], [bias], engine=engine["float32"], dtype=tf.float32
        )
    assert result.numpy().min() == result.numpy().max() == 9
    assert 0 < fake.library.fake_alive() < 4 * 4096
