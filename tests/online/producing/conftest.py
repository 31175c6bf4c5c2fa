import json

import pytest

from cowclip_merlin.online.logs.message_log import LogUnavailable


class FakeClock:
    """A clock that moves only when somebody waits."""

    def __init__(self, now=1000.0):
        self.time, self.waits = now, 0

    def now(self):
        return self.time

    def wait(self, seconds):
        assert seconds > 0
        self.time += seconds
        self.waits += 1


class MemoryLog:
    """Keeps what is appended, with the time on the clock; fails as often as told."""

    name = "memory"

    def __init__(self, clock=None, failures=0):
        self.clock, self.failures = clock or FakeClock(), failures
        self.values, self.sent, self.calls = [], [], 0

    def append(self, values):
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise LogUnavailable("memory: does not answer")
        self.values += values
        self.sent += [self.clock.now()] * len(values)
        return (len(self.values),)

    @property
    def objects(self):
        return [json.loads(value) for value in self.values]


@pytest.fixture
def features(features_file):
    return features_file()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def memory_log(clock):
    """Makes logs with the fixture's clock."""

    def make(failures=0):
        return MemoryLog(clock, failures)

    return make
