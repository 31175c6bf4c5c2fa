"""Several labels of an event: metrics of a stream, and refusals."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score
from stream_labels import FEATURES, TWO

from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.online.collisions import CollisionSettings, run_collisions
from cowclip_merlin.online.joining.run_join import join_logs
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.online.producing.producer import Targets
from cowclip_merlin.online.replaying.replay_folder import replay_log
from cowclip_merlin.online.replaying.settings import ReplaySettings
from cowclip_merlin.online.training.recent_scores import TargetScores
from cowclip_merlin.online.training.trainer import OnlineTrainer
from cowclip_merlin.targets import targets_of

LABELS = st.sampled_from([0.0, 1.0, None])
SCORES = st.integers(1, 99).map(lambda x: x / 100)


def close(found, wanted):
    return found is None if wanted is None else found == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@given(
    st.lists(
        st.tuples(LABELS, SCORES, st.none() | st.integers(-9, 9), st.integers(-9, 9)),
        max_size=40,
    ),
    st.booleans(),
)
def test_recent_scores_of_each_target(rows, weighted):
    scores = TargetScores(targets_of(["click", "sec"], ["sec"]), events=10)
    weights = np.arange(len(rows)) % 3 if weighted else np.ones(len(rows))
    for part in (slice(i, i + 7) for i in range(0, len(rows), 7)):
        columns = [np.array([row[k] for row in rows[part]], np.float32) for k in range(4)]
        given = (np.stack(columns[0::2], 1), np.stack(columns[1::2], 1))
        scores.add(*given, weights[part].astype(np.float32) if weighted else None)

    def newest(label):
        found = [(r[label], r[label + 1], w) for r, w in zip(rows, weights) if r[label] is not None]
        return np.array([each for each in found[-10:] if each[2]], np.float64).reshape(-1, 3).T

    found = scores.metrics()
    assert list(found) == ["click_auc", "click_log_loss", "sec_rmse"] == list(scores.columns)
    labels, given, weight = newest(0)
    both = len({*labels}) == 2
    auc = roc_auc_score(labels, given, sample_weight=weight) if both else None
    loss = log_loss(labels, given, sample_weight=weight, labels=[0, 1]) if len(labels) else None
    assert close(found["click_auc"], auc) and close(found["click_log_loss"], loss)
    labels, given, weight = newest(2)
    rmse = np.sqrt(np.average((labels - given) ** 2, weights=weight)) if len(labels) else None
    assert close(found["sec_rmse"], rmse)


@pytest.mark.parametrize("features", [FEATURES, TWO])
def test_what_takes_one_label_refuses_several(features, tmp_path, settings_of):
    pair = Targets(impressions=FileLog(tmp_path / "i"), actions=FileLog(tmp_path / "a"))
    replay = ReplaySettings(batch_days=0, sync=("1h",))
    calls = {
        "a log of clicks": lambda: pair.check(features),
        "cowclip online join": lambda: join_logs(
            "I", "A", to="E", features=features, state=tmp_path / "s", settings=None
        ),
        "a replay": lambda: replay_log(
            ["log.csv"], features, settings_of(), replay, out=tmp_path / "r"
        ),
        "this experiment": lambda: next(
            run_collisions(None, features, settings_of(), CollisionSettings(), [1])
        ),
    }
    for what, call in calls.items():
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value).startswith(f"{what} takes one label of 0 and 1, but the data has")
        assert "\n" not in str(error.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"i", "a"}


@pytest.mark.parametrize(
    ("labels", "how", "reason"),
    [
        (("buy", "sec"), "esmm", "esmm needs two labels of 0 and 1, such as click and purchase"),
        ((), "mmoe", "mmoe has no effect with one label"),
    ],
)
def test_settings_that_do_not_fit_the_labels(settings_of, labels, how, reason):
    features = replace(FEATURES, more_labels=labels, regression=labels[1:])
    with pytest.raises(InputError, match=reason):
        OnlineTrainer(settings_of(multi_task=how), features)
