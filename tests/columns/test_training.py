"""Loading and training on every role at once: steps against NumPy, and the ways to train."""

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from data import PLAIN, ROLES, ROWS, TEST_ROWS, VECTORS
from one_step import check_that_two_workers_equal_one, gradients
from tiers import thorough

import cowclip_merlin as cc
from cowclip_merlin import compat
from cowclip_merlin.contrib.diagnostics.probe import make_probe
from cowclip_merlin.errors import InputError
from cowclip_merlin.loading import (
    DeviceData,
    StreamedData,
    open_columns,
    read_columns,
    train_validation_split,
)
from cowclip_merlin.targets import Target
from cowclip_merlin.training import load_run, train
from cowclip_merlin.training.build import build_model, build_optimizer
from cowclip_merlin.training.evaluation import check_targets_scored
from cowclip_merlin.training.train_step import make_train_step

TARGETS = ROLES["labels"].columns
ONE = tuple(name for name in ROLES if name != "labels")


@pytest.fixture(scope="module")
def columns(data):
    return open_columns(data, "train")


@pytest.fixture(scope="module")
def files(data):
    return pd.concat(map(pd.read_parquet, data.files("train")), ignore_index=True)


def lists_of(batch):
    """The ids of a batch: row by row, column by column."""
    values, lengths = iter(batch.ids.values.numpy().tolist()), batch.ids.lengths.numpy()
    return [[[next(values) for _ in range(size)] for size in row] for row in lengths]


class TestLoading:
    """Rows in memory are those of the files, however they are read."""

    @pytest.mark.parametrize("read", [open_columns, open_columns, read_columns])
    def test_columns_are_those_of_the_files(self, data, files, role, read):
        found = read(data, "train")
        widths = np.cumsum([1, *VECTORS.values()])
        numbers = dict(zip(["age", *VECTORS], np.split(found.continuous, widths, axis=1)))
        for name in role.columns:
            if name in data.categorical:
                values, lengths = found.column(data.categorical.index(name))
                wanted = [np.atleast_1d(x).tolist() for x in files[name]]
                assert values.tolist() == [x for each in wanted for x in each]
                if lengths is not None:
                    assert lengths.tolist() == [*map(len, wanted)]
            elif name in numbers:
                wanted = np.float32([*files[name]]).reshape(len(files), -1)
                np.testing.assert_array_equal(numbers[name], wanted)
            elif name == "w":
                assert found.weight.dtype == np.float32 and found.weight.tolist() == [*files.w]
            else:
                label = found.label[:, TARGETS.index(name)]
                np.testing.assert_array_equal(label, files[name])
        with_weights = replace(found, weight=None).bytes_per_row + 4
        assert found.bytes_per_row == with_weights

    def test_streamed_batches_are_those_on_the_device(self, columns):
        kinds = DeviceData(columns), StreamedData(columns, memory=20_000)
        for pair in zip(*(each.batches(64, seed=1, epoch=2) for each in kinds), strict=True):
            first, second = (kind.unpack(batch) for kind, batch in zip(kinds, pair))
            self.assert_equal(first, second, slice(None))
            for kind, batch in zip(kinds, pair):
                self.assert_equal(kind.unpack(kind.part(batch, 3, 9)), first, slice(3, 9))
        assert DeviceData(replace(columns, weight=None)).unpack([0]).weights is None

    def assert_equal(self, found, whole, rows):
        assert lists_of(found) == lists_of(whole)[rows]
        for name in ("numbers", "labels", "weights"):
            np.testing.assert_array_equal(getattr(found, name), getattr(whole, name)[rows])

    @pytest.mark.parametrize("kind", [DeviceData, lambda c: StreamedData(c, memory=20_000)])
    def test_rows_in_file_order(self, data, files, columns, kind):
        loaded, found = kind(columns), []
        for batch in loaded.batches_in_file_order(100):
            found += lists_of(loaded.unpack(batch))
        wanted = zip(*(files[name] for name in data.categorical))
        assert found == [[np.atleast_1d(x).tolist() for x in row] for row in wanted]

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("bought it", 2.0, "label 'bought it' contains 2.0, neither 0 nor 1"),
            ("seconds", np.inf, "label 'seconds' contains inf, no finite number"),
            (TARGETS, np.nan, "a row has no label of click, bought it, seconds"),
            ("image", [1.0], "'image' has a vector of 1 numbers, not 3"),
        ],
    )
    def test_damaged_files_are_refused(self, data, tmp_path, name, value, message):
        file = data.files("test")[0]
        rows = pd.read_parquet(file)
        for each in [name] if isinstance(name, str) else name:
            rows[each] = [value if name == "image" or i == 5 else x for i, x in rows[each].items()]
        (tmp_path / "test").mkdir()
        rows.to_parquet(tmp_path / "test" / file.name)
        with pytest.raises(InputError, match=message):
            read_columns(replace(data, checksums={}, path=tmp_path), "test")

    def test_held_out_rows_need_a_weight(self, columns):
        nothing = replace(columns, weight=np.zeros_like(columns.weight))
        with pytest.raises(InputError, match=r"all weights of the .* training rows are 0"):
            train_validation_split(nothing, 0.2)


