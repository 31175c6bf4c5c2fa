"""What one and two workers train with growing tables."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parents[1] / "workers")]


@pytest.fixture(scope="session")
def by_workers(make_once):
    """`by_workers(n)`: folder of what n processes of `shard_steps.py` have written.

    One process is this one: to start another one takes seconds.
    """
    import shard_steps
    from processes import run_script

    from cowclip_merlin.training.run import set_up_tensorflow

    def get(workers):
        def make(folder):
            if workers == 1:
                set_up_tensorflow(7, "cpu")
                shard_steps.main(folder)
            else:
                run_script(FOLDER / "shard_steps.py", folder, workers=workers, timeout=400)

        return make_once(f"growing_by_{workers}", make)

    return get
