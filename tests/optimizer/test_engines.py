"""What every engine does alike: numba, TensorFlow's operations, and emulated kernels of a GPU."""

import numpy as np
import pytest
from emulated_cupy import COMPILER
from two_tables import ROWS, TwoTables, assert_close, batches

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError
from cowclip_merlin.optimizer.row_updates import engine

SIZES = (12,) * 4 + (0, 1) + (300,) + (12,) * 20
FIELDS = {"user": 10, "item": ROWS - 10}
READS = [([1, 2], [5]), ([3], [6, 2]), ([2], [5, 1])]


def saved(tf, model):
    return tf.train.Checkpoint(opt=model.opt, table=model.table, wide=model.wide)


class Engine:
    """An engine with `update="exact"`."""

    backend: str

    def test_a_full_history_brings_all_rows_up_to_date(self, tf, monkeypatch):
        whole = TwoTables(tf, self.backend).train(batches((12,) * 9))
        monkeypatch.setattr(engine, "HISTORY", 4)
        short = TwoTables(tf, self.backend).train(batches((12,) * 9))
        for model in (whole, short):
            model.opt.flush()
        for x, y in zip(whole.state, short.state, strict=True):
            np.testing.assert_array_equal(x, y)

    def test_a_checkpoint_carries_the_steps_of_the_rows(self, tf, tmp_path):
        whole, resumed = (TwoTables(tf, self.backend) for _ in range(2))
        path = saved(tf, whole.train(batches((9,) * 5))).save(str(tmp_path / "c"))
        resumed.opt.create_state([resumed.table, resumed.wide])
        saved(tf, resumed).restore(path)
        for model in (whole, resumed):
            model.train(batches((9,) * 5, seed=2)).opt.flush()
        for x, y in zip(whole.state, resumed.state, strict=True):
            np.testing.assert_array_equal(x, y)

    def refuses(self, tf, ids, bad, said, **settings):
        """A step that is refused writes nothing, is told once, and the next steps are made."""
        model = TwoTables(tf, self.backend, fields=FIELDS, **settings).train(batches((9,)))
        model.opt.flush()
        before, g = model.state, np.ones((3, 10), "f")
        g[1] = bad
        with pytest.raises((InputError, tf.errors.OpError), match=said):
            model.train([(np.array(ids), g)])
            model.opt.flush()  # a GPU has not told before
        model.opt.flush()
        for x, y in zip(before, model.state, strict=True):
            np.testing.assert_array_equal(x, y)
        model.train(batches((9,))).opt.flush()
        assert (model.state[0] != before[0]).any()

    @pytest.mark.parametrize(
        ("row", "bad", "graph", "said"),
        [
            (12, np.nan, True, "gradient of id 2 of field 'item' is not finite"),
            (9, np.inf, False, "gradient of id 9 of field 'user' is not finite"),
        ],
    )
    def test_a_gradient_that_is_not_finite_is_named(self, tf, row, bad, graph, said):
        self.refuses(tf, [5, row, 6], bad, said, graph=graph)
        if self.backend != "tensorflow":
            adagrad = {"update": "lazy", "rowwise": True}
            self.refuses(tf, [5, row, 6], bad, said, graph=graph, **adagrad)

    def read_in_steps(self, tf, brought):
        """Steps that read two groups of rows, of which some were brought up to date before."""
        table = tf.Variable(tf.ones([9, 2]), name="embeddings")
        optimizer = cc.CowClip(update="exact", backend=self.backend)

        @tf.function(reduce_retracing=True)
        def step(first, second, caught):
            with tf.GradientTape() as tape:
                optimizer.catch_up(table, caught)
                loss = tf.reduce_sum(tf.gather(table, first))
                loss += tf.reduce_sum(tf.gather(table, second))
            optimizer.apply_gradients([(tape.gradient(loss, table), table)])

        for (first, second), caught in zip([*READS, READS[0]], [*brought, brought[0]], strict=True):
            step(*(tf.constant(rows, tf.int32) for rows in (first, second, caught)))
        optimizer.flush()

    @pytest.mark.filterwarnings("error")
    def test_rows_that_are_up_to_date_when_read_are_no_reason_to_warn(self, tf):
        self.read_in_steps(tf, [first + second for first, second in READS])

    @pytest.mark.one_case
    @pytest.mark.parametrize(
        "brought",
        [
            pytest.param([[]] * 3, id="never"),
            pytest.param([[1, 2, 5], [], []], id="only at first"),
            pytest.param([first for first, _ in READS], id="one lookup of two"),
            pytest.param([[0, 1], [0, 2], [0, 1]], id="other rows than those read"),
        ],
    )
    def test_rows_that_had_missed_steps_when_read_are_told(self, tf, brought):
        words = r"'embeddings:0' were not brought up.* call catch_up\("
        with pytest.warns(UserWarning, match=words):
            self.read_in_steps(tf, brought)


