"""Calls of a log that is away are made again, and no others."""

import pytest
from log_servers import RedisServer

from cowclip_merlin.cli import main
from cowclip_merlin.errors import InputError
from cowclip_merlin.online.logs.message_log import (
    LogRefused,
    LogUnavailable,
    MessagesLost,
    Retrying,
)
from cowclip_merlin.system.processes import free_ports

FEATURES = "label: click\ntime: time\nkey: request\ncategorical: [item]\n"
COMMANDS = {
    "produce": "--generate --events 10 --to {log}",
    "join": "--impressions {log} --actions {log}2 --to {folder}/to --features {features} "
    "--state {folder}/state --window 5",
    "train": "--from {log} --features {features} --out {folder}/run --model deepfm --batch-size 4",
}


class Away:
    """Fails with each of these errors, and then succeeds."""

    def __init__(self, *errors):
        self.errors = list(errors)

    def __call__(self):
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_it_warns_once_for_each_time_and_waits_longer_and_longer():
    told, slept = [], []
    retrying = Retrying(lambda error: told.append(str(error)), sleep=slept.append)
    first = [LogUnavailable(f"first {i}") for i in range(5)]
    assert retrying(Away(*first)) == "done"
    assert told == ["first 0"] and sum(slept) == pytest.approx(0.2 + 0.4 + 0.8 + 1 + 1)
    slept.clear()
    assert retrying(Away(LogUnavailable("second"), LogUnavailable("again"))) == "done"
    assert told == ["first 0", "second"] and sum(slept) == pytest.approx(0.6)


def test_a_stop_is_seen_within_a_pause():
    slept = []
    retrying = Retrying(lambda _: None, stopped=lambda: len(slept) == 5, sleep=slept.append)
    assert retrying(Away(*[LogUnavailable("away")] * 9)) is None
    assert len(slept) == 5 and max(slept) <= 0.2


@pytest.mark.parametrize("kind", [LogRefused, MessagesLost, InputError])
def test_what_waiting_does_not_help_is_raised(kind):
    with pytest.raises(kind):
        Retrying(lambda _: None, sleep=None)(Away(kind("no")))


def test_a_log_that_is_away_is_no_wrong_input():
    """So code that goes on after wrong input does not wait for ever, and the other way round."""
    assert not issubclass(LogUnavailable, ValueError)


def run(command, url, folder):
    features = folder / "features.yaml"
    features.write_text(FEATURES)
    words = COMMANDS[command].format(log=url, folder=folder, features=features)
    if command == "produce":
        words += f" --features {folder}/new.yaml"
    return main(["online", command, *words.split()])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_address_ends_a_command(command, tmp_path, capsys):
    port = free_ports(1)[0]
    assert run(command, f"redis://127.0.0.1:{port}/a", tmp_path) == 2
    assert f"redis://127.0.0.1:{port}/a: " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.system
def test_a_wrong_password_ends_a_command(tmp_path, capsys):
    server = RedisServer(tmp_path, "--requirepass", "right")
    try:
        url = f"redis://:wr0ng@127.0.0.1:{server.port}/a"
        for command in COMMANDS:
            assert run(command, url, tmp_path) == 2
            assert "check user and password" in capsys.readouterr().err.splitlines()[-1]
        assert main(["online", "serve", "--from", url]) == 2
    finally:
        server.kill()
