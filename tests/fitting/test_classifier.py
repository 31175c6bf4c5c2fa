"""`CTRClassifier` in scikit-learn, saved and pickled, and with rows of all kinds."""

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.inspection import permutation_importance
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import cowclip_merlin as cc
from cowclip_merlin.errors import InputError

pytestmark = pytest.mark.runs
FEW = {"epochs": 2, "mlp": (8,), "random_state": 1}


@pytest.fixture(scope="module")
def x(rows):
    return rows.drop(columns="click")


@pytest.fixture(scope="module")
def fitted(rows, x):
    return cc.CTRClassifier(**FEW).fit(x, rows["click"])


def test_it_learns_and_says_what_it_knows(fitted, rows, x, capfd):
    probabilities = fitted.predict_proba(x)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    wanted = cc.roc_auc(rows["click"], probabilities[:, 1])
    assert fitted.score(x, rows["click"]) == pytest.approx(wanted) and wanted > 0.6
    assert (fitted.predict(x) == (probabilities[:, 1] > 0.5)).all()
    assert fitted.classes_.tolist() == [0, 1] and fitted.n_features_in_ == 9
    assert fitted.feature_names_in_.tolist() == [*x] and fitted.report_ is None
    assert repr(fitted) == "CTRClassifier(epochs=2, mlp=(8,), random_state=1)"
    assert capfd.readouterr().out == ""


def test_rows_of_all_kinds_give_the_same(fitted, rows, x, log):
    table = pa.Table.from_pandas(x, preserve_index=False)
    wanted = fitted.predict_proba(x)
    for each in (table, x.to_dict("records"), log, [str(log)], x[[*x][::-1]]):
        np.testing.assert_array_equal(fitted.predict_proba(each), wanted)
    polars = pytest.importorskip("polars")
    np.testing.assert_array_equal(fitted.predict_proba(polars.from_arrow(table)), wanted)


def test_a_label_may_be_a_column_and_of_any_two_values(rows, fitted, x, log):
    named = cc.CTRClassifier(**FEW).fit(rows, "click")
    np.testing.assert_array_equal(named.predict_proba(x), fitted.predict_proba(x))
    words = np.where(rows["click"] == 1, "yes", "never")
    other = clone(fitted).fit(x, words)
    assert other.classes_.tolist() == ["never", "yes"]
    np.testing.assert_array_equal(other.predict_proba(x), fitted.predict_proba(x))
    assert set(other.predict(x)) <= {"never", "yes"}
    of_file = cc.CTRClassifier(**FEW).fit(log, "click")
    assert of_file.predict_proba(log).shape == (len(rows), 2)


def test_saved_and_pickled_ones_predict_the_same(fitted, x, tmp_path):
    wanted = fitted.predict_proba(x)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(x), wanted)
    fitted.save(tmp_path / "RUN")
    loaded = cc.load(tmp_path / "RUN")
    np.testing.assert_array_equal(loaded.predict_proba(x), wanted)
    assert repr(loaded) == repr(fitted) and loaded.feature_names_in_.tolist() == [*x]
    np.testing.assert_array_equal(cc.score(tmp_path / "RUN", x), wanted[:, 1])
    with pytest.raises(InputError, match="RUN: already exists"):
        fitted.save(tmp_path / "RUN")


def test_its_files_go_away_with_it(fitted, x):
    other = pickle.loads(pickle.dumps(fitted))
    folder = other._run
    assert folder.is_dir()
    del other
    assert not folder.exists() and fitted._run.is_dir()


def test_it_works_inside_scikit_learn(rows, x):
    quick = cc.CTRClassifier(epochs=1, mlp=(4,), random_state=1)
    scores = cross_val_score(quick, x, rows["click"], cv=2)
    assert scores.shape == (2,) and (scores > 0.4).all()
    pipeline = make_pipeline(FunctionTransformer(lambda rows: rows[["user", "price"]]), quick)
    pipeline.fit(x, rows["click"])
    found = permutation_importance(pipeline, x, rows["click"], n_repeats=1, random_state=0)
    lost = dict(zip(x, found.importances_mean))
    assert max(lost, key=lost.get) == "user" and lost["country"] == 0