class ByKeras:
    """Equal to Keras's optimizer; the kernels of a GPU are compared with numba."""

    def agrees(self, tf, given, plain):
        """Compare with steps of Keras's optimizer."""
        ours, theirs = TwoTables(tf, self.backend, **given), TwoTables(tf, "tensorflow", **plain)
        for model in (ours, theirs):
            model.train(batches(SIZES)).opt.flush()
        assert ours.opt.backend == self.backend and theirs.opt.config.by_keras
        assert_close(theirs.state, ours.state)
        for name in ("clipped_share", "mean_clip_factor"):
            found, expected = (getattr(x.opt, name).numpy() for x in (ours, theirs))
            assert found == pytest.approx(expected, rel=1e-5)

    @pytest.mark.one_case
    @pytest.mark.parametrize(
        "given",
        [
            {"clip": "column", "bound": 2e-5, "l2": 1e-3},  # L2 alone is clipped
            {"r": 1e-3, "zeta": 0.0, "l2": 1e-3},
            {"clip": "none", "graph": False},
            {"index": "int32", "l2": 1e-4},
            {"adam": {"beta_1": 0.7, "beta_2": 0.872, "epsilon": 1e-8}, "l2": 1e-5},
            # With a large L2, steps about 0 would amplify differences by rounding.
            {"adam": {"beta_1": 0.0, "beta_2": 0.2}, "l2": 1e-5},
            {"adam": {"beta_1": 0.99, "beta_2": 0.9999}, "l2": 1e-5},
        ],
    )
    def test_exact_is_dense(self, tf, given):
        self.agrees(tf, given, given | {"update": "dense"})


class RowKernels(Engine):
    """Compiled kernels do not check their indices: beyond the table is other memory."""

    @pytest.mark.parametrize("update", ["exact", "lazy"])
    @pytest.mark.parametrize(("wrong", "graph"), [(-1, True), (ROWS, False)])
    def test_an_id_outside_the_table_is_refused(self, tf, update, wrong, graph):
        said = f"id {wrong} is outside table 'embeddings:0', which has {ROWS} rows"
        self.refuses(tf, [5, wrong, 6], 1.0, said, update=update, graph=graph)


class TestNumba(RowKernels, ByKeras):
    backend = "numba"

    @pytest.mark.one_case
    @pytest.mark.parametrize(
        "given",
        [
            {"update": "lazy"},
            {"update": "lazy", "clip": "column", "bound": 1e-2},
            {"update": "dense"},
            {"update": "dense", "clip": "column", "bound": 2e-5, "l2": 1e-3},
            {"update": "dense", "adam": {"beta_1": 0.0, "beta_2": 0.5}, "l2": 1e-5},
        ],
    )
    def test_each_update_is_that_of_keras(self, tf, given):
        self.agrees(tf, given, given)


class TestTensorFlow(Engine, ByKeras):
    backend = "tensorflow"


@pytest.mark.system
@pytest.mark.skipif(COMPILER is None, reason="no g++ on PATH")
@pytest.mark.usefixtures("emulated")
class TestCuda(RowKernels):
    backend = "cupy"
