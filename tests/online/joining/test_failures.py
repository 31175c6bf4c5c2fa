"""Killed anywhere, the join writes each example once."""

import json
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import merged
import pytest
from fake_kafka import Broker
from joining import (
    FEATURES,
    SETTINGS,
    ListLog,
    click,
    examples_of,
    impression,
    logs_of,
    open_joiner,
    run_to_end,
    stream,
)

from cowclip_merlin.errors import InputError
from cowclip_merlin.online import FileLog, open_log
from cowclip_merlin.online.joining import loop
from cowclip_merlin.online.joining.settings import JoinSettings
from cowclip_merlin.online.joining.state import JoinState
from cowclip_merlin.online.logs import message_log
from cowclip_merlin.online.logs.damaged_messages import DamagedMessages
from cowclip_merlin.online.logs.message_log import LogRefused, LogUnavailable
from cowclip_merlin.online.training.repeats import RepeatFilter
from cowclip_merlin.online.training.steps import EventReader

STATEMENTS = ("add_impressions", "add_clicks", "set_status", "end_windows", "forget_impressions",
              "forget_clicks", "save_progress")  # fmt: skip


class Killed(BaseException):
    """The end of the process."""


class Killer:
    """Ends the process at call number `at`."""

    def __init__(self, at):
        self.at, self.calls, self.killed = at, 0, None

    def __call__(self, name="append"):
        self.calls += 1
        if self.calls == self.at:
            self.killed = name
            raise Killed

    def before(self, method):
        def call(*args):
            self(method.__name__)
            return method(*args)

        return call


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(loop, "READ_AT_ONCE", 13)
    monkeypatch.setattr("cowclip_merlin.online.joining.joiner.CLOSED_AT_ONCE", 5)


def damaged_logs(impressions, clicks):
    """Logs with a damaged message after every tenth."""
    logs = logs_of(impressions, clicks)
    for log in logs[:2]:
        log.values = [v for i, x in enumerate(log.values) for v in ([x, b"{"] if i % 10 else [x])]
    return logs


def damaged_of(folder):
    return [(folder / f"damaged-{name}").read_bytes() for name in ("impressions", "actions")]


def patched(killer):
    """Put a killer before each change of the state, and before damaged messages are written.

    `save_progress` is the last before a commit.
    """
    patch = pytest.MonkeyPatch()
    patch.setattr(DamagedMessages, "add", killer.before(DamagedMessages.add))
    for name in STATEMENTS:
        patch.setattr(JoinState, name, killer.before(getattr(JoinState, name)))
    return patch


@pytest.mark.thorough
def test_killed_at_every_call_of_the_store_and_of_the_log(tmp_path, small_batches):
    """The process ends once at each of its calls in turn, and a new one goes on."""
    impressions, clicks = stream(1, 12, SETTINGS)
    whole = damaged_logs(impressions, clicks)
    (tmp_path / "whole").mkdir()
    expected_counts = run_to_end(whole, SETTINGS, tmp_path / "whole")
    damaged = damaged_of(tmp_path / "whole")
    assert all(damaged)
    at, survived, killed = 0, False, []
    while not survived:
        at += 1
        folder = tmp_path / str(at)
        folder.mkdir()
        logs, killer = damaged_logs(impressions, clicks), Killer(at)
        logs[2].before_append = logs[2].after_append = killer
        patch = patched(killer)
        try:
            run_to_end(logs, SETTINGS, folder)
            survived = True
        except Killed:
            pass
        finally:
            patch.undo()
        killed.append(killer.killed)
        counts = run_to_end(logs, SETTINGS, folder)
        assert logs[2].values == whole[2].values, at
        assert counts == expected_counts, at
        assert damaged_of(folder) == damaged, at
    assert {*killed} == {*STATEMENTS, "add", "append", None} and len(killed) > 40
    assert examples_of(whole[2]) == merged.join(impressions, clicks, SETTINGS)[0]