def test_rows_to_score_need_a_weight_above_0():
    """Otherwise there is no label that could be the same for all."""
    given = (Path("data"), "test", [Target("click", False)], np.ones((3, 1)), np.zeros(3))
    with pytest.raises(InputError, match="data: no test row has a weight above 0; look"):
        check_targets_scored(*given, remedy="look")


def test_merlins_loader_gives_vectors_to_the_model(data_of, settings):
    from merlin.io import Dataset
    from merlin.models.tf import Loader

    data, run = (
        data_of((*PLAIN, "vector")),
        replace(settings, multi_task="shared_bottom", experts=4),
    )
    dataset = Dataset(str(data.path / "train"), engine="parquet", schema=data.schema)
    loader = Loader(dataset, batch_size=64, shuffle=False)
    model = build_model(run, run.hyperparameters("criteo"), data)
    model.compile(cc.CowClip("adam", "adam"), "binary_crossentropy")
    assert np.isfinite(model.fit(loader, epochs=1, verbose=0).history["loss"]).all()
    rows = pd.concat(map(pd.read_parquet, data.files("train"))).head(3)
    inputs = {name: np.stack(rows[name]) for name in VECTORS}
    inputs |= {name: rows[name].to_numpy() for name in ("user", "item", "age")}
    expected = model(inputs).numpy()
    np.testing.assert_allclose(model.predict(loader, verbose=0)[:3], expected, rtol=1e-5)


@pytest.fixture(scope="module")
def made(data_of, settings):
    """A model and the columns of three labels, and of one."""
    found = {}
    for name, roles in {"three": (*ROLES,), "one": ONE}.items():
        data = data_of(roles)
        run = (
            settings
            if name == "three"
            else replace(settings, multi_task="shared_bottom", experts=4)
        )
        model = build_model(run, run.hyperparameters("criteo"), data)
        found[name] = model, open_columns(data, "train")
    return found


@pytest.fixture(scope="module")
def random_model(data, settings):
    """A model with large random weights, built once."""

    @functools.cache
    def build(name, continuous):
        run, rng = replace(settings, model=name, continuous=continuous), np.random.default_rng(3)
        model = build_model(run, run.hyperparameters("criteo"), data)
        model.set_weights([rng.normal(size=x.shape) / 2 for x in model.weights])
        return model

    return build


def value(x):
    return x.numpy().astype(np.float64)


