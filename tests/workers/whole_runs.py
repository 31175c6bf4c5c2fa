"""In a worker: runs commands of `cowclip` one after the other, and writes how each ended.

A command is a dict: the `arguments`, and what differs in the last worker: `of_last`, further
arguments; `data_of_last`, its prepared folder; `versions` of packages; `signal`, which it sends
itself before its fifth call of the train function. Writes OUT/RANK.json: pairs of exit code and
errors.
"""

import contextlib
import io
import json
import os
from pathlib import Path

from cowclip_merlin import cli, workers
from cowclip_merlin.training import run_config, trainer

train_batch, versions = trainer.Trainer._train_batch, run_config.versions


def is_last():
    group = workers.current()
    return group is None or group.rank == group.size - 1


def train_function(number):
    """The trainer's, which first sends this process a signal at its fifth call."""
    calls = []

    def call(self, batch):
        calls.append(batch)
        if len(calls) == 5 and is_last():
            os.kill(os.getpid(), number)
        train_batch(self, batch)

    return call


def run(command):
    if "signal" in command:
        trainer.Trainer._train_batch = train_function(command["signal"])
    last = json.loads(os.environ.get("TF_CONFIG", "null"))
    last = last is None or last["task"]["index"] == len(last["cluster"]["worker"]) - 1
    changed = command.get("versions", {}) if last else {}
    run_config.versions = lambda: versions() | changed
    arguments = [*command["arguments"], *(command.get("of_last", []) if last else [])]
    if last and "data_of_last" in command:
        arguments[1] = command["data_of_last"]
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = cli.main(arguments)
    trainer.Trainer._train_batch, run_config.versions = train_batch, versions
    print(arguments, code, errors.getvalue(), flush=True)
    return code, errors.getvalue()


def main(out, commands):
    found = [run(command) for command in commands]
    group = workers.current()
    (Path(out) / f"{group.rank if group else 0}.json").write_text(json.dumps(found))
    return found[-1][0]
