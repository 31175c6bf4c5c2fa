"""A training step: what it takes, and what takes longer than it.

    profile      time by operation
    vocabulary   by size of the vocabulary, for every update
    epoch        over a whole epoch, with what it postpones, and its AUC
    growing      with a growing table, compared with a fixed one
    loading      compared with the loaders
    diagnostics  with diagnostics, compared with none

`cowclip bench` compares models, updates, clips, batches and lists of ids.
"""

from harness import Suite

PARTS = {
    "profile": "step_profile:PROFILE",
    "vocabulary": "step_ids:VOCABULARY",
    "epoch": "step_ids:EPOCH",
    "growing": "steps:GROWING",
    "loading": "steps:LOADING",
    "diagnostics": "steps:DIAGNOSTICS",
}
SUITE = Suite(about=__doc__, script="step.py", parts=PARTS)

if __name__ == "__main__":
    SUITE.main()
