"""Fixtures for tests of online training and serving: a small drifting log, a small model."""

import pytest

ROWS = 6000


@pytest.fixture(scope="session")
def drifting(make_once):
    """A folder with log.csv, log.csv.yaml: three days, seven columns."""
    from cowclip_merlin.synthetic.drifting_log import generate_drifting

    return make_once(
        "drifting", lambda folder: generate_drifting(folder / "log.csv", rows=ROWS, days=3, seed=1)
    )


@pytest.fixture(scope="session")
def features(drifting):
    from cowclip_merlin.online.events.features import load_features

    return load_features(drifting / "log.csv.yaml")


@pytest.fixture(scope="session")
def events(drifting, features):
    from cowclip_merlin.online.events.event_log import EventLog
    from cowclip_merlin.online.events.events import Events

    return Events.concatenate(list(EventLog([drifting / "log.csv"], features)))


@pytest.fixture(scope="session")
def settings_of():
    """Settings of a small model; `more` are of the run, and `table` of the online training."""

    from cowclip_merlin.online import OnlineSettings
    from cowclip_merlin.training.run_settings import RunSettings

    def make(model="deepfm", table=None, **more):
        rates = {"embedding_lr": 0.01, "dense_lr": 0.01, "init_std": 0.1}
        small = {"batch_size": 256, "mlp": (8,), "embedding_dim": 4, "seed": 7, "update": "lazy"}
        run = RunSettings(**({"model": model, "overrides": rates} | small | more))
        return OnlineSettings(run=run, **({"capacity": 4000} | (table or {})))

    return make
