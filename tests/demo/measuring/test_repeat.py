import time

from cowclip_merlin.demo.measuring import repeat
from cowclip_merlin.demo.measuring.repeat import Repeat
from cowclip_merlin.online.logs.message_log import LogUnavailable


class Steps(Repeat):
    def __init__(self, errors):
        super().__init__("steps", every=0.001)
        self.errors, self.done = list(errors), 0

    def step(self):
        if self.errors:
            raise self.errors.pop(0)
        self.done += 1


def wait_for(condition):
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_a_log_that_does_not_answer_is_asked_again(monkeypatch):
    monkeypatch.setattr(repeat, "_RETRY", 0.001)
    steps = Steps([LogUnavailable("away")] * 3)
    steps.start()
    wait_for(lambda: steps.done > 2)
    steps.stop()
    assert steps.unavailable == 3 and steps.failure is None and steps.is_ending
    done = steps.done
    time.sleep(0.01)
    assert steps.done == done


def test_another_error_ends_the_thread_and_is_remembered():
    steps = Steps([ValueError("no number")])
    steps.start()
    wait_for(lambda: steps.failure)
    assert "ValueError: no number" in steps.failure and steps.done == 0
    steps.stop()
