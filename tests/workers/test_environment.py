"""Who trains together, as TF_CONFIG and Slurm say it; wrong ones give one clear line."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowclip_merlin.errors import InputError
from cowclip_merlin.workers import Workers
from cowclip_merlin.workers.environment import Cluster, cluster_of

TWO = ["a:1", "b:2"]


def config(job, index, **jobs):
    return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": {"type": job, "index": index}})}


def step(rank, nodes, tasks, count, **more):
    return {
        "SLURM_STEP_NUM_TASKS": str(count),
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        **more,
    }


def refused(environment):
    with pytest.raises(InputError) as caught:
        cluster_of(environment)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    return str(caught.value)


def test_tf_config():
    """A chief is the first; an index may be text, as some launchers write it."""
    for index in range(2):
        assert cluster_of(config("worker", index, worker=TWO)) == Cluster(index, ("a:1", "b:2"))
    jobs = {"worker": ["b:2", "c:3"], "chief": ["a:1"]}
    everyone = ("a:1", "b:2", "c:3")
    assert cluster_of(config("chief", 0, **jobs)) == Cluster(0, everyone)
    assert cluster_of(config("worker", 1, **jobs)) == Cluster(2, everyone)
    assert cluster_of(config("worker", "1", worker=TWO)) == Cluster(1, ("a:1", "b:2"))


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TF_CONFIG": ""},
        config("worker", 0, worker=["a:1"]),
        config("chief", 0, chief=["a:1"]),
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"},  # sbatch, without srun
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
    ],
)
def test_one_process(environment):
    assert cluster_of(environment) is None


@pytest.mark.parametrize(
    "text",
    ["x", "[]", "{}", '{"cluster": {}}', '{"cluster": {"worker": ["a:1"]}, "task": {"index": 0}}',
     '{"cluster": [], "task": {"type": "worker", "index": 0}}',
     '{"cluster": {"worker": 3}, "task": {"type": "worker", "index": 0}}',
     '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": null}}',
     '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": "x"}}',
     '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1e999}}',
     100_000 * "["],
)  # fmt: skip
def test_damaged_configs(text):
    assert refused({"TF_CONFIG": text}).startswith("TF_CONFIG is damaged (")


def test_tasks_that_do_not_train():
    assert "'evaluator'" in refused(config("evaluator", 0, worker=TWO, evaluator=["e:1"]))
    assert "'ps'" in refused(config("worker", 0, worker=TWO, ps=["p:1"]))
    assert "'ps'" in refused(config("ps", 0, worker=TWO, ps=["p:1"]))
    both = config("worker", 1, worker=TWO, evaluator=["e:1"])
    assert cluster_of(both) == Cluster(1, ("a:1", "b:2"))  # the evaluator is no worker


def test_wrong_indices_and_addresses():
    for index in (-1, 2):
        assert f"no worker with index {index}" in refused(config("worker", index, worker=TWO))
    assert "no chief with index 0" in refused(config("chief", 0, worker=TWO))
    assert "twice: a:1, a:1" in refused(config("worker", 0, worker=["a:1", "a:1"]))


def test_slurm():
    """Names of machines keep their zeros."""
    environment = step(3, "n[2,10],m5", "2,1(x2)", 4, SLURM_JOB_ID="5")
    expected = ("n2:12080", "n2:12081", "n10:12080", "m5:12080")
    assert cluster_of(environment) == Cluster(3, expected)
    assert cluster_of(config("worker", 0, worker=TWO) | environment).addresses == ("a:1", "b:2")
    found = cluster_of(step(0, "gpu-[008-011]", "1(x4)", 4))
    hosts = [address.partition(":")[0] for address in found.addresses]
    assert hosts == ["gpu-008", "gpu-009", "gpu-010", "gpu-011"]


@given(st.integers(0, 2**32))
def test_ports_of_slurm(job):
    found = cluster_of(step(0, "n1", "8", 8, SLURM_JOB_ID=str(job)))
    ports = [int(address.partition(":")[2]) for address in found.addresses]
    assert ports == list(range(ports[0], ports[0] + 8)) and 12000 <= ports[0] < 32000


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"SLURM_STEP_NUM_TASKS": "two"}, "SLURM_STEP_NUM_TASKS is 'two'"),
        ({"SLURM_PROCID": ""}, "SLURM_PROCID is not set"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'"),
        ({"SLURM_PROCID": "3"}, "no worker with index 3"),
        ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is not set"),
        ({"SLURM_STEP_NODELIST": "n[1-"}, "SLURM_STEP_NODELIST is 'n[1-'"),
        ({"SLURM_STEP_NODELIST": "n[-1]"}, "SLURM_STEP_NODELIST is 'n[-1]'"),
        ({"SLURM_STEP_NODELIST": "n1"}, "3 tasks, 1 machines"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2,2"}, "3 tasks, 2 machines, and 2,2"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2;1"}, "SLURM_STEP_TASKS_PER_NODE is '2;1'"),
        ({"SLURM_DISTRIBUTION": "cyclic"}, "--distribution=block"),
    ],
)
def test_damaged_variables_of_slurm(changed, named):
    assert named in refused(step(1, "n[1-2]", "2,1", 3) | changed)


@given(st.integers(0, 10_000), st.integers(1, 9))
def test_parts_of_a_batch(rows, size):
    parts = [Workers(rank, ("x:1",) * size).part_of(rows) for rank in range(size)]
    assert parts[0][0] == 0 and parts[-1][1] == rows
    assert all(one[1] == other[0] for one, other in pairwise(parts))
    assert max(end - first for first, end in parts) - min(end - first for first, end in parts) <= 1