class TestStep:
    """One step, against loops in NumPy."""

    @pytest.mark.parametrize("labels", ["three", "one"])
    @pytest.mark.parametrize("weighted", [True, False])
    def test_the_loss_and_its_gradient(self, made, labels, weighted):
        """The losses of all labels that are there, divided by all rows, or by their weights."""
        model, columns = made[labels]
        columns = columns if weighted else replace(columns, weight=None)
        rows = np.arange(50)
        z = value(cc.models.logits(model, DeviceData(columns).unpack(rows)))
        y = columns.label[rows].reshape(50, -1)
        w = columns.weight[rows].astype(float) if weighted else np.ones(50)
        spread = model.blocks[0].columns.scales.get("seconds", (0, 1))[1]
        loss, slopes = 0.0, np.zeros(z.shape)
        for row in range(50):
            for target in range(z.shape[1]):
                if np.isnan(y[row, target]):
                    continue
                x, label = z[row, target], y[row, target]
                p = 1 / (1 + np.exp(-x))
                if target == 2:
                    each, slope = ((x - label) / spread) ** 2, 2 * (x - label) / spread
                else:
                    each, slope = -np.log(p if label else 1 - p), p - label
                loss += w[row] * each
                slopes[row, target] = w[row] * slope / w.sum()
        found, loss_sum = gradients(model, columns, rows)
        assert loss_sum == pytest.approx(loss, rel=1e-5)
        pairs = [*zip(found, model.trainable_variables)]
        biases = [g for g, x in pairs if x.shape == (z.shape[1],)]
        assert any(np.allclose(g, slopes.sum(axis=0), atol=1e-6) for g in biases)
        wide = [g for g, x in pairs if x.shape[1:] == (1,) and "wide" in x.name]
        users = columns.column(0)[0][rows]
        for target, g in enumerate(wide if labels == "one" else []):
            expected = np.bincount(users, weights=slopes[:, target], minlength=22)[:22]
            np.testing.assert_allclose(g[:22, 0], expected, atol=1e-6)
        assert labels == "three" or wide

    def test_a_row_of_weight_2_is_the_row_twice(self, made, data, settings):
        model, columns = made["three"]
        doubled = replace(columns, weight=np.where(np.arange(len(columns)) < 9, 2, 1).astype("f4"))
        equal, twice = replace(columns, weight=None), np.array([*range(20), *range(9)])
        once, loss = gradients(model, doubled, np.arange(20))
        found, other = gradients(model, equal, twice)
        assert loss == pytest.approx(other, rel=1e-6)
        for a, b in zip(once, found):
            np.testing.assert_allclose(a, b, atol=1e-6)

    def test_parts_of_a_batch_add_up(self, made):
        """As micro-batches: the gradient of a batch is the mean of those of equal parts."""
        model, columns = made["three"]
        equal = replace(columns, weight=None)
        whole, _ = gradients(model, equal, np.arange(64))
        parts = [gradients(model, equal, np.arange(i, i + 16))[0] for i in range(0, 64, 16)]
        for expected, *each in zip(whole, *parts):
            np.testing.assert_allclose(np.mean(each, axis=0), expected, atol=1e-6)

    @pytest.mark.parametrize("weighted", [True, False])
    def test_two_workers_make_the_step_of_one(self, made, monkeypatch, weighted):
        model, columns = made["three"]
        columns = columns if weighted else replace(columns, weight=None)
        check_that_two_workers_equal_one(model, columns, monkeypatch)

    def test_diagnostics_see_the_gradient_of_the_step(self, data, settings, columns):
        values = settings.hyperparameters("criteo")
        model = build_model(settings, values, data)
        optimizer = build_optimizer(settings, values, data, steps=9)
        cc.models.attach(model, optimizer)
        found = make_probe(model, optimizer, DeviceData(columns))(np.arange(40))
        step, _ = gradients(model, columns, np.arange(40))
        norms = np.linalg.norm(next(g for g in step if g.shape[1:] == (4,)), axis=1)
        counts = np.zeros(len(norms), int)
        first = dict(zip(data.tables, np.cumsum([0, *data.tables.values()])))
        for row in lists_of(DeviceData(columns).unpack(np.arange(40))):
            for name, ids in zip(data.categorical, row):
                for i in ids:
                    counts[first[data.log_format.table_of(name)] + i] += 1
        np.testing.assert_allclose(found.g_norm, norms[counts > 0], rtol=1e-4, atol=1e-7)
        np.testing.assert_array_equal(found.cnt, counts[counts > 0])

    @pytest.mark.parametrize("update", ["exact", "dense"])
    def test_a_batch_of_weight_0_changes_nothing(self, data, settings, columns, update):
        tf, settings = compat.tensorflow(), replace(settings, update=update)
        values = settings.hyperparameters("criteo")
        model = build_model(settings, values, data)
        optimizer = build_optimizer(settings, values, data, steps=9)
        optimizer.create_state(model.trainable_variables)
        loss_sum = tf.Variable(0.0, dtype=tf.float64)
        step = make_train_step(model, optimizer, DeviceData(columns), loss_sum)

        def state():
            optimizer.flush()
            return [x.numpy() for x in (*model.variables, *optimizer.variables(), loss_sum)]

        step(np.arange(64))
        before = state()
        step(np.flatnonzero(columns.weight == 0)[:64])
        for a, b in zip(before, state(), strict=True):
            np.testing.assert_array_equal(a, b)
        step(np.arange(64))
        assert np.isfinite(loss_sum.numpy()) and loss_sum.numpy() > before[-1]

    @pytest.mark.parametrize(
        ("name", "continuous"),
        [
            ("deepfm", "all"),
            ("din", "deep"),
            thorough("deepfm", "deep"),
            thorough("dcnv2", "deep"),
            thorough("wide_and_deep", "all"),
        ],
    )
    def test_every_value_counts(self, random_model, data, columns, role, name, continuous):
        """Each value of each input changes its row's predictions, and no other row's."""
        model, batch = random_model(name, continuous), DeviceData(columns.take(np.arange(8)))
        batch = batch.unpack(np.arange(8))
        before, lengths = value(cc.models.logits(model, batch)), batch.ids.lengths.numpy()
        first = (lengths.reshape(-1).cumsum() - lengths.reshape(-1)).reshape(lengths.shape)
        starts = dict(zip(["age", *VECTORS], np.cumsum([0, 1, *VECTORS.values()])))
        for column in {*role.columns} & {*data.categorical, *starts}:
            changed = []
            if column in starts:
                row, numbers = 2, batch.numbers.numpy()
                for place in range(starts[column], starts[column] + VECTORS.get(column, 1)):
                    moved = numbers.copy()
                    moved[row, place] += 1
                    changed.append(batch._replace(numbers=moved))
            else:
                j = data.categorical.index(column)
                row = int(np.flatnonzero(lengths[:, j])[0])
                for place in range(first[row, j], first[row, j] + lengths[row, j]):
                    ids = batch.ids.values.numpy().copy()
                    ids[place] = 3 + (ids[place] - 2) % 4
                    changed.append(batch._replace(ids=batch.ids.with_values(ids)))
            for other in changed:
                moved = np.abs(value(cc.models.logits(model, other)) - before).max(axis=1) > 1e-5
                assert moved.tolist() == [i == row for i in range(8)], column


