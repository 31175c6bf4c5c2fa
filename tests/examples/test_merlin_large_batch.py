"""examples/merlin_large_batch.py: Merlin's DCN at two batches, and what it refuses."""

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cowclip_merlin import compat

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import merlin_large_batch as example

pytestmark = [pytest.mark.runs, pytest.mark.thorough]


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    nvt = compat.nvtabular()
    from merlin.schema import Tags
    from nvtabular import ops

    folder, draw = tmp_path_factory.mktemp("output"), np.random.default_rng(0)
    users = draw.integers(0, 9, 2000)
    clicks = draw.random(2000) < users / 9
    log = pd.DataFrame({"user": users, "click": clicks.astype("float32")})
    target = ["click"] >> ops.AddMetadata(tags=[Tags.BINARY_CLASSIFICATION, Tags.TARGET])
    columns = ["user"] >> ops.Categorify(out_path=str(folder))
    workflow = nvt.Workflow(columns + target)
    with compat.quiet_merlin():
        rows = nvt.Dataset(log)
        workflow.fit(rows).transform(rows).to_parquet(str(folder / "rows"))
    return str(folder / "rows")


def test_it_prints_each_epoch_of_both_batches(output, capsys):
    words = ["--label", "click", "--batch-size", "50", "--times", "4", "--epochs", "2"]
    assert example.main([output, output, *words]) == 0
    found = re.findall(
        r"^(\w+), batch (\d+) +(\d) +(0\.\d+) +[\d,]+$", capsys.readouterr().out, re.M
    )
    assert [each[:3] for each in found] == [
        ("Adam", "50", "1"),
        ("Adam", "50", "2"),
        ("CowClip", "200", "1"),
        ("CowClip", "200", "2"),
    ]
    assert float(found[1][3]) > 0.8  # the clicks follow from the user


@pytest.mark.parametrize(
    "words, says",
    [
        ("nowhere {0} --label click", "nowhere: has no *.parquet"),
        ("{0} {0} --label clicks", "has no column 'clicks'; it has user, click"),
        ("{0} {0} --label click --times 0", "--times 0: give 1 or more"),
    ],
)
def test_a_wrong_word_is_one_line(output, capsys, words, says):
    assert example.main(words.format(output).split()) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