def test_partitions_killed_again_and_again(tmp_path, small_batches, monkeypatch):
    """As a join of two logs that have the messages in the order in which they were joined."""
    kinds, draw, kills = ("impressions", "actions"), random.Random(4), 0
    broker = Broker().install(monkeypatch)
    parts = {kind: broker.make(kind, 3) for kind in kinds}
    for kind, source in zip(kinds, logs_of(*stream(2, 500, SETTINGS))):
        for number, value in enumerate(source.values):
            draw.choices(parts[kind], [1, 2, 5])[0].add(value)
            if number % 10 == 0:
                draw.choice(parts[kind]).add(b"%d" % number)  # damaged
    examples, next_of = ListLog(name="examples"), {kind: {} for kind in kinds}

    def opened():
        return [watched(open_log(f"kafka://h/{k}", several=True), next_of[k]) for k in kinds]

    def watched(log, known):
        """Notes what follows each place; what was read and not joined is read again."""
        read = log.read

        def note(position, most, wait=0.0):
            found = read(position, most, wait)
            known.update(zip([position, *(m.after for m in found)], found, strict=False))
            return found

        log.read = note
        return log

    for _ in range(1000):
        killer = Killer(draw.randrange(1, 35))
        examples.before_append = examples.after_append = killer
        patch = patched(killer)
        try:
            counts = run_to_end((*opened(), examples), SETTINGS, tmp_path)
            break
        except Killed:
            kills += 1
        finally:
            patch.undo()
    assert kills > 30
    merged_order, wrong = [], {}
    for kind in kinds:
        messages, place = [], (0,)
        while place in next_of[kind]:
            messages.append(json.loads(next_of[kind][place].value))
            place = next_of[kind][place].after
        wrong[kind] = [each for each in messages if type(each) is int]
        messages = [each for each in messages if type(each) is dict]
        values = [value for part in parts[kind] for _, value, _ in part.messages]
        assert len(messages) + len(wrong[kind]) == len(values) and len(wrong[kind]) > 20
        assert sorted(m["request"] for m in messages) == sorted(
            row["request"] for row in map(json.loads, values) if type(row) is dict
        )
        lines = (tmp_path / f"damaged-{kind}").read_text().splitlines()
        assert [int(json.loads(line)["text"]) for line in lines] == wrong[kind]
        merged_order.append([(message["request"], message["time"]) for message in messages])
    expected, expected_counts = merged.join(*merged_order, SETTINGS)
    assert examples_of(examples) == expected
    for kind, name in zip(kinds, ("impressions", "clicks")):
        expected_counts[name] += len(wrong[kind])
        expected_counts[f"damaged_{name}"] = len(wrong[kind])
    assert counts == expected_counts


SCRIPT = """
import logging, sys
sys.path.insert(0, sys.argv[1])
from joining import SETTINGS, run_to_end
from cowclip_merlin.online.joining import loop
from cowclip_merlin.online import FileLog, open_log
from pathlib import Path

loop.READ_AT_ONCE = 40
folder = Path(sys.argv[2])
logs = [FileLog(folder / name) for name in ("impressions", "actions", "examples")]
print("started", flush=True)
run_to_end(logs, SETTINGS, folder)
print("done", flush=True)
"""


@pytest.mark.quick
@pytest.mark.system
def test_killed_by_the_system_at_random_moments(tmp_path):
    """A real process and SIGKILL, between its start and its end."""
    impressions, clicks = stream(4, 4000, SETTINGS)
    FileLog(tmp_path / "impressions").append([impression(*each) for each in impressions])
    FileLog(tmp_path / "actions").append([click(*each) for each in clicks])
    examples, draw = FileLog(tmp_path / "examples"), random.Random(5)
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(tmp_path)]
    kills, ended = 0, False
    while not ended:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "started\n"
        target = examples.end()[0] + draw.randrange(1, 1000)
        while process.poll() is None and (kills == 3 or examples.end()[0] < target):
            time.sleep(0.002)
        ended = process.poll() == 0
        if not ended:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        process.stdout.close()
    assert kills >= 2
    values = [message.value for message in examples.read(examples.start(), 10**6)]
    assert examples_of(ListLog(values)) == merged.join(impressions, clicks, SETTINGS)[0]


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_log_that_is_away_gets_each_example_once(tmp_path, monkeypatch, lost, caplog):
    """An append fails, and its messages may be in the log or not."""
    monkeypatch.setattr(message_log, "LONGEST_PAUSE", 0.0)
    impressions, clicks = stream(8, 60, SETTINGS)
    logs, draw = logs_of(impressions, clicks), random.Random(9)

    def away():
        if draw.random() < 0.5:
            raise LogUnavailable("examples: does not answer")

    setattr(logs[2], f"{lost}_append", away)
    monkeypatch.setattr(loop, "READ_AT_ONCE", 7)
    run_to_end(logs, SETTINGS, tmp_path)
    assert examples_of(logs[2]) == merged.join(impressions, clicks, SETTINGS)[0]
    assert "does not answer; trying again" in caplog.text


