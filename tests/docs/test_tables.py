"""Tables of the pages that repeat what the code, or another page, says."""

import inspect
import math
import os
import re
import subprocess
import sys

import pytest
import yaml
from markdown_pages import ROOT

import cowclip_merlin as cc
from cowclip_merlin import compat, diagnostics, models, online, tables, training, triton, workflows
from cowclip_merlin.cli import COMMANDS
from cowclip_merlin.training.build import numbers_per_id

MODULES = {
    "cc": cc,
    "cc.diagnostics": diagnostics,
    "cc.models": models,
    "cc.online": online,
    "cc.tables": tables,
    "cc.training": training,
    "cc.triton": triton,
    "cc.workflows": workflows,
}
CONSTANTS = {
    "cc.PRESETS": ("cowclip_merlin/scaling.py", "The paper's settings for its two data sets"),
    "cc.models.MODELS": ("models/__init__.py", "The five builders by name"),
}


def rows_of(page):
    return [
        tuple(cell.strip() for cell in line.strip("|").split(" | "))
        for line in (ROOT / "docs" / page).read_text().splitlines()
        if line.startswith("|") and not line.startswith("|--")
    ]


def expected(name, value):
    """The row of one public name: link to its file, first sentence of its docstring."""
    if name in CONSTANTS:
        file, text = CONSTANTS[name]
    else:
        file = os.path.relpath(inspect.getsourcefile(value), ROOT)
        first = inspect.getdoc(value).split("\n\n")[0].replace("\n", " ")
        text = re.split(r"\.(?: |$)", first)[0]
    return f"[`{name}`](../{file})", text


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_table_of_names(module):
    names = {f"{module}.{n}": getattr(MODULES[module], n) for n in MODULES[module].__all__}
    wanted = [expected(n, v) for n, v in names.items() if not inspect.ismodule(v)]
    found = [row for row in rows_of("reference.md") if re.match(rf"\[`{module}\.\w+`", row[0])]
    assert sorted(found) == sorted(wanted)


@pytest.mark.system
def test_every_public_name_is_there_after_the_one_import_of_the_page():
    names = [
        match[1]
        for row in rows_of("reference.md")
        if (match := re.match(r"\[`(cc\.[\w.]+)`", row[0]))
    ]
    code = "\n".join(["import cowclip_merlin as cc", *names])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert len(names) > 20 and done.returncode == 0, done.stderr


def test_the_citation_has_the_version_and_its_date():
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    newest = f"## [{found['version']}] - {found['date-released']}"
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert found["version"] == cc.__version__
    assert newest == re.search(r"^## .*$", changes, re.M)[0]


def test_every_command_is_named():
    line = (ROOT / "docs/reference.md").read_text().split("## Command line")[1].split(";")[0]
    named = re.findall(r"`(?:cowclip )?(\w+)`", line)
    assert sorted(named) == sorted(COMMANDS)


def test_rules_are_those_of_the_code():
    cells = {"$1$": 1, "$s$": 4, r"$\sqrt{s}$": 2, "$s^2$": 16}
    rows = {row[0].strip("`"): row[1:] for row in rows_of("method.md") if len(row) == 4}
    from cowclip_merlin.scaling import RULES

    for name, rule in RULES.items():
        factors = rule(4.0)
        wanted = [factors.embedding_lr, factors.dense_lr, factors.l2]
        assert [cells[cell] for cell in rows[name]] == wanted, name


def test_bytes_per_id_are_those_of_the_tables_and_their_state(tmp_path):
    tf, n, d = compat.tensorflow(), 100, 16
    legacy = tf.keras.optimizers.legacy
    made = {
        "Adam": (legacy.Adam(), "lazy", "adam"),
        "with `exact`": (legacy.Adam(), "exact", "adam"),
        "Adagrad": (legacy.Adagrad(), "lazy", "adagrad"),
        "row-wise": (cc.RowWiseAdagrad(), "lazy", "rowwise_adagrad"),
        "SGD": (legacy.SGD(), "lazy", None),
    }
    rows = rows_of("choosing.md")
    cells = rows[rows.index(tuple(made)) + 1]
    for words, (inner, update, name) in zip(cells, made.values(), strict=True):
        factor, _, more = words.partition("d")
        table = tf.Variable(tf.zeros([n, d]), name="embeddings")
        optimizer = cc.CowClip(inner, update=update, backend="tensorflow")
        optimizer.create_state([table])
        path = tf.train.Checkpoint(optimizer=optimizer, table=table).write(str(tmp_path / "c"))
        held = [shape for _, shape in tf.train.list_variables(path) if shape[:1] == [n]]
        per_row = sum(4 * math.prod(shape[1:]) for shape in held)
        assert per_row == int(factor) * d + int(more.strip("+ ") or 0), words
        if name:
            numbers = numbers_per_id(name, d, counts_steps=update == "exact")
            assert per_row == 4 * numbers