def test_weights_and_matrices(rows):
    some = np.random.default_rng(0)
    matrix = some.normal(size=(300, 2))
    y = (matrix[:, 0] > 0).astype(int)
    rates = {"settings": {"overrides": {"embedding_lr": 0.02, "dense_lr": 0.02}}}
    model = cc.CTRClassifier(**FEW | {"epochs": 4}, **rates).fit(matrix, y)
    assert model.score(matrix, y) > 0.9
    flipped = np.concatenate([y, 1 - y])
    weights = np.repeat([1.0, 0.0], 300)
    both = clone(model).fit(np.vstack([matrix, matrix]), flipped, sample_weight=weights)
    assert both.score(matrix, y) > 0.9
    with pytest.raises(InputError, match="X has 1 features, but CTRClassifier is expecting 2"):
        model.predict(matrix[:, :1])


@pytest.mark.parametrize(
    ("change", "fit", "words"),
    [
        ({}, {"y": [0]}, r"`y` has the shape \(1,\), but there are 1200 rows"),
        ({}, {"y": "clik"}, "the frame has no column 'clik'"),
        ({}, {"y": pd.array([0, 1, None], "Int64")}, "y has missing labels"),
        (
            {},
            {"y": np.array([0, "1"], object)},
            "y has labels of the types int, str",
        ),
        ({}, {"y": csr_array([[1], [0]])}, "y is a sparse matrix"),
        ({}, {"X": "log.csv"}, "log.csv: is a file; give `y` the name of its column"),
        ({"categorical": "user"}, {}, r"`categorical` is 'user'; give a list of columns, as \['u"),
        ({"time": ["date"]}, {}, r"`time` is \['date'\]; give the name of one column"),
        ({"validation_fraction": 0}, {}, "`validation_fraction` is 0; it must be above 0"),
        ({"model": "fm"}, {}, "unknown model 'fm'; choose one of wide_and_deep"),
        ({"mlp": 64}, {}, r"`mlp` is 64; give the widths of its layers, as \(64, 64\)"),
        ({"categorical": ["usr"]}, {}, "`categorical`: the frame has no column 'usr', but"),
        ({"settings": {"l2": 0.1}}, {}, r"no 'l2'; give it as \{'overrides': \{'l2': 0\.1\}\}"),
        ({"settings": {"epoch": 2}}, {}, "RunSettings has no 'epoch'; did you mean epochs"),
    ],
)
def test_wrong_input_is_refused(rows, x, change, fit, words):
    with pytest.raises(InputError, match=words):
        cc.CTRClassifier(**FEW | change).fit(**{"X": x, "y": rows["click"]} | fit)


@pytest.mark.system
def test_scikit_learn_is_not_needed():
    code = """
import sys
sys.modules["sklearn"] = None
import cowclip_merlin as cc
rows = [{"user": f"u{i % 7}", "y": int(i % 7 > 3)} for i in range(80)]
model = cc.CTRClassifier(epochs=1, mlp=(4,), random_state=1)
try:
    model.predict(rows)
except cc.InputError as error:
    print(error)
print(model.fit(rows, "y").predict_proba(rows[:2]).shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "this CTRClassifier is not fitted yet; call `fit` first", "(2, 2)"
    ], done.stderr  # fmt: skip


EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "which rows are held out, and the batches, "
    "depend on the number of rows",
    "check_supervised_y_2d": "labels of one column are read without a DataConversionWarning, "
    "which is a class of scikit-learn",
}
QUICK = cc.CTRClassifier(
    epochs=1, mlp=(4,), embedding_dim=2, random_state=0, settings={"update": "dense"}
)


@pytest.mark.system
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([QUICK], expected_failed_checks=lambda _: EXPECTED)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)
