"""One worker process of an online training; see `cowclip_merlin.launcher.worker`."""

from __future__ import annotations

import os
import sys

from cowclip_merlin import workers
from cowclip_merlin.launcher.call import VARIABLE
from cowclip_merlin.launcher.worker import exit_code_of
from cowclip_merlin.online.training.shards.call import StreamCall
from cowclip_merlin.training.run import set_up_tensorflow


def main() -> int:
    """Train, and return the exit code; errors of the input are one line on standard error."""
    call = StreamCall.from_json(os.environ[VARIABLE])

    def work() -> None:
        join(call.settings["run"]["seed"])
        call.train()

    return exit_code_of(work, call.out)


def join(seed: int) -> workers.Workers | None:
    """Join the workers that `TF_CONFIG` or `srun` names; before TensorFlow starts in an import.

    Args:
        seed: of TensorFlow.
    """
    set_up_tensorflow(seed, "cpu")
    return workers.join()


if __name__ == "__main__":
    sys.exit(main())
