import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.online.events.ids import MISSING, text_id, text_ids

EDGES = st.integers(-(2**66), 2**66) | st.sampled_from([2**63 - 1, 2**63, -(2**63), 1 - 2**63, 0])
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | EDGES.map(str) | st.none()


# These are part of the format of runs: a change would give every id another row.
@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ("0", 0),
        ("-1", -1),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775807", 1 - 2**63),
        ("9223372036854775808", -4436916390290898806),
        ("-9223372036854775808", 1307324877175274915),
        ("1.0", 1),
        ("9007199254740992.0", -4038054885858833134),
        ("1.5", 3831814941423113338),
        ("042", -3674937487732630020),
        ("-0", 7133245170051001874),
        ("été", -2873208181647912516),
        (" 1", -3114765847432465156),
    ],
)
def test_ids_are_the_same_for_ever(text, id_):
    assert text_id(text) == id_ and text_ids(pa.array([text])).tolist() == [id_]


@given(st.lists(TEXTS, max_size=20))
def test_a_column_has_the_ids_of_its_values(values):
    wanted = [text_id(value) if value else MISSING for value in values]
    assert text_ids(pa.array(values, pa.string())).tolist() == wanted
    chunks = [values[:3], values[3:]]
    assert text_ids(pa.chunked_array(chunks, pa.string())).tolist() == wanted


@given(EDGES)
def test_whole_numbers_are_their_own_ids(number):
    fits = -(2**63) < number < 2**63
    assert (text_id(str(number)) == number) == fits


@given(TEXTS.filter(bool))
def test_no_value_is_a_missing_one(text):
    assert MISSING < text_id(text) < 2**63


def test_forms_of_one_are_different_values():
    forms = ["1", "1.5", "1.", "01", "01.0", "+1", " 1", "1 ", "\uff11", "1e0", "True"]
    assert len({text_id(form) for form in forms}) == len(forms)


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(UnicodeEncodeError):
        text_id("\ud800")
