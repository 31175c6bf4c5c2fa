"""The demo on a small log: everything it writes, prints and reuses."""

import re

from cowclip_merlin import demo


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
    assert "holds a log of 15,000 rows, seed 7; use another --work" in capsys.readouterr().err
    config = work / "runs" / "baseline" / "config.json"
    config.write_text(config.read_text().replace('"seed": 1', '"seed": 2'))
    assert demo.main(["--work", str(work), "--rows", "15000"]) == 2
    assert "baseline: was trained with other settings; delete it" in capsys.readouterr().err


def test_too_few_rows_are_one_clear_line(tmp_path, capsys):
    assert demo.main(["--work", str(tmp_path), "--rows", "1500"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("demo: error: ") and "too few" in error
    assert len(error.splitlines()) == 1
