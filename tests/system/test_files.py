"""A folder that cannot be made is told by the name that the user gave."""

import pytest

from cowclip_merlin.cli import main
from cowclip_merlin.system.files import atomic_folder

# Valid itself, but the temporary name beside it is too long. It fails for root, too, whom no
# rights stop.
NAME = "n" * 250


def test_a_folder_that_cannot_be_made_is_the_users(tmp_path):
    with pytest.raises(OSError) as failure, atomic_folder(tmp_path / NAME):
        pass
    assert failure.value.filename == str(tmp_path / NAME)


def test_prepare_names_the_users_folder(tmp_path, capsys):
    log = tmp_path / "log.csv"
    log.write_text("y,a\n0,x\n1,z\n")
    out = tmp_path / NAME
    command = ["prepare", "table", str(log), "--out", str(out), "--label", "y"]
    assert main([*command, "--categorical", "a", "--test-fraction", "0.5"]) == 2
    assert f"error: {out}: File name too long" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [log]
