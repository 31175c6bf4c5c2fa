import sys
from pathlib import Path

import pytest

from cowclip_merlin.workflows import PrepareSettings, prepare

sys.path.insert(0, str(Path(__file__).parent))  # for `pandas_reference`, beside the tests

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def real():
    """Folder with small real logs, beside the repository; absent on most machines."""
    if not SHARED.is_dir():
        pytest.skip("needs the real click logs in ../shared/data")
    return SHARED


@pytest.fixture
def prepared(tmp_path):
    """Prepares a table from CSV text: label y, categories a and b, numbers x."""

    def make(text, name="t.csv", **settings):
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        usual = {"kind": "table", "label": "y", "categorical": ("a", "b"), "continuous": ("x",)}
        return prepare(
            PrepareSettings(files=(file,), out=tmp_path / f"{name}.data", **(usual | settings))
        )

    return make
