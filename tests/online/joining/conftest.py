"""Makes `joining` and `merged`, which lie beside the tests, importable."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def features():
    import joining

    return joining.FEATURES
