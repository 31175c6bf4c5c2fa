"""Adam of the dense weights in one launch, emulated: against Keras's Adam, and refused steps."""

import contextlib

import numpy as np
import pytest
from emulated_cupy import COMPILER, another_order, launches
from kernel_checks import double

import cowclip_merlin as cc
from cowclip_merlin.optimizer.row_updates import gpu_engine

pytestmark = [pytest.mark.system, pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")]
SHAPES = ((27, 40), (40,), (1000,), (), (3, 1))
ROWS = 9


class DenseModel:
    """A table, dense weights, and the same weights under Keras's own optimizer."""

    def __init__(self, tf, make, *, shapes=SHAPES, graph=True, dtype="float32", **settings):
        rng = np.random.default_rng(0)
        self.tf, self.rng = tf, rng
        values = [rng.normal(0, 0.1, shape).astype("f") for shape in shapes]
        self.ours = [tf.Variable(x, dtype=dtype, **settings) for x in values]
        self.theirs = [tf.Variable(x, dtype=dtype, **settings) for x in values]
        self.table = tf.Variable(tf.ones([ROWS, 2]), name="embeddings")
        self.opt = cc.CowClip(dense_optimizer=make(), backend="cupy", update="exact")
        self.keras = make()
        self.step = tf.function(self._step) if graph else self._step

    def _step(self, of_table, gradients):
        ids, shape = self.tf.constant([1]), self.tf.constant([ROWS, 2])
        slices = self.tf.IndexedSlices(of_table, ids, shape)
        self.opt.catch_up(self.table, ids)
        self.opt.apply_gradients([(slices, self.table), *zip(gradients, self.ours)])

    def gradients(self):
        """Of several sizes, and some are 0."""
        sizes = 10.0 ** self.rng.uniform(-6, 1, len(self.ours))
        rough = [self.rng.normal(0, x, w.shape) for x, w in zip(sizes, self.ours)]
        numbers = [np.where(self.rng.random(x.shape) < 0.1, 0, x) for x in rough]
        return [self.tf.constant(x, w.dtype) for x, w in zip(numbers, self.ours)]

    def train(self, steps):
        for _ in range(steps):
            gradients = self.gradients()
            self.step(self.tf.ones([1, 2]), gradients)
            self.keras.apply_gradients(zip(gradients, self.theirs))
        return self

    def assert_equal_to_keras(self):
        assert self.opt.dense_optimizer.iterations == self.keras.iterations
        for of_ours, of_theirs in zip(self.state(), self.state_of_keras()):
            np.testing.assert_allclose(of_ours, of_theirs, rtol=2e-6, atol=1e-9)

    def state(self):
        return self._state(self.opt.dense_optimizer, self.ours)

    def state_of_keras(self):
        return self._state(self.keras, self.theirs)

    @staticmethod
    def _state(optimizer, weights):
        return [x.numpy() for x in (*weights, *optimizer.weights[1:])]  # without its counter


def adam_of(tf, **settings):
    return lambda: tf.keras.optimizers.legacy.Adam(**({"learning_rate": 1e-2} | settings))


def schedule(tf):
    return tf.keras.optimizers.schedules.PolynomialDecay(0.0, 5, 0.1, power=1.0)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"beta_1": 0.7, "beta_2": 0.872, "epsilon": 1e-8},
        {"beta_1": 0.0, "decay": 0.1},
        {"learning_rate": schedule},
    ],
)
def test_equal_to_adam_of_keras(tf, emulated, settings, graph):
    made = {k: x(tf) if callable(x) else x for k, x in settings.items()}
    before = launches("step_weights")
    DenseModel(tf, adam_of(tf, **made), graph=graph).train(12).assert_equal_to_keras()
    assert launches("step_weights") - before == 12


def test_equal_to_adam_in_numpy(tf, where):
    model = DenseModel(tf, adam_of(tf), shapes=((50,),))
    w, m, v = *double(model.ours[0].numpy()), np.zeros(50), np.zeros(50)
    for t in range(1, 20):
        (g,) = model.gradients()
        model.step(tf.ones([1, 2]), [g])
        m, v = 0.9 * m + 0.1 * np.float64(g), 0.999 * v + 0.001 * np.float64(g) ** 2
        w -= 1e-2 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-7)
        np.testing.assert_allclose(model.ours[0].numpy(), w, rtol=1e-5, atol=1e-6)


def test_many_weights_take_more_launches_in_any_order(tf, emulated):
    shapes = ((3,),) * 63 + ((600,), (2, 2), (1,))
    before = launches("step_weights")
    with another_order(5):
        DenseModel(tf, adam_of(tf), shapes=shapes).train(2).assert_equal_to_keras()
    assert launches("step_weights") - before == 2 * 2


def test_a_rate_and_betas_that_change_are_followed(tf, emulated):
    model = DenseModel(tf, adam_of(tf)).train(2)
    for optimizer in (model.opt.dense_optimizer, model.keras):
        optimizer.learning_rate, optimizer.beta_1 = 0.1, 0.5
    model.train(2).assert_equal_to_keras()


