"""Settings of a small model on the stream of `streams`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def settings(settings_of):
    return settings_of(batch_size=32, table={"capacity": 3000})


@pytest.fixture
def events(tmp_path):
    """A log of 1,000 events, some of them twice, and some damaged messages."""
    from streams import EVENTS, log_of, messages

    values = messages(range(EVENTS))
    values[300:300] = [b"no event", *messages(range(280, 290))]
    return log_of(tmp_path / "events", values)


@pytest.fixture
def whole(tmp_path, settings, events):
    """The final state of a training that nobody stops."""
    from streams import final_state, stream_trainer

    stream_trainer(tmp_path / "whole", settings, events).run()
    return final_state(tmp_path / "whole")
