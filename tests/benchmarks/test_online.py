"""The text of the benchmark of latencies."""


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
