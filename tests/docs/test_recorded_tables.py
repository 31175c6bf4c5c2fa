"""Tables of the documentation that come from the recorded runs in benchmarks/results.

A comment such as `<!-- recorded: flights-3M-searched/table2 -->` stands above each.
"""

import json
import shlex
import shutil

import pytest
import recorded_tables
from markdown_pages import PAGES, name
from recorded_tables import OTHERS, QUOTED, RECORDED, recorded

from cowclip_merlin.cli import main as cowclip
from cowclip_merlin.experiments.tables.files import read_table

TABLES = sorted(RECORDED.glob("*/tables/*.json"))
FOUND = [(page, found) for page in PAGES for found in QUOTED.finditer(page.read_text("utf-8"))]
QUOTES = [(page, found[2], found[3]) for page, found in FOUND]


@pytest.mark.parametrize(
    ("page", "source", "quoted"), QUOTES, ids=[f"{name(p)}-{s}" for p, s, _ in QUOTES]
)
def test_a_quoted_table_is_the_recorded_one(page, source, quoted):
    assert quoted == recorded(source)


def test_every_mark_has_a_table():
    marks = sum(page.read_text("utf-8").count("<!-- recorded: ") for page in PAGES)
    assert len(QUOTES) == marks >= 40


def test_every_recorded_table_is_on_a_page():
    sources = {source for _, source, _ in QUOTES}
    assert {f"{file.parts[-3]}/{file.stem}" for file in TABLES} | set(OTHERS) <= sources


def test_make_notes_changes_nothing(monkeypatch):
    """And writes what is missing: see the first table that it makes again."""
    page, _, quoted = QUOTES[0]
    text = page.read_text("utf-8")
    assert recorded_tables.renewed(text.replace(quoted, "| to be made |\n")) == text
    figure = recorded_tables.FIGURE.read_text("utf-8")  # other versions draw other lines
    monkeypatch.setattr(recorded_tables, "figure", lambda: figure)
    monkeypatch.setattr(type(page), "write_text", lambda self, *_, **__: pytest.fail(name(self)))
    assert recorded_tables.main() == 0


@pytest.mark.one_case
@pytest.mark.parametrize("file", TABLES, ids=lambda file: f"{file.parts[-3]}-{file.stem}")
def test_a_recorded_table_is_that_of_the_recorded_runs(file, tmp_path, capsys):
    """`dataset.json` is enough of the data, since no run is missing."""
    recorded = file.parents[1]
    for part in ("results.csv", "tuned.json", "dataset.json"):
        shutil.copy(recorded / part, tmp_path)
    words = shlex.split(json.loads(file.read_text("utf-8"))["command"])[1:]
    folders = {"DATA": tmp_path, "RESULTS": tmp_path, f"{file.stem}.yaml": recorded / words[1]}
    assert cowclip([str(folders.get(word, word)) for word in words]) == 0, capsys.readouterr().err
    assert read_table(tmp_path / "tables" / file.name) == read_table(file)
