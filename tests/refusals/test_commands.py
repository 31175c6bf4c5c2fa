"""Wrong input ends a command in one clear line and exit code 2, and nothing is left behind."""

import re
from pathlib import Path

import pytest
from listed import listed


@pytest.mark.parametrize("refusal", listed())
def test_one_line_and_exit_code_2(refusal, tmp_path, copy, monkeypatch, capsys):
    refusal.make(tmp_path, copy)
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    main, words, begins = refusal.program(monkeypatch)
    try:
        code = main(words)
    except SystemExit as end:  # what argparse itself finds
        code = end.code
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if "error:" in line]
    assert code == 2, said[-2000:]
    assert len(lines) == 1 and re.match(begins, lines[0]), lines
    assert re.search(refusal.says, lines[0]), lines[0]
    after = contents(tmp_path)
    new = {Path(path).relative_to(tmp_path).parts[0] for path in after.keys() - before.keys()}
    assert new == set(refusal.leaves) and before.keys() <= after.keys()
    assert not [path for path in before if after[path] != before[path] and "/.cache" not in path]


def contents(folder):
    """The files in a folder and when they were last written; folders and links."""
    return {
        str(path): path.stat().st_mtime_ns if path.is_file() else None for path in folder.rglob("*")
    }
