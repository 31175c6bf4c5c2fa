"""The rates with which the negatives of a log were sampled, as offsets of the log odds.

If negatives are kept with probability q and positives always, the odds of the kept events are the
true odds divided by q. A model with the logit z of the true odds is therefore trained on
`sigmoid(z - log q)`, and it serves `sigmoid(z)`. Positives need the correction, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cowclip_merlin.online.events.events import Damage
from cowclip_merlin.types import Json

SAMPLE_RATE = "cowclip_sample_rate"
"""Column of an event: the probability q in (0, 1] with which negatives like it were kept."""


def sample_rate_offsets(rates: Sequence[Json], damage: Damage) -> npt.NDArray[np.float32] | None:
    """Return log q of each event, float32 [n]; None if all negatives were kept.

    Args:
        rates: values of the column `SAMPLE_RATE`; None is 1.
        damage: takes what is wrong.

    >>> sample_rate_offsets([1, None, 0.5], Damage()).tolist()
    [0.0, 0.0, -0.6931471824645996]
    """
    if all(rate is None or rate == 1 for rate in rates):
        return None
    checked = np.array([_rate(rate) for rate in rates])
    damage.add(
        np.isnan(checked),
        lambda i: f"{SAMPLE_RATE} is {rates[i]!r:.60}; give a number above 0 and at most 1",
    )
    return np.log(np.nan_to_num(checked, nan=1.0)).astype(np.float32)


def _rate(value: Json) -> float:
    """A rate as a number; NaN if it is not one."""
    if value is None:
        return 1.0
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value <= 1 else np.nan
