"""What the benchmarks of online training accept and refuse, and how they choose requests."""

import copy
import json

import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.file_log import FileLog
from cowclip_merlin.workflows.online.features import CategoricalColumn, LogFeatures

ACCOUNTS = {"lost": 0, "due": 90, "trained": 99, "examples": 100, "repeated": 1}
FAILURES = {
    "kills": [{"killed": "redis", "after": 2.0, "back": 3.0, "difference": 0.0}],
    "offline_difference": 1e-7,
    "requests_compared": 10,
    "accounts": ACCOUNTS,
    "answered": 50,
    "unanswered": 0,
}


def test_a_good_end_is_accepted(load):
    module = load("online_failures")
    module.check(FAILURES)
    assert "0 of 90 impressions without an example" in module.text(FAILURES)


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (("kills", 0, "difference"), 1e-5, "the servers differ"),
        (("offline_difference",), 2e-6, "the servers differ"),
        (("accounts", "lost"), 1, "events were lost"),
        (("accounts", "trained"), 98, "events were lost or trained twice"),
        (("accounts", "trained"), 100, "events were lost or trained twice"),
        (("unanswered",), 3, "3 requests to the other server had no answer"),
    ],
)
def test_a_bad_end_is_an_error(load, where, value, words):
    result = copy.deepcopy(FAILURES)
    inner = result
    for name in where[:-1]:
        inner = inner[name]
    inner[where[-1]] = value
    with pytest.raises(InputError, match=words):
        load("online_failures").check(result)


def samples_of(memory, disk):
    """Samples of a soak test in which the trainer has this memory and the examples these files."""
    return [
        {"megabytes": {"trainer": a}, "disk": {"examples": b}, "trained": 9, "behind": 0, "rows": 5}
        for a, b in zip(memory, disk, strict=True)
    ]


@pytest.mark.parametrize(
    ("memory", "disk", "behind", "words"),
    [
        ([50, 100, 104, 120, 104], [9, 9, 9, 9, 70], 10_000, None),
        ([50, 100, 104, 120, 109], [9, 9, 9, 9, 70], 10_000, None),
        ([50, 100, 104, 120, 111], [9, 9, 9, 9, 9], 0, "trainer: 100 MB became 111 MB"),
        ([50, 1000, 1040, 1200, 1060], [9, 9, 9, 9, 9], 0, "trainer: 1000 MB became 1060 MB"),
        ([50, 100, 104, 120, 100], [9, 9, 9, 9, 90], 0, "files, examples: 9 MB became 90 MB"),
        ([50, 100, 104, 120, 100], [9, 9, 9, 9, 9], 10_001, "10,001 events behind"),
    ],
)
def test_a_soak_test_fails_if_something_grows(load, memory, disk, behind, words):
    module, samples = load("online_soak"), samples_of(memory, disk)
    samples[-1]["behind"] = behind
    growth = load("online_service.soak").growth
    requests = {"count": 7, "unanswered": 0, "p50": 0.001, "p99": 0.002}
    result = {
        "rate": 2000.0,
        "samples": samples,
        "memory": growth(samples, "megabytes"),
        "files": growth(samples, "disk"),
        "requests": requests,
    }
    assert f"| trainer | {memory[1]} |" in module.text(result)
    if words is None:
        module.check(result)
        result["requests"]["unanswered"], words = 2, "2 requests had no answer"
    with pytest.raises(InputError, match=words):
        module.check(result)


def test_random_requests(load, tmp_path):
    columns = (CategoricalColumn(name="user"), CategoricalColumn(name="item"))
    features = LogFeatures(label="click", time="time", categorical=columns)
    log = FileLog(tmp_path)
    log.append([json.dumps({"user": i, "item": "a", "time": 5}).encode() for i in range(50)])
    choose = load("online_service.offline").requests_from
    rows = choose(log, features, 40, seed=3)
    assert rows == choose(log, features, 40, seed=3) != choose(log, features, 40, seed=4)
    assert all(row.keys() == {"user", "item"} for row in rows)
    unknown = [any(str(x).startswith("unknown") for x in row.values()) for row in rows]
    assert unknown == [i % 10 == 0 for i in range(40)]


def test_the_text_of_latencies_says_whether_the_goal_is_met(load):
    module = load("online")
    seconds = {name: {"p50": 0.1, "p95": 0.2} for name in ("join", "train", "push", "apply")}

    def line(p95):
        total = {"total": {"p50": 0.3, "p95": p95}}
        each = {
            "sync_every": 0.2,
            "latency": {"probes": 9, "seconds": seconds | total},
            "requests": {"p50": 0.001, "p99": 0.02},
        }
        return module.text({"results": [each]}).splitlines()[-1]

    assert "| 0.70 | yes |" in line(0.7) and "| 0.71 | no |" in line(0.71)


@pytest.mark.parametrize(
    "options", [["--seconds", "5"], ["--cores", "0"], ["--rate", "0"], ["--sync-every", "0"]]
)
def test_wrong_options(load, options, capsys):
    with pytest.raises(SystemExit) as stopped:
        load("online").BENCHMARK.main(options)
    assert stopped.value.code == 2 and options[0] in capsys.readouterr().err
