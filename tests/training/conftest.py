"""A prepared folder that a test may spoil."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from cowclip_merlin.workflows import PreparedData

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def folder(data, tmp_path):
    """A prepared folder of its own, without a cache."""
    copy = shutil.copytree(data, tmp_path / "data", ignore=lambda _, names: hidden(names))
    forget_checksums(copy)
    return PreparedData.load(copy)


def forget_checksums(folder):
    """So that what a test writes into the parquet files is read."""
    description = json.loads((folder / "dataset.json").read_text())
    description["checksums"] = {}
    (folder / "dataset.json").write_text(json.dumps(description))


def hidden(names):
    return [name for name in names if name.startswith(".cache")]
