"""Folders that commands are given copies of: each is made once for all workers of a test run."""

import sys
from pathlib import Path

from cowclip_merlin.cli import main
from cowclip_merlin.synthetic.criteo_log import generate

SMALL = ["--model", "deepfm", "--batch-size", "256", "--mlp", "8", "--epochs", "1"]


def cowclip(*words):
    assert main([*map(str, words)]) == 0


def run(out, data):
    """A run on the prepared Criteo log."""
    cowclip("train", data, "--out", out, *SMALL, "--diagnostics-every", "2")


def like(out, data):
    """The rows of a log, with the ids of `data`."""
    log = out.with_name("log.txt")
    generate(log, rows=400, seed=4)
    cowclip("prepare", "criteo", log, "--out", out, "--like", data)


def table(out):
    """A log of three columns, DATA prepared from it, RUN trained on that, and new rows."""
    out.mkdir()
    rows = (f"{i % 2},u{i % 7},{'DEFRNL'[i % 3 * 2 :][:2]},{i % 5}" for i in range(200))
    text = "\n".join(["y,user,country,price", *rows, ""])
    (out / "log.csv").write_text(text)
    (out / "new.csv").write_text(text)
    columns = ["--label", "y", "--categorical", "user,country", "--continuous", "price"]
    cowclip("prepare", "table", out / "log.csv", "--out", out / "DATA", *columns)
    cowclip("train", out / "DATA", "--out", out / "RUN", *SMALL, "--batch-size", "32")


def results(out):
    """Results of experiments, with tables and figures."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
    from made_results import make_results

    make_results(out)


# name -> the function that makes it, and the folders that it takes
FOLDERS = {
    "run": (run, "data"),
    "like": (like, "data"),
    "table": (table,),
    "results": (results,),
}
