"""Settings of a replay that cannot be are refused in one line."""

import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.training.trainer import OnlineTrainer


@pytest.mark.parametrize("table", [{"window": 9}, {"admission_filter": "probabilistic"}])
def test_a_filter_that_counts_nothing_is_refused(settings_of, features, table):
    with pytest.raises(InputError, match=r"has no effect, .* `admit` above 1"):
        OnlineTrainer(settings_of(table=table), features)
