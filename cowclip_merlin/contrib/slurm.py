"""Read the addresses of the workers from the variables of Slurm's `srun`.

TensorFlow's `SlurmClusterResolver` is not used: it fails on machines without GPUs, and it sorts the
machines by name, so that the tasks of n2 and n10 get each other's addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from cowclip_merlin.errors import InputError
from cowclip_merlin.workers.environment import number_of_tasks

_FIRST_PORT, _PORTS, _PORTS_OF_A_JOB = 12_000, 20_000, 16
_RANGES = r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*"
_PART = re.compile(rf"([^,\[\]]+)(?:\[({_RANGES})\])?(?:,|$)")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def addresses_of_tasks(environment: Mapping[str, str]) -> tuple[int, list[str]]:
    """Return the number of this task, and "host:port" of every task.

    The ports follow from the number of the job, so that jobs on one machine differ.

    Args:
        environment: variables such as those of `os.environ`.

    Raises:
        InputError: if a variable is missing or damaged, or tasks are dealt out in turns.

    >>> step = {"SLURM_PROCID": "2", "SLURM_STEP_NODELIST": "n[2,10]", "SLURM_JOB_ID": "3",
    ...         "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_STEP_NUM_TASKS": "3"}
    >>> addresses_of_tasks(step)
    (2, ['n2:12048', 'n2:12049', 'n10:12048'])
    """
    tasks = number_of_tasks(environment)
    if not environment.get("SLURM_DISTRIBUTION", "block").startswith(("block", "pack")):
        raise InputError(
            f"Slurm deals out tasks by {environment['SLURM_DISTRIBUTION']}; start the workers with "
            "srun --distribution=block"
        )
    hosts = list(_hosts(_value(environment, "SLURM_STEP_NODELIST")))
    counts = list(_tasks_by_host(_value(environment, "SLURM_STEP_TASKS_PER_NODE")))
    if len(hosts) != len(counts) or sum(counts) != tasks:
        raise InputError(
            f"Slurm's variables disagree: {tasks} tasks, {len(hosts)} machines, and "
            f"{environment['SLURM_STEP_TASKS_PER_NODE']} tasks on them; start the workers by srun"
        )
    job = _number({"SLURM_JOB_ID": "0", **environment}, "SLURM_JOB_ID")
    first = _FIRST_PORT + job * _PORTS_OF_A_JOB % _PORTS
    addresses = [f"{host}:{first + i}" for host, n in zip(hosts, counts) for i in range(n)]
    return _number(environment, "SLURM_PROCID"), addresses


def _hosts(text: str) -> Iterator[str]:
    """Yield the hosts of a list such as `a,n[1-2,07]`, in its order."""
    place = 0
    while place < len(text):
        part = _PART.match(text, place)
        if part is None:
            raise InputError(
                f"SLURM_STEP_NODELIST is {text!r}; give names such as 'n[1-3]', with one range each"
            )
        place, prefix = part.end(), part[1]
        if part[2] is None:
            yield prefix
            continue
        for numbers in part[2].split(","):
            first, _, last = numbers.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{prefix}{number:0{len(first)}d}"


def _tasks_by_host(text: str) -> Iterator[int]:
    """Yield the tasks of each host, from a list such as `2(x3),1`."""
    for part in text.split(","):
        found = _TASKS.fullmatch(part)
        if found is None:
            raise InputError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}; expected such as '2(x3),1'")
        yield from [int(found[1])] * int(found[2] or 1)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = _value(environment, name)
    if not text.isdecimal():
        raise InputError(f"{name} is {text!r}, not a number; start the workers by srun")
    return int(text)


def _value(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise InputError(f"{name} is not set; start the workers by srun")
    return environment[name]
