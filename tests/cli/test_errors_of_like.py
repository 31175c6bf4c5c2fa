"""Mistakes with a folder that `prepare --like` made: all of its rows are test rows."""

import pytest

from cowclip_merlin.cli import main


def prepared_like(p, lines=None):
    log, new = p.write("new.txt", b"\n".join(lines or p.lines())), p.path / "new"
    assert main(["prepare", "criteo", str(log), "--out", str(new), "--like", str(p.data())]) == 0
    return new


def experiment(p):
    data, out = prepared_like(p), p.path / "out"
    return ["experiment", "table4", "--data", str(data), "--out", str(out)]


NO_TRAIN_ROWS = r"new: prepared with --like data, .*train on data,.* cowclip evaluate"
CASES = {
    "training": (lambda p: p.train(prepared_like(p)), NO_TRAIN_ROWS),
    "experiment": (experiment, NO_TRAIN_ROWS),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_exit_code_2(case, refused):
    refused(*CASES[case])
