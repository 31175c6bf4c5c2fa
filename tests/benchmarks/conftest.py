"""The benchmarks are scripts: their folder is on the path when they run, and so it is here."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def load():
    """Imports a module of the folder by its name."""

    def imported(name):
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(BENCHMARKS))
            return importlib.import_module(name)

    return imported
