"""A training step: what it takes, and what takes longer than it.

    python benchmarks/step.py profile      time by operation
    python benchmarks/step.py vocabulary   by size of the vocabulary, for every update
    python benchmarks/step.py epoch        over a whole epoch, with what it postpones, and its AUC
    python benchmarks/step.py growing      with a growing table, compared with a fixed one
    python benchmarks/step.py loading      compared with the loaders
    python benchmarks/step.py diagnostics  with diagnostics, compared with none
    python benchmarks/step.py lists        on lists of ids, compared with one id per column

`cowclip bench` compares models, updates, clips and batches.
"""

from harness.suite import Suite

SUITE = Suite(
    about=__doc__,
    parts={
        "profile": "step_parts.profile",
        "vocabulary": "step_parts.vocabulary",
        "epoch": "step_parts.epoch",
        "growing": "step_parts.growing_step",
        "loading": "step_parts.loading",
        "diagnostics": "step_parts.diagnostics",
        "lists": "step_parts.lists",
    },
)

if __name__ == "__main__":
    SUITE.main()
