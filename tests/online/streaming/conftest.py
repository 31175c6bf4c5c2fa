"""Settings of a small model on the stream of `streams`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def settings(settings_of):
    return settings_of(batch_size=32, table={"capacity": 3000})
