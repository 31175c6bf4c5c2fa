import copy
import io
from pathlib import Path

import pytest

from cowclip_merlin.cli import main
from cowclip_merlin.demo.pipeline import DemoSettings
from cowclip_merlin.demo.report import StatusBlock, draw, percentiles, table_text
from cowclip_merlin.errors import InputError

RESULT = {
    "seconds": 60.0,
    "frozen_after": 20.0,
    "accounts": {
        "impressions": 120_000,
        "clicks": 24_000,
        "examples": 110_000,
        "due": 105_000,
        "lost": 0,
        "repeated": 12,
        "trained": 109_988,
    },
    "events_per_second": {"produced": 2000.0, "trained": 1990.5},
    "event_age": {"p50": 0.62, "p95": 1.08},
    "requests": {"p50": 1.5, "p99": 7.0, "unanswered": 0},
    "auc": {"whole": {"online": 0.7, "frozen": 0.6, "best": 0.78}, "impressions": 9000},
    "auc_over_time": {
        "times": [5.0, 15.0],
        "parts": [
            {"online": None, "frozen": 0.6, "best": 0.8},
            {"online": 0.7, "frozen": 0.6, "best": 0.8},
        ],
    },
    "models": [
        {"time": 1.0, "rows": 10, "expired": 0, "event_age": None},
        {"time": 2.0, "rows": 4000, "expired": 1000, "event_age": 0.7},
    ],
    "kill": {
        "killed_after": 36.0,
        "without_syncs": 9.5,
        "caught_up_after": 11.0,
        "retrained": 20_000,
    },
    "memory": {"trainer": 900, "server-1": 500},
}


def test_table():
    assert table_text(RESULT) == Path(__file__).with_name("table.txt").read_text().rstrip("\n")


def test_table_of_what_did_not_come():
    result = copy.deepcopy(RESULT) | {"kill": None, "event_age": {"p50": None, "p95": None}}
    result["requests"] = {"p50": None, "p99": None, "unanswered": 3}
    result["auc"]["whole"]["frozen"] = None
    text = table_text(result)
    for words in ("no syncs came after it", "not updated any more  -"):
        assert words in text
    assert "event to served" not in text and "a request" not in text


def test_percentiles():
    assert percentiles([], 50) == {"p50": None}
    assert percentiles([1, 2, 3, 4, 101], 50, 95)["p50"] == 3


@pytest.mark.parametrize("change", [{}, {"kill": None}])
def test_figure(tmp_path, change):
    draw(RESULT | change, tmp_path / "a.svg")
    draw(RESULT | change, tmp_path / "b.svg")
    svg = (tmp_path / "a.svg").read_bytes()
    assert svg == (tmp_path / "b.svg").read_bytes() and svg.startswith(b"<?xml")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_block_that_is_drawn_again():
    out = Terminal()
    status = StatusBlock(out)
    status.show(["a", "b"])
    status.say("killed")
    status.show(["c", "d"])
    status.clear()
    assert out.getvalue() == "a\nb\n\x1b[2A\x1b[Jkilled\nc\nd\n\x1b[2A\x1b[J"


def test_a_file_gets_a_line_now_and_then():
    out = io.StringIO()
    status = StatusBlock(out)
    for lines in (["a", "  b"], ["c", "d"]):
        status.show(lines)
    status.say("killed")
    assert out.getvalue() == "a; b\nkilled\n"


def test_settings():
    settings = DemoSettings(minutes=2, rate=50)
    assert (settings.events, settings.freeze_after, settings.kill_after) == (6000, 40, 60)
    for wrong in ({"minutes": 0.5}, {"minutes": float("nan")}, {"rate": 0}, {"sync_every": -1}):
        with pytest.raises(InputError):
            DemoSettings(**wrong)


def test_a_folder_that_is_not_empty_is_refused(tmp_path, capsys):
    (tmp_path / "a").touch()
    assert main(["online", "demo", "--work", str(tmp_path)]) == 2
    assert "holds 'a'; " in capsys.readouterr().err
