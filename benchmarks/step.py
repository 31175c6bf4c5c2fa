"""A training step: what it takes, and what takes longer than it.

    vocabulary   by size of the vocabulary, for every update
    growing      with a growing table, compared with a fixed one
    diagnostics  with diagnostics, compared with none

`cowclip bench` compares models, updates, clips, batches and lists of ids.
"""

from harness import Suite
from step_ids import VOCABULARY
from steps import DIAGNOSTICS, GROWING

PARTS = {"vocabulary": VOCABULARY, "growing": GROWING, "diagnostics": DIAGNOSTICS}
SUITE = Suite(about=__doc__, script="step.py", parts=PARTS)

if __name__ == "__main__":
    SUITE.main()
