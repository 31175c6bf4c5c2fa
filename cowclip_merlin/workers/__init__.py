"""Several workers train one model: who they are, and how they exchange numbers.

>>> join() is None  # without TF_CONFIG, this process trains alone
True
"""

from cowclip_merlin.workers.group import Workers, current, join

__all__ = ["Workers", "current", "join"]
