"""What CONTRIBUTING.md says that a clip, model, rule, column or log takes: just these two edits.

In a copy of the code each addition is made as its author would make it; then a run has all of them.
"""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PLACES = {
    added: re.findall(r"`((?:[\w]+/)+\w+\.(?:py|md))`", edits)
    for added, edits in re.findall(r"^\| (an? [\w ]+) \| ((?:its|which) .*) \|$", PAGE, re.M)
}

CLIP = """

@clip_function("share")
def share_factor(rows: ClipRows, settings: RowSettings) -> ArrayOrTensor:
    return settings.r * library_of(rows.g).ones_like(rows.g[:, 0])
"""
TOWER = """
from cowclip_merlin import compat
from cowclip_merlin.models.architecture import Architecture
from cowclip_merlin.models.base import ClickModel, assemble

tf = compat.tensorflow()


@tf.keras.utils.register_keras_serializable(package="mine")
class Tower(ClickModel):
    def forward(self, features):
        return self.mlp_logit(features)


def tower(schema, **settings):
    return assemble(Tower, schema, Architecture(**settings))
"""
DAY = '''

@dataclass(frozen=True)
class Day(Column):
    """A day as a whole number, such as 20010131, of which the year is kept."""

    def check(self, values: ArrowColumn, where: str) -> tuple[ArrowColumn, Bools]:
        days, _ = super().check(values, where)
        return pc.floor(pc.divide(days, 10_000.0)), np.asarray(pc.greater(days, 19_000_000), bool)

    def damage(self, value: object) -> str:
        return f"{self.name} is {value!r}, no day"
'''
LOG = """

MINE = LogFormat(kind="mine", label="click", categorical=("user",), continuous=("age",))
"""
# Text that an edit replaces, and what it becomes; with "" it is added at the end.
EDITS = {
    "a clip": {
        "cowclip_merlin/clip.py": ("", CLIP),
        "cowclip_merlin/choices.py": (
            'acts_on="update"),\n',
            'acts_on="update"),\n        "share": Clip(settings=("r",)),\n',
        ),
    },
    "a model": {
        "models/NAME.py": ("", TOWER),
        "cowclip_merlin/choices.py": ('"dcnv2", "din")', '"dcnv2", "din", "tower")'),
    },
    "a scaling rule": {
        "cowclip_merlin/scaling.py": (
            "micro_batches=True),\n",
            "micro_batches=True),\n"
            '        "triple": lambda s: Multipliers(embedding_lr=3, dense_lr=3, l2=3),\n',
        ),
        "docs/method.md": ("| `none` |", "| `triple` | 3 | 3 | 3 |\n| `none` |"),
    },
    "a kind of column": {
        "workflows/raw/columns.py": ("", DAY),
        "workflows/raw/log_format.py": (
            "        return tuple(found)\n",
            '        found += [kinds.Day("day")] if self.kind == "mine" else []\n'
            "        return tuple(found)\n",
        ),
    },
    "a raw log": {
        "workflows/raw/log_format.py": ("", LOG),
        "workflows/prepare_settings.py": (
            'KINDS = {"criteo": CRITEO,',
            'from cowclip_merlin.workflows.raw.log_format import MINE\n\n'
            'KINDS = {"mine": MINE, "criteo": CRITEO,',
        ),
    },
}  # fmt: skip
COMMANDS = """
import os, sys
from contextlib import suppress
from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.experiments.files import load_experiment
from cowclip_merlin.training import RunSettings

assert main(["prepare", "mine", "log.csv", "--out", "DATA", "--test-fraction", "0.2",
             "--max-bad-fraction", "0.1"]) == 0
assert main(["train", "DATA", "--out", "RUN", "--model", "tower", "--clip", "share", "--r", "0.25",
             "--rule", "triple", "--batch-size", "64", "--mlp", "4", "--epochs", "1",
             "--update", "dense", "--device", "cpu", "--diagnostics-every", "0"]) == 0
assert main(["evaluate", "RUN", "DATA"]) == 0
assert main(["scale", "--dataset", "criteo", "--to", "8192", "--rule", "triple"]) == 0
new, usual = (RunSettings(model="dcn", batch_size=8, rule=rule) for rule in ("triple", "none"))
assert new.hyperparameters("criteo").l2 == 3 * usual.hyperparameters("criteo").l2
(line,) = load_experiment("mine.yaml").lines
assert (line.rule, line.clip) == ("triple", "share")
try:
    RunSettings(model="fm", batch_size=8)
except InputError as error:
    assert str(error).endswith("din, tower"), error
with suppress(SystemExit):
    main(["train", "--help"])
sys.stdout.flush()
os._exit(0)  # the usual end of a process with TensorFlow and Merlin takes two seconds
"""


def test_each_addition_takes_the_two_edits_of_the_page():
    assert {added: sorted(edits) for added, edits in EDITS.items()} == {
        added: sorted(places) for added, places in PLACES.items()
    }
    assert all(len(places) == 2 for places in PLACES.values())


@pytest.fixture
def edited(tmp_path):
    """A copy of the code with all additions; folders without one are links."""
    copy = tmp_path / "code"
    copy.mkdir()
    package = copy / "cowclip_merlin"
    package.mkdir()
    for file in (ROOT / "cowclip_merlin").iterdir():
        (package / file.name).symlink_to(file)
    for folder in ("models", "workflows", "experiments"):
        shutil.copytree(ROOT / folder, package / folder)
        (copy / folder).symlink_to(package / folder)
    shutil.copytree(ROOT / "docs", copy / "docs")
    for edits in EDITS.values():
        for name, (old, new) in edits.items():
            file = copy / name.replace("NAME", "tower")
            text = file.read_text(encoding="utf-8") if file.exists() else ""
            assert text.count(old) == 1 or not old, f"{name}: {old}"
            text = text.replace(old, new) if old else text + new
            if file.is_symlink():
                file.unlink()
            file.write_text(text, encoding="utf-8")
    return copy


@pytest.mark.system
@pytest.mark.quick
def test_a_run_has_every_addition(edited, tmp_path):
    rows = [f"{i % 2},u{i % 7},{i % 50},{20010101 + i % 28}" for i in range(400)]
    rows[9] = "1,u1,3,12"  # no day
    (tmp_path / "log.csv").write_text("\n".join(["click,user,age,day", *rows, ""]))
    line = "{label: a, rule: triple, clip: share, multipliers: [1]}"
    text = f"title: Mine\nclaim: Mine\nkind: runs\nlines: [{line}]\n"
    (tmp_path / "mine.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        cwd=tmp_path, capture_output=True, text=True,
        # Its folders are links to those of the repository, whose compiled files stay as they are.
        env={**os.environ, "PYTHONPATH": str(edited), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    for words in ("AUC", "clippy, share", "din, tower", "invariant, triple"):
        assert words in printed
    (row,) = csv.DictReader((tmp_path / "RUN/metrics.csv").open())
    assert float(row["mean_clip_factor"]) == 0.25
    settings = json.loads((tmp_path / "RUN/config.json").read_text())["settings"]
    named = {"model": "tower", "clip": "share", "rule": "triple"}
    assert {name: settings[name] for name in named} == named
    file, *_ = sorted((tmp_path / "DATA/train").glob("*.parquet"))
    assert set(pq.read_table(file)["day"].to_pylist()) == {2001}
    assert "day is '12', no day" in (tmp_path / "DATA/damaged/lines.tsv").read_text()