def test_a_log_that_refuses_ends_the_join(tmp_path):
    def refuse():
        raise LogRefused("examples: wrong password")

    logs = logs_of(*stream(8, 60, SETTINGS))
    logs[2].before_append = refuse
    with pytest.raises(LogRefused):
        run_to_end(logs, SETTINGS, tmp_path)


def test_refuses_an_examples_log_that_was_replaced(tmp_path):
    logs = logs_of(*stream(3, 100, SETTINGS))
    run_to_end(logs, SETTINGS, tmp_path)
    logs[2].values.clear()
    with pytest.raises(InputError, match=r"ends at message 0, .* \d"):
        open_joiner(logs, SETTINGS, tmp_path)


def test_refuses_a_state_of_other_settings_or_logs(tmp_path):
    logs = logs_of([("a", 100)], [])
    run_to_end(logs, SETTINGS, tmp_path)
    other = JoinSettings(window=31, late=20, lateness=8)
    with pytest.raises(InputError, match="made with window 30, not 31"):
        open_joiner(logs, other, tmp_path)
    logs[0].name = "elsewhere"
    with pytest.raises(InputError, match="impressions 'folder impressions', not"):
        open_joiner(logs, SETTINGS, tmp_path)


def test_refuses_a_state_that_another_process_has(tmp_path):
    logs = logs_of([], [])
    _, store = open_joiner(logs, SETTINGS, tmp_path)
    with pytest.raises(InputError, match=r"state: .*locked.*another `state`"):
        open_joiner(logs, SETTINGS, tmp_path)
    store.close()


def test_refuses_the_database_of_another_program(tmp_path):
    with sqlite3.connect(tmp_path / "state") as database:
        database.execute("CREATE TABLE other (x)")
    with pytest.raises(InputError, match="is not the state"):
        open_joiner(logs_of([], []), SETTINGS, tmp_path)


def test_a_full_disk_is_one_line_and_the_state_stays(tmp_path):
    """At the end of a transaction, as the limit of `ulimit -f` stops the file."""
    store = JoinState(tmp_path / "state", SETTINGS)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        words = r"state: disk I/O error"
        with pytest.raises(InputError, match=words), store.transaction():
            store.add_impressions([(f"r{i}", 1, b"x" * 1000) for i in range(200)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.sizes() == (0, 0)
    with store.transaction():
        store.add_impressions([("key", 1, b"x")])
    store.close()


class LateLog(ListLog):
    """A broker that answers too late: an append that timed out arrives before the next one."""

    def __init__(self):
        super().__init__(name="examples")
        self.late, self.calls = [], 0

    def append(self, values):
        self.calls += 1
        if self.calls % 2:
            self.late += values
            raise LogUnavailable("kafka://h/examples: timed out")
        late, self.late = self.late, []
        return super().append([*late, *values])


def test_examples_that_arrive_twice_after_a_time_out_are_trained_once(tmp_path, monkeypatch):
    monkeypatch.setattr(message_log, "FIRST_PAUSE", 0.0)
    impressions, clicks = stream(4, 60, SETTINGS)
    whole, logs = logs_of(impressions, clicks), (*logs_of(impressions, clicks)[:2], LateLog())
    for name, each in (("whole", whole), ("late", logs)):
        (tmp_path / name).mkdir()
        run_to_end(each, SETTINGS, tmp_path / name)
    wanted, log = examples_of(whole[2]), logs[2]
    assert len(log.values) > len(wanted) == len(set(wanted)) and set(examples_of(log)) == {*wanted}
    damaged = DamagedMessages(None)
    reader = EventReader(log, FEATURES, (0,), damaged=damaged, repeats=RepeatFilter(1000, 1000))
    batch = reader.take(reader.choose(len(log.values), wait=0, rest=True))
    assert len(batch) == len(wanted) and damaged.count == 0
