"""Tables of the documentation that `cowclip experiment` wrote into benchmarks/results/experiments.

A comment such as `<!-- recorded: flights-3M-searched/table2 -->` stands above each.
"""

import json
import re
import shlex
import shutil

import pytest
from markdown_pages import PAGES, ROOT, name

from cowclip_merlin.cli import main as cowclip
from cowclip_merlin.experiments.tables.files import read_table

RECORDED = ROOT / "benchmarks/results/experiments"
TABLES = sorted(RECORDED.glob("*/tables/*.json"))
MARKS = {"better": " +", "worse": " \N{MINUS SIGN}", "noise": " =", "": ""}
QUOTED = re.compile(r"^<!-- recorded: (\S+) -->\n\n((?:^\|.*\n)+)", re.MULTILINE)
QUOTES = [(page, *found) for page in PAGES for found in QUOTED.findall(page.read_text("utf-8"))]


def markdown(table):
    """Lines of the table, without the published numbers and the columns without a number."""
    measured = [[cell.mean is not None for cell in cells] for _, cells in table.rows]
    shown = [j for j, column in enumerate(zip(*measured, strict=True)) if any(column)]
    head = [table.corner, *(table.columns[j] for j in shown)]
    body = [[label, *(cell_text(cells[j]) for j in shown)] for label, cells in table.rows]
    rule = ["---", *["---:"] * len(shown)]
    lines = [f"| {' | '.join(row)} |" for row in (head, *body)]
    return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]]) + "\n"


def cell_text(cell):
    if cell.mean is None:
        return "" if cell.text == "not run" else cell.text
    spread = "" if cell.spread is None else f" ±{cell.spread:.2f}"
    return f"{cell.mean:.2f}{spread}{MARKS[cell.verdict]}"


@pytest.mark.parametrize(
    ("page", "source", "quoted"), QUOTES, ids=[f"{name(p)}-{s}" for p, s, _ in QUOTES]
)
def test_a_quoted_table_is_the_recorded_one(page, source, quoted):
    folder, _, table = source.partition("/")
    assert quoted == markdown(read_table(RECORDED / folder / "tables" / f"{table}.json"))


def test_every_mark_has_a_table():
    marks = sum(page.read_text("utf-8").count("<!-- recorded: ") for page in PAGES)
    assert len(QUOTES) == marks >= 10


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
