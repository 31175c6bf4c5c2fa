"""Files and folders are written completely or not at all; errors name the user's path."""

import sys
from itertools import count

import pytest

from cowclip_merlin.system.files import atomic_folder, atomic_write, check_writable

# Valid itself, but the temporary name beside it is too long. It fails for root, too, whom no
# rights stop.
NAME = "n" * 250


def test_a_folder_that_cannot_be_made_is_the_users(tmp_path):
    with pytest.raises(OSError) as failure, atomic_folder(tmp_path / NAME):
        pass
    assert failure.value.filename == str(tmp_path / NAME)


def write_file(path):
    with atomic_write(path) as temporary:
        temporary.write_text("whole")


def write_folder(path):
    with atomic_folder(path) as temporary:
        temporary.mkdir()
        (temporary / "part").write_text("whole")


def interrupted_at(number, run, path):
    """Run as if Ctrl-C came before a line of `system`; return whether there was such a line."""
    lines = count()

    def trace(frame, event, _):
        if "cowclip_merlin/system/" not in frame.f_code.co_filename:
            return None
        if event == "line" and next(lines) == number:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run(path)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize(
    ("run", "whole"),
    [(write_file, ["a"]), (write_folder, ["a", "a/part"]), (check_writable, [])],
)
def test_ctrl_c_at_any_line_leaves_all_or_nothing(run, whole, tmp_path):
    for number in count():
        folder = tmp_path / str(number)
        folder.mkdir()
        interrupted = interrupted_at(number, run, folder / "a")
        left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
        assert left in ([], whole)
        if not interrupted:
            break
    assert number > 8 and left == whole
