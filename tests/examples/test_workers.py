"""The files that start workers by Slurm and Kubernetes, with programs that stand in for theirs."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from cowclip_merlin.cli import build_parser

pytestmark = pytest.mark.system

FOLDER = Path(__file__).parents[2] / "examples/workers"
SLURM = FOLDER / "slurm.sbatch"
LINES = SLURM.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def run(tmp_path):
    """Runs a bash script with stand-ins for programs; returns its exit code and their words."""
    words = tmp_path / "words"

    def start(script, programs, **variables):
        for name, body in programs.items():
            file = tmp_path / name
            file.write_text(f'#!/bin/bash\necho "$@" >> {words}\n{body}\n', encoding="utf-8")
            file.chmod(0o755)
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DATA": "/data", **variables}
        done = subprocess.run(["bash", *script], env=environment, capture_output=True, text=True)
        called = words.read_text(encoding="utf-8").splitlines() if words.exists() else []
        return done, called

    return start


def check_command(words):
    """The real parser takes the words after the program."""
    args = build_parser().parse_args(words[words.index("cowclip") + 1 :])
    assert args.command == "train" and args.data == "/data" and args.workers is None
    return args


def options(name):
    return [line.split("=", 1)[1] for line in LINES if line.startswith(f"#SBATCH --{name}=")]


def test_slurm_starts_one_task_for_each_gpu():
    assert int(options("ntasks-per-node")[0]) > 1 and options("gpus-per-task") == ["1"]
    assert int(options("nodes")[0]) > 1
    assert re.fullmatch(r"TERM@\d+", options("signal")[0]), "time for a checkpoint"


def test_slurm_names_the_variables_that_the_workers_read():
    assert {"SLURM_PROCID", "SLURM_STEP_NODELIST"} <= set(
        re.findall(r"SLURM_\w+", "\n".join(LINES))
    )


@pytest.mark.parametrize("code", [0, 2, 130, 143])
def test_slurm_ends_after_success_wrong_input_and_a_stop(run, tmp_path, code):
    done, called = run([str(SLURM)], {"srun": f"exit {code}"}, RUN=str(tmp_path / "run"))
    assert done.returncode == code and len(called) == 1, done.stderr
    assert not check_command(called[0].split()).resume


def test_slurm_resumes_after_a_lost_worker(run, tmp_path):
    made = tmp_path / "run/checkpoints"
    body = f"[ -d {made} ] && exit 0\nmkdir -p {made}/1; touch {made}/1/manifest.json\nexit 137"
    done, called = run([str(SLURM)], {"srun": body}, RUN=str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert [check_command(line.split()).resume for line in called] == [False, True]


def test_slurm_gives_up_after_three_attempts(run, tmp_path):
    done, called = run([str(SLURM)], {"srun": "exit 75"}, RUN=str(tmp_path / "run"))
    assert done.returncode == 75 and len(called) == 3


def test_slurm_asks_for_its_folders(run):
    done, called = run([str(SLURM)], {"srun": "exit 0"})
    assert done.returncode != 0 and "RUN: " in done.stderr and not called


def jobset():
    return yaml.safe_load((FOLDER / "jobset.yaml").read_text(encoding="utf-8"))


def job(found):
    (replicated,) = found["spec"]["replicatedJobs"]
    return replicated["name"], replicated["template"]["spec"]


def test_kubernetes_counts_agree():
    _, spec = job(jobset())
    (container,) = spec["template"]["spec"]["containers"]
    given = {each["name"]: each["value"] for each in container["env"]}
    assert spec["completions"] == spec["parallelism"] == int(given["WORKERS"])
    assert spec["completionMode"] == "Indexed", "it sets JOB_COMPLETION_INDEX"
    assert spec["backoffLimit"] == 0, "JobSet starts all pods again, not one of them"


def test_kubernetes_mounts_what_the_pods_share():
    _, spec = job(jobset())
    pod = spec["template"]["spec"]
    (mount,), (volume,) = pod["containers"][0]["volumeMounts"], pod["volumes"]
    assert mount["name"] == volume["name"]
    given = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
    assert all(given[name].startswith(mount["mountPath"] + "/") for name in ("DATA", "RUN"))


@pytest.mark.parametrize("index", [0, 3])
@pytest.mark.parametrize("resumes", [False, True])
def test_kubernetes_sets_tf_config(run, tmp_path, index, resumes):
    if resumes:
        (tmp_path / "run/checkpoints/3").mkdir(parents=True)
        (tmp_path / "run/checkpoints/3/manifest.json").touch()
    found = jobset()
    name, spec = job(found)
    (container,) = spec["template"]["spec"]["containers"]
    script = [*container["command"][1:], *container["args"]]
    programs = {"cowclip": 'echo "$TF_CONFIG"'}
    variables = {"WORKERS": "4", "JOB_COMPLETION_INDEX": str(index), "RUN": str(tmp_path / "run")}
    done, (words,) = run(script, programs, **variables)
    assert done.returncode == 0, done.stderr
    config = json.loads(done.stdout)
    assert config["task"] == {"type": "worker", "index": index}
    # The names that JobSet gives to pods: JOBSET-JOB-JOBINDEX-PODINDEX.SUBDOMAIN
    prefix, network = found["metadata"]["name"], found["spec"]["network"]
    port = container["ports"][0]["containerPort"]
    hosts = [f"{prefix}-{name}-0-{i}.{network['subdomain']}:{port}" for i in range(4)]
    assert config["cluster"] == {"worker": hosts} and network["enableDNSHostnames"]
    assert check_command(["cowclip", *words.split()]).resume is resumes
