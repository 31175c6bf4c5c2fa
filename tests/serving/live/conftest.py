"""Makes the helpers of these tests importable, and a run with its sync log."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

BATCH = 256


@pytest.fixture(scope="session")
def small_settings():
    from cowclip_merlin.online import OnlineSettings
    from cowclip_merlin.training import RunSettings

    small = {"batch_size": BATCH, "mlp": (8,), "embedding_dim": 4, "seed": 7, "update": "lazy"}
    rates = {"embedding_lr": 0.01, "dense_lr": 0.01, "init_std": 0.1}
    return OnlineSettings(run=RunSettings(model="deepfm", overrides=rates, **small), capacity=4000)


@pytest.fixture
def new_run(small_settings, features, events):
    """Makes a trainer with a run in a folder, synced once."""
    from published import PublishedTrainer

    from cowclip_merlin.online import FileLog

    def make(folder):
        made = PublishedTrainer(small_settings, features, folder / "run", FileLog(folder / "sync"))
        made.start()
        made.train(events.filter(slice(0, BATCH)))
        made.sync(auc=0.71)
        return made

    return make


@pytest.fixture(scope="session")
def rows(drifting):
    """Rows of the log as requests have them: text, whole numbers, and a price."""
    import csv

    with open(drifting / "log.csv", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    for row in found:
        row["price"] = float(row["price"]) if row["price"] else None
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory, small_settings, features, events):
    """A trainer, and a follower that has its model."""
    from published import publish

    from cowclip_merlin.serving.live.follower import Follower

    folder = tmp_path_factory.mktemp("served")
    made = publish(folder, small_settings, features, events.filter(slice(0, 512)))
    follower = Follower(lambda: made.log)
    while follower.step():
        pass
    follower.step()
    assert follower.model is not None
    return made, follower


@pytest.fixture(scope="module")
def client(served):
    from http_clients import client_of

    with client_of(served[1]) as made:
        yield made
