"""The public names and the help of each command are those of the recorded text."""

import pytest
from surface import FILES, HERE

import cowclip_merlin as cc


@pytest.mark.parametrize("file", FILES)
def test_users_see_what_is_recorded(file):
    """After an intended change: `python tests/public/surface.py`."""
    assert FILES[file]() == (HERE / file).read_text(encoding="utf-8").splitlines()


def test_a_misspelt_name_is_answered_with_a_near_one():
    with pytest.raises(AttributeError, match="did you mean CTRClassifier"):
        _ = cc.CTRClasifier
    assert not hasattr(cc, "__wrapped__")
