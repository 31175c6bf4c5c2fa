"""The tiers of the tests: which ones there are, and what a test of each may do.

A test without a mark of `TIERS` is a unit test. `make test` runs all but `system`, `thorough` and
`gpu`, and what is marked `quick` among them; `make test-rest` runs the others. Of a test marked
`one_case`, the first case stays, and the other ones become `thorough`.
"""

import _posixsubprocess
import multiprocessing.util  # noqa: F401, imports what is replaced below
import sys

import hypothesis
import pytest

TIERS = ("unit", "runs", "system", "gpu")
STARTS = frozenset(
    ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn",
     "os.exec")
)  # fmt: skip
HINT = "a test that starts a process needs the mark `system`: pytestmark = pytest.mark.system"


def thorough(*values):
    """Parameters of a case that `make test` leaves to `make test-all`."""
    return pytest.param(*values, marks=pytest.mark.thorough)


class StartedAProcess(BaseException):
    """Not an Exception: the code under test must not take it for a program that is missing."""


class Tiers:
    """A plugin of pytest: marks unit tests, and fails other tests that start a process."""

    def __init__(self):
        self._item = None  # the running test, if it may not start a process
        sys.addaudithook(self._audit)
        self._fork_exec = _posixsubprocess.fork_exec
        _posixsubprocess.fork_exec = self._start_for_multiprocessing  # it has no audit event

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        begun = set()
        for item in items:
            test = (item.path, getattr(item, "originalname", item.name))
            if item.get_closest_marker("one_case") and test in begun:
                item.add_marker("thorough")
            begun.add(test)
            if not any(item.get_closest_marker(tier) for tier in TIERS):
                item.add_marker("unit")
            _scale_examples(item)
        _begin_with_processes(items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        may = item.get_closest_marker("system") or item.get_closest_marker("gpu")
        self._item = None if may else item
        try:
            return (yield)
        finally:
            self._item = None

    def _audit(self, event, arguments):
        if event in STARTS:
            self._check(event, arguments)

    def _start_for_multiprocessing(self, arguments, *others):
        self._check("multiprocessing", arguments)
        return self._fork_exec(arguments, *others)

    def _check(self, event, arguments):
        if self._item is not None and not _is_importing():
            raise StartedAProcess(f"{self._item.nodeid}: {event} {arguments!r:.300}: {HINT}")


def _begin_with_processes(items):
    """Put files first that start processes: their tests take longest, and none is left at the end.

    Else the last of them would run alone, while the other workers of a test run have nothing to do.
    """
    files = {item.path for item in items if item.get_closest_marker("system")}
    items.sort(key=lambda item: item.path not in files)


def _is_importing():
    """Whether a module is being imported: libraries look at the machine then, once a process."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _scale_examples(item):
    """Make a test's own number of examples as much smaller as the profile's is than 100."""
    function = getattr(item, "obj", None)
    function = getattr(function, "__func__", function)
    given = getattr(function, "_hypothesis_internal_use_settings", None)
    share = hypothesis.settings.default.max_examples / 100
    if given is not None and share < 1 and given is not hypothesis.settings.default:
        few = max(3, round(given.max_examples * share))
        scaled = hypothesis.settings(given, max_examples=min(few, given.max_examples))
        function._hypothesis_internal_use_settings = scaled
