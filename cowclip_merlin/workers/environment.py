"""Read which workers train together from `TF_CONFIG` or the variables of `srun`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from cowclip_merlin.choices import contributed
from cowclip_merlin.errors import MALFORMED, InputError


def number_of_tasks(environment: Mapping[str, str]) -> int:
    """Return the number of tasks of this step of Slurm; 1 outside of `srun`."""
    text = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if not text.isdecimal():
        raise InputError(
            f"SLURM_STEP_NUM_TASKS is {text!r}, not a number; start the workers by srun"
        )
    return int(text)


@dataclass(frozen=True)
class Cluster:
    """The workers of one training.

    Attributes:
        rank: number of this process.
        addresses: "host:port" of every worker, by rank.
    """

    rank: int
    addresses: tuple[str, ...]


def cluster_of(environment: Mapping[str, str]) -> Cluster | None:
    """Return the cluster that `TF_CONFIG` or Slurm describes; None for one process.

    A `chief` has rank 0, and the workers follow it.

    Args:
        environment: variables such as those of `os.environ`.

    Raises:
        InputError: if `TF_CONFIG` or a variable of Slurm is damaged, or names parameter servers.

    >>> config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    >>> cluster_of({"TF_CONFIG": config})
    Cluster(rank=1, addresses=('a:1', 'b:1'))
    """
    if environment.get("TF_CONFIG"):
        found = _of_tf_config(environment["TF_CONFIG"])
    elif number_of_tasks(environment) > 1:
        rank, addresses = contributed("addresses_of_tasks")(environment)
        found = _of_jobs({"worker": addresses}, "worker", rank, "Slurm")
    else:
        return None
    return found if len(found.addresses) > 1 else None


def _of_tf_config(text: str) -> Cluster:
    try:
        config = json.loads(text)
        jobs = {str(name): list(addresses) for name, addresses in config["cluster"].items()}
        job, index = str(config["task"]["type"]), int(config["task"]["index"])
    except MALFORMED as error:
        raise InputError(
            f"TF_CONFIG is damaged ({type(error).__name__}: {error}): give "
            '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}'
        ) from error
    return _of_jobs(jobs, job, index, "TF_CONFIG")


def _of_jobs(jobs: Mapping[str, list[str]], job: str, index: int, source: str) -> Cluster:
    unknown = set(jobs) - {"chief", "worker", "evaluator"}
    if unknown or job not in ("chief", "worker"):
        named = min(unknown) if unknown else job
        raise InputError(
            f"{source} has a task {named!r}; CowClip needs workers only, which update their tables "
            "together: start it with chief and worker tasks"
        )
    addresses = [str(x) for name in ("chief", "worker") for x in jobs.get(name, ())]
    rank = index + (len(jobs.get("chief", ())) if job == "worker" else 0)
    if not 0 <= index < len(jobs.get(job, ())):
        raise InputError(f"{source} has no {job} with index {index}; check its list of workers")
    if len(set(addresses)) < len(addresses):
        raise InputError(f"{source} names an address twice: {', '.join(addresses)}")
    return Cluster(rank, tuple(addresses))
