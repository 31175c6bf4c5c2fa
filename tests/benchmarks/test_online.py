"""The verdicts of the benchmarks of online training on what they measured."""

import copy

import pytest

from cowclip_merlin.errors import InputError

ACCOUNTS = {"lost": 0, "due": 90, "trained": 99, "examples": 100, "repeated": 1}
FAILURES = {
    "kills": [{"killed": "redis", "after": 2.0, "back": 3.0, "difference": 0.0}],
    "offline_difference": 1e-7,
    "requests_compared": 10,
    "accounts": ACCOUNTS,
    "answered": 50,
    "unanswered": 0,
}


def test_failures_accept_only_a_good_end(load):
    module = load("online_failures")
    module.check(FAILURES)
    assert "0 of 90 impressions without an example" in module.text(FAILURES)
    for where, value, words in (
        (("kills", 0, "difference"), 1e-5, "the servers differ"),
        (("offline_difference",), 2e-6, "the servers differ"),
        (("accounts", "lost"), 1, "events were lost"),
        (("accounts", "trained"), 98, "events were lost or trained twice"),
        (("accounts", "trained"), 100, "events were lost or trained twice"),
        (("unanswered",), 3, "3 requests to the other server had no answer"),
    ):
        result = copy.deepcopy(FAILURES)
        inner = result
        for name in where[:-1]:
            inner = inner[name]
        inner[where[-1]] = value
        with pytest.raises(InputError, match=words):
            module.check(result)


def test_a_soak_test_fails_if_something_grows(load):
    module, growth = load("online_soak"), load("online_service.soak").growth

    def result_of(memory, disk, behind, unanswered):
        """Samples in which the trainer has this memory and the examples have these files."""
        samples = [
            {"megabytes": {"trainer": a}, "disk": {"examples": b}, "trained": 9, "behind": 0,
             "rows": 5}
            for a, b in zip(memory, disk, strict=True)
        ]  # fmt: skip
        samples[-1]["behind"] = behind
        requests = {"count": 7, "unanswered": unanswered, "p50": 0.001, "p99": 0.002}
        sizes = {"memory": growth(samples, "megabytes"), "files": growth(samples, "disk")}
        return {"rate": 2000.0, "samples": samples, "requests": requests} | sizes

    good = result_of([50, 100, 104, 120, 109], [9, 9, 9, 9, 70], 10_000, 0)
    module.check(good)
    assert "| trainer | 100 |" in module.text(good)
    for memory, disk, behind, unanswered, words in (
        (111, 9, 0, 0, "trainer: 100 MB became 111 MB"),
        (100, 90, 0, 0, "files, examples: 9 MB became 90 MB"),
        (100, 9, 10_001, 0, "10,001 events behind"),
        (100, 9, 0, 2, "2 requests had no answer"),
    ):
        grown = [50, 100, 104, 120, memory], [9, 9, 9, 9, disk]
        with pytest.raises(InputError, match=words):
            module.check(result_of(*grown, behind, unanswered))


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