@pytest.mark.parametrize("graph", [True, False])
def test_a_refused_step_leaves_the_dense_weights_as_they_were(tf, emulated, graph):
    model = DenseModel(tf, adam_of(tf), graph=graph).train(2)
    before = model.state()
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not finite"):
        model.step(tf.fill([1, 2], np.nan), [tf.fill(w.shape, np.nan) for w in model.ours])
        model.opt.flush()
    for x, y in zip(before, model.state(), strict=True):
        np.testing.assert_array_equal(x, y)
    model.step(tf.ones([1, 2]), model.gradients())  # told once; the next steps are made
    model.opt.flush()
    assert (model.state()[0] != before[0]).any() and np.isfinite(model.state()[0]).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_stays_out_of_the_weights_and_ends_the_training(
    tf, emulated, wrong
):
    """The tables see none: fused layers turn NaN into 0 on the way forward."""
    from cowclip_merlin.errors import Diverged
    from cowclip_merlin.training.train_step import raising_diverged

    model = DenseModel(tf, adam_of(tf)).train(1)
    gradient, *others = model.gradients()
    gradient = tf.tensor_scatter_nd_update(gradient, [[0] * len(gradient.shape)], [wrong])
    before = model.ours[0].numpy()
    said = "the gradient of a dense weight is not finite"
    with pytest.raises(Diverged, match=said), raising_diverged():
        model.step(tf.ones([1, 2]), [gradient, *others])
        model.opt.flush()
    after = model.ours[0].numpy().ravel()
    assert after[0] == before.ravel()[0] and np.isfinite(after).all()


def test_blocks_step_or_stay_as_one_while_another_reports_a_number(tf, emulated):
    """On a GPU, a block may read the status while another sets it, and so may the next thread."""
    model = DenseModel(tf, adam_of(tf), shapes=((4,), (256,), (256,), (256,)), graph=False).train(1)
    bad, *others = model.gradients()
    for seed in range(1, 30):
        before = [x.numpy() for x in model.ours[1:]]
        with another_order(seed), contextlib.suppress(tf.errors.InvalidArgumentError):
            model.step(tf.ones([1, 2]), [tf.fill(bad.shape, np.nan), *others])
            model.opt.flush()
        for w, x, g in zip(model.ours[1:], before, others, strict=True):
            assert len({*(np.abs(w.numpy() - x)[g.numpy() != 0] > 1e-6)}) == 1


@pytest.mark.parametrize("refused", [0, 1])
def test_the_kernel_reads_whether_the_step_was_refused(tf, emulated, refused):
    """On a GPU, the host learns it later: its copy of the status says that all is well."""
    model = DenseModel(tf, adam_of(tf)).train(1)
    engine, (gradient, *_) = model.opt._engine, model.gradients()
    pairs, before = [(gradient, model.ours[0])], model.ours[0].numpy()
    nothing = np.iinfo(np.int64).max
    gpu_engine.make(
        model.opt.dense_optimizer, pairs, operations=engine.operations,
        number=engine._known["any"][1], status=tf.Variable([refused, nothing, nothing, 0]),
    )  # fmt: skip
    assert (model.ours[0].numpy() == before).all() == bool(refused)


def test_a_gradient_of_another_size_is_refused(tf, emulated):
    model = DenseModel(tf, adam_of(tf)).train(1)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"weight 0 has 2 numbers, but .* 1080"
    ):
        model.opt._engine.step_dense(model.opt.dense_optimizer, [(tf.ones([2]), model.ours[0])])


def test_weights_that_share_memory_part(tf, emulated):
    model = DenseModel(tf, adam_of(tf))
    copy = tf.Variable(tf.zeros_like(model.ours[0]))
    copy.assign(model.ours[0])
    read, before = model.ours[0].read_value(), model.ours[0].numpy().copy()
    model.train(2).assert_equal_to_keras()
    np.testing.assert_array_equal(copy, before)
    np.testing.assert_array_equal(read, before)


@pytest.mark.parametrize(
    "name, settings, of_weights",
    [
        ("SGD", {}, {}),
        ("Adam", {"amsgrad": True}, {}),
        ("Adam", {"clipnorm": 1e-3}, {}),
        ("Adam", {"clipvalue": 1e-3}, {}),
        ("Adam", {"global_clipnorm": 1e-3}, {}),
        ("Adam", {"gradient_transformers": [lambda pairs: [(2 * g, w) for g, w in pairs]]}, {}),
        ("Adam", {}, {"dtype": "float64"}),
        ("Adam", {}, {"constraint": lambda w: w / 2}),
    ],
)
def test_what_the_kernel_cannot_do_is_done_by_keras(tf, emulated, name, settings, of_weights):
    before = launches("step_weights")
    make = getattr(tf.keras.optimizers.legacy, name)
    DenseModel(tf, lambda: make(1e-2, **settings), **of_weights).train(3).assert_equal_to_keras()
    assert launches("step_weights") == before
