"""Settings of a small model on the stream of `streams`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def settings(settings_of):
    return settings_of(batch_size=32, table={"capacity": 3000})


def events_in(folder):
    from streams import EVENTS, log_of, messages

    values = messages(range(EVENTS))
    values[300:300] = [b"no event", *messages(range(280, 290))]
    return log_of(folder, values)


@pytest.fixture
def events(tmp_path):
    """A log of 1,000 events, some of them twice, and some damaged messages."""
    return events_in(tmp_path / "events")


@pytest.fixture(scope="session")
def whole(tmp_path_factory, settings):
    """The final state of a training that nobody stops."""
    from streams import final_state, stream_trainer

    folder = tmp_path_factory.mktemp("whole_stream")
    stream_trainer(folder / "run", settings, events_in(folder / "events")).run()
    return final_state(folder / "run")
