"""A page from made-up results; makes `made_results` and what lies beside it importable."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from made_results import AWKWARD, make_results, rules_table
from small_experiment import MINE

from cowclip_merlin.experiments.report import write_report


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """Two folders: one with awkward names, one with nothing but runs and a table."""
    folder = tmp_path_factory.mktemp("results")
    unlike = rules_table(cowclip=(78.5, 78.4, 78.3), other=(78.95, 78.9, 78.91))
    plain = make_results(folder / "second", data="second log", tables=[unlike], figures_too=False)
    return make_results(folder / "first", data=AWKWARD), plain


@pytest.fixture(scope="session")
def file(results, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(results, path)
    return path


@pytest.fixture
def mine(tmp_path):
    """An experiment's file of one's own."""
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    return str(path)
