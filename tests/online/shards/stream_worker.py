"""A worker: runs a command; one rank kills itself before a batch.

python stream_worker.py [--kill RANK BATCH] WORD...
"""

import json
import os
import signal
import sys


def kill_before(rank, batch):
    """Let this process kill itself before so many batches, if it is this worker."""
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] != rank:
        return
    from cowclip_merlin.online.training.shards.worker import join

    join(0)  # before TensorFlow starts in an import
    from cowclip_merlin.online.training.steps.step_pipeline import StepPipeline

    submit, calls = StepPipeline.submit, []

    def counted(self, *arguments):
        calls.append(0)
        if len(calls) == batch:
            os.kill(os.getpid(), signal.SIGKILL)
        submit(self, *arguments)

    StepPipeline.submit = counted


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[0] == "--kill":
        kill_before(int(words[1]), int(words[2]))
        words = words[3:]
    from cowclip_merlin.cli import main

    sys.exit(main(words))
