"""A prepared folder that a test may spoil."""

import shutil

import pytest

from cowclip_merlin.workflows import PreparedData


@pytest.fixture
def folder(data, tmp_path):
    """A prepared folder of its own, without a cache."""
    return PreparedData.load(
        shutil.copytree(data, tmp_path / "data", ignore=lambda _, names: hidden(names))
    )


def hidden(names):
    return [name for name in names if name.startswith(".cache")]
