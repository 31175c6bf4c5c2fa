"""Makes the modules beside it importable; the folders that commands are given copies of."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from given_folders import FOLDERS


@pytest.fixture(scope="session")
def copy(make_once, request):
    """Copies a log, a prepared folder or a run into a folder, under its name."""

    def source_of(name):
        if name in ("data", "log.txt"):
            return request.getfixturevalue(name.removesuffix(".txt"))
        make, *needed = FOLDERS[name]
        sources = [source_of(other) for other in needed]
        return make_once(f"refusals-{name}", lambda folder: make(folder / name, *sources)) / name

    def get(name, folder):
        source = source_of(name)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)

    return get
