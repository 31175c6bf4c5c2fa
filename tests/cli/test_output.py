"""What `--quiet` and `--verbose` change, progress with the time left, and completion."""

import argparse
import io
import os
import subprocess
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from tqdm import tqdm

from cowclip_merlin.cli import build_parser, main
from cowclip_merlin.system import console
from cowclip_merlin.workflows import PrepareSettings, prepare

GROUPED = {"fit", "prepare", "train", "tune", "serve"}
NO_NOTES = {
    "cowclip report",
    "cowclip online rollback",
    "cowclip online demo",
    "cowclip completion",
}


@pytest.fixture
def log(tmp_path):
    some = np.random.default_rng(2)
    rows = {"y": some.integers(0, 2, 3000), "a": some.integers(0, 40, 3000)}
    frame = pd.DataFrame(rows).astype(str)
    for name in ("log.csv", "log.csv.gz"):
        frame.to_csv(tmp_path / name, index=False)
    frame.to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    frame.astype({"y": int}).to_parquet(tmp_path / "log.parquet", row_group_size=700)
    return tmp_path / "log.csv"


def parsers(parser):
    """All commands that have no commands of their own."""
    found = [x for x in parser._actions if isinstance(x, argparse._SubParsersAction)]
    if not found:
        yield parser
    for each in found:
        for sub in each.choices.values():
            yield from parsers(sub)


def test_all_commands_have_both_options():
    for each in parsers(build_parser()):
        assert "--verbose" in each._option_string_actions, each.prog
        assert ("-q" in each._option_string_actions) == (each.prog not in NO_NOTES), each.prog


def test_options_of_long_commands_are_in_groups():
    for each in parsers(build_parser()):
        name = each.prog.removeprefix("cowclip ")
        if name in GROUPED or (name.startswith("online ") and name != "online rollback"):
            loose = [*each._optionals._group_actions, *each._positionals._group_actions]
            assert [x.dest for x in loose] == ["help"], each.prog


def test_only_one_of_them_is_given(capsys):
    with pytest.raises(SystemExit):
        main(["scale", "--to", "8192", "-q", "-v"])
    assert "not allowed with argument" in capsys.readouterr().err


def test_quiet_leaves_the_result_and_verbose_adds_seconds(log, tmp_path, capsys):
    words = ["prepare", "table", str(log), "--label", "y", "--categorical", "a", "--out"]
    told = {}
    for option in ("", "-q", "-v"):
        assert main([*words, str(tmp_path / f"DATA{option}"), *filter(None, [option])]) == 0
        told[option] = capsys.readouterr()
    usual = told[""].out.replace("DATA", "DATA-q").splitlines()
    assert "rule sde fits" in usual[-1] and told["-q"].out.splitlines() == usual[:-1]
    assert told["-v"].out == told[""].out.replace("DATA", "DATA-v")
    times = [line.partition(": ")[2].partition(":")[0] for line in told["-v"].err.splitlines()]
    assert times == ["read", "write", "in all"] and not told["-q"].err


def test_the_level_ends_with_the_command(monkeypatch, capsys):
    monkeypatch.delenv(console.LEVEL, raising=False)
    before = dict(os.environ)
    for option in ("-q", "-v"):
        assert main(["scale", "--to", "8192", option]) == 0
        assert os.environ == before
    assert main(["scale", "--to", "8192"]) == 0
    assert "rules without the clip" in capsys.readouterr().out


def test_warnings_are_not_told_in_quiet(capsys):
    import logging

    logger = logging.Logger("some of ours")  # without handlers
    for level, words in ((None, "of a warning"), (console.QUIET, "")):
        with console.output_level(level):
            logger.warning("of a warning")
            assert words in capsys.readouterr().err
    with console.output_level(console.QUIET):
        logger.error("of an error")
        assert "of an error" in capsys.readouterr().err


def bars_of(module, monkeypatch):
    """The bars that a module will have shown."""
    bars = []

    def shown(total=None, **given):
        bars.append(tqdm(**{"total": total, **given, "file": io.StringIO()}))
        return bars[-1]

    monkeypatch.setattr(f"cowclip_merlin.{module}.progress", shown)
    return bars


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "parquet"])
def test_the_bar_of_reading_ends_with_the_files(log, tmp_path, monkeypatch, kind):
    bars = bars_of("workflows.raw.readers", monkeypatch)
    given = {"kind": "table", "label": "y", "categorical": ("a",), "partition_mb": 0.004}
    prepare(PrepareSettings(files=(tmp_path / f"log.{kind}",), out=tmp_path / "DATA", **given))
    (bar,) = bars
    assert bar.total == (tmp_path / f"log.{kind}").stat().st_size
    assert 0.95 * bar.total < bar.n <= bar.total


def test_the_bar_of_an_export_counts_the_ids_of_each_table_once(prepared, monkeypatch):
    from cowclip_merlin.serving.raw_value_model import RawValueModel

    bars = bars_of("serving.raw_value_model", monkeypatch)
    data = prepared("y,a,b,x\n0,u,v,1\n1,w,u,2\n", share_embedding=("b=a",), test_fraction=0)
    RawValueModel(SimpleNamespace(variables=[]), data)
    (bar,) = bars
    assert bar.n == bar.total == data.tables["a"] > 0


def test_progress_shows_on_a_terminal_only_and_not_in_quiet(monkeypatch):
    assert console.progress(3).disable
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert not console.progress(3).disable
    with console.output_level(console.QUIET):
        assert console.progress(3).disable


@pytest.mark.runs
def test_training_tells_its_result_only(log, tmp_path, capsys):
    data = tmp_path / "DATA"
    files = {"files": (log,), "label": "y", "categorical": ("a",)}
    prepare(PrepareSettings(kind="table", out=data, **files))
    capsys.readouterr()
    words = ["train", str(data), "--out", str(tmp_path / "RUN"), "--epochs", "1", "--mlp", "4"]
    assert main([*words, "--quiet"]) == 0
    told = capsys.readouterr()
    assert told.out.count("\n") == 1 and told.out.startswith("test AUC 0.") and not told.err
    log = (tmp_path / "RUN/train.log").read_text(encoding="utf-8")
    assert " INFO " in log and "epoch 1" in log


@pytest.mark.system
@pytest.mark.quick
def test_the_shell_completes_commands_and_options(tmp_path, capsys):
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "cowclip.sh"
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    complete = "source $0; COMP_WORDS=(cowclip train --early); COMP_CWORD=2; "
    complete += "_shtab_cowclip; printf '%s\\n' \"${COMPREPLY[@]}\""
    found = subprocess.run(
        ["bash", "-c", complete, str(script)], capture_output=True, text=True, check=False
    )
    assert found.stdout.split() == ["--early-stopping"]