@pytest.mark.runs
class TestRuns:
    """Whole trainings on all roles, three labels and weights."""

    def weights(self, folder, data):
        return [np.asarray(x) for x in load_run(folder, data.path).get_weights()]

    def assert_same(self, found, run, **tolerance):
        for name in ("train_loss", "test_click_auc", "test_bought it_auc", "test_seconds_rmse"):
            assert found[name] == (
                pytest.approx(run[name], **tolerance) if tolerance else run[name]
            )

    @pytest.mark.parametrize(
        "change",
        [{"update": "exact"}, thorough({"tables": "per_field"}), thorough({"tables": "sharded"})],
    )
    def test_the_ways_to_train_agree(self, data, run, settings, tmp_path, change):
        row = train(data.path, replace(settings, **change), out=tmp_path / "RUN")[-1]
        self.assert_same(row, run.row, abs=1e-5)

    def test_a_streamed_run_resumes_to_the_same_bits(self, data, run, settings, tmp_path):
        given = {"out": tmp_path / "RUN", "data_memory": 0.05}
        train(data.path, replace(settings, epochs=1), **given)
        row = train(data.path, settings, resume=True, **given)[-1]
        self.assert_same(row, run.row)
        for a, b in zip(
            self.weights(tmp_path / "RUN", data), self.weights(run.path, data), strict=True
        ):
            np.testing.assert_array_equal(a, b)

    def test_validation_rows_keep_all_roles(self, data, settings, tmp_path):
        given = replace(settings, epochs=1, validation_fraction=0.3)
        row = train(data.path, given, out=tmp_path / "RUN")[-1]
        assert 0 < row["validation_click_auc"] < 1 and row["validation_seconds_rmse"] > 0

    def test_a_run_learns(self, run):
        assert run.row["test_click_auc"] > 0.7
        assert run.row["test_seconds_rmse"] < 4.5  # of numbers with a spread of 5
        assert len(run.rows) == 2 and ROWS > TEST_ROWS
