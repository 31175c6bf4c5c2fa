"""Makes the helpers of these tests importable, and a run with its sync log."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def small_settings(settings_of):
    return settings_of()


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
    from published import follower_of, publish

    folder = tmp_path_factory.mktemp("served")
    made = publish(folder, small_settings, features, events.filter(slice(0, 512)))
    follower = follower_of(made)
    assert follower.model is not None
    return made, follower


@pytest.fixture(scope="module")
def client(served):
    from http_clients import client_of

    with client_of(served[1]) as made:
        yield made
