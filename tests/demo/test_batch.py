"""The demo on a small log: everything it writes, prints and reuses."""

import re
import shutil

import pytest

from cowclip_merlin.demo import batch as demo
from cowclip_merlin.errors import InputError
from cowclip_merlin.training import RunSettings, Stopped


@pytest.mark.runs
@pytest.mark.thorough
def test_it_runs_end_to_end_and_a_second_run_reuses_the_first(tmp_path, capsys):
    work = tmp_path / "demo"
    assert demo.main(["--work", str(work), "--rows", "15000"]) == 0
    first = capsys.readouterr().out
    rows = re.findall(r"^ +(\d+)  (none|cowclip) .* (\d+\.\d\d)% +\d\.\d+$", first, re.MULTILINE)
    assert [(batch, rule) for batch, rule, _ in rows] == [
        ("8", "none"), ("256", "none"), ("256", "cowclip"),
    ]  # fmt: skip
    assert all(50 < float(auc) < 90 for *_, auc in rows)
    assert (work / "auc.svg").read_text().count("<svg") == 1
    assert demo.main(["--work", str(work), "--rows", "15000"]) == 0
    second = capsys.readouterr().out
    assert "training" not in second and "generating" not in second
    assert second.split("best possible")[0].strip() in first
    assert demo.main(["--work", str(work), "--rows", "16000"]) == 2
    assert "15,000 rows, seed 7; " in capsys.readouterr().err
    facts = work / "log.txt.json"
    known = facts.read_text()
    facts.write_text(known.replace('"crosses"', '"formerly"'))
    assert demo.main(["--work", str(work), "--rows", "15000"]) == 2
    error = capsys.readouterr().err
    assert "other crossed columns" in error
    assert len(error.splitlines()) == 1
    facts.write_text(known)
    killed = work / "runs" / "large-cowclip"  # the fastest one
    shutil.rmtree(killed / "checkpoints")  # as if it were killed early on
    (killed / "metrics.csv").unlink()
    assert demo.main(["--work", str(work), "--rows", "15000"]) == 0
    third = capsys.readouterr().out
    assert third.count("training") == 1 and "training large-cowclip" in third
    config = work / "runs" / "baseline" / "config.json"
    config.write_text(config.read_text().replace('"seed": 1', '"seed": 2'))
    assert demo.main(["--work", str(work), "--rows", "15000"]) == 2
    assert "baseline: trained with other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("unscaled", "cowclip", "words"),
    [
        (0.77, 0.7895, "-2.00 AUC points against the small batch; with CowClip: -0.05, 3.0 times"),
        (0.7895, 0.79, "so the expected effect of CowClip is not visible in this run"),
        (0.77, 0.78, "so the expected effect of CowClip is not visible in this run"),
    ],
)
def test_the_verdict_is_what_the_numbers_say(unscaled, cowclip, words):
    names = ("baseline", "large-unscaled", "large-cowclip", "large-sde")
    auc, seconds = (0.79, unscaled, cowclip, 0.7912), (30.0, 20.0, 10.0, 5.0)
    rows = [{"test_auc": a, "seconds": s} for a, s in zip(auc, seconds, strict=True)]
    said = demo.verdict(dict(zip(names, rows, strict=True)))
    assert "with sde: +0.12\n" in said
    assert words in said and ("does not show" in said) == ("does not show" in words)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (Stopped(15), 143, "demo: stopped; "),
        (KeyboardInterrupt(), 130, "demo: interrupted; "),
        (OSError(28, "No space left on device", "x"), 2, "demo: error: x: no space"),
    ],
)
def test_an_end_in_the_middle_is_one_line(tmp_path, capsys, monkeypatch, error, code, words):
    def ends(*_):
        raise error

    monkeypatch.setattr(demo, "prepare_data", ends)
    assert demo.main(["--work", str(tmp_path)]) == code
    said = capsys.readouterr().err
    assert said.startswith(words) and len(said.splitlines()) == 1


def test_too_few_rows_are_one_clear_line(tmp_path, capsys):
    assert demo.main(["--work", str(tmp_path), "--rows", "1500"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("demo: error: ") and "too few" in error
    assert len(error.splitlines()) == 1


def test_a_folder_that_holds_no_run_stays(tmp_path, monkeypatch):
    mine = tmp_path / "runs/baseline/notes"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")

    def refuse(*_, **__):
        raise InputError("not here")

    monkeypatch.setattr(demo, "train", refuse)
    settings = RunSettings(model="deepfm", batch_size=8)
    with pytest.raises(InputError, match="not here"):
        demo.run_or_reuse("baseline", settings, tmp_path, tmp_path)
    assert mine.read_text() == "mine"
