"""A worker: runs a command; one rank kills itself before a batch, or its disk gets full.

python stream_worker.py [--kill RANK BATCH] [--full RANK] WORD...
"""

import errno
import json
import os
import signal
import sys


def is_worker(rank):
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"] == rank


def kill_before(rank, batch):
    """Let this process kill itself before so many batches, if it is this worker."""
    if not is_worker(rank):
        return
    from cowclip_merlin.online.training.start_workers import join_workers

    join_workers(0)  # before TensorFlow starts in an import
    from cowclip_merlin.online.training.trainer import StepPipeline

    submit, calls = StepPipeline.submit, []

    def counted(self, *arguments):
        calls.append(0)
        if len(calls) == batch:
            os.kill(os.getpid(), signal.SIGKILL)
        submit(self, *arguments)

    StepPipeline.submit = counted


def fill_disk(rank):
    """Let this process fail to write all snapshots but the first, if it is this worker."""
    if not is_worker(rank):
        return
    from cowclip_merlin.tables import snapshot

    save = snapshot.save_snapshot

    def save_first(folder, number, *args, **kwargs):
        if number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return save(folder, number, *args, **kwargs)

    snapshot.save_snapshot = save_first


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[0] == "--kill":
        kill_before(int(words[1]), int(words[2]))
        words = words[3:]
    if words[0] == "--full":
        fill_disk(int(words[1]))
        words = words[2:]
    from cowclip_merlin.cli import main

    sys.exit(main(words))
