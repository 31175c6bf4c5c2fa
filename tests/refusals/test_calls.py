"""Wrong arguments in Python end in an error of one line."""

from functools import partial

import pytest
from calls import CALLS

from cowclip_merlin.errors import InputError

CASES = [
    pytest.param(call, arguments, words, id=f"{name.__name__}: {words}")
    for call, cases in CALLS.items()
    for name in [call.func if isinstance(call, partial) else call]
    for arguments, words in cases
]


@pytest.mark.parametrize(("call", "arguments", "words"), CASES)
def test_one_line(call, arguments, words):
    with pytest.raises(InputError, match=words) as error:
        call(**arguments)
    assert "\n" not in str(error.value)
