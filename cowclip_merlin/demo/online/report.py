"""The demo's results: numbers for JSON, and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cowclip_merlin.demo.measuring.probes import STAGES, Latency
from cowclip_merlin.demo.measuring.scoring import BEST, FROZEN, ONLINE
from cowclip_merlin.types import Json, JsonObject


def percentiles(values: Sequence[float], *percents: float) -> JsonObject:
    """Return percentiles by name; None where there are no values.

    >>> percentiles([1.0, 2.0, 3.0], 50)
    {'p50': 2.0}
    """
    return {
        f"p{percent:g}": float(np.percentile(values, percent)) if len(values) else None
        for percent in percents
    }


def latency_summary(latencies: Sequence[Latency], given_up: int) -> JsonObject:
    """Return the percentiles of each stage and of the whole way."""
    stages = {
        name: percentiles([getattr(each, name) for each in latencies], 50, 95)
        for name in (*STAGES, "total")
    }
    return {"probes": len(latencies), "given_up": given_up, "seconds": stages}


def table_text(result: Mapping[str, Json]) -> str:
    """Return the table that the demo prints at its end."""
    return "\n".join(
        [
            *_event_lines(result),
            *_latency_lines(result["latency"], result["requests"]),
            *_auc_lines(result["auc"]),
            *_row_lines(result),
            *_kill_lines(result["kill"], result["accounts"]),
        ]
    )


def _event_lines(result: Mapping[str, Json]) -> list[str]:
    accounts, rate = result["accounts"], result["events_per_second"]
    return [
        _line("events", f"{accounts['impressions']:,} impressions, {accounts['clicks']:,} clicks"),
        _line("", f"{rate['produced']:,.0f} a second produced, {rate['trained']:,.0f} trained"),
    ]


def _latency_lines(latency: Mapping[str, Json], requests: Mapping[str, Json]) -> list[str]:
    lines = [_line("event to served", f"{latency['probes']} probes, seconds    p50     p95")]
    for name, each in latency["seconds"].items():
        if each["p50"] is not None:
            lines.append(_line("", f"  {name:<22}{each['p50']:6.2f}  {each['p95']:6.2f}"))
    if latency["given_up"]:
        lines.append(_line("", f"  {latency['given_up']} probes were not served in time"))
    if requests["p50"] is not None:
        words = f"{1e3 * requests['p50']:.1f} ms p50, {1e3 * requests['p99']:.1f} ms p99"
        lines.append(_line("a request", f"{words}; {requests['unanswered']} without an answer"))
    return lines


def _auc_lines(auc: Mapping[str, Json]) -> list[str]:
    names = {ONLINE: "updated all the time", FROZEN: "not updated any more", BEST: "best possible"}
    words = f"of {auc['impressions']:,} impressions since the last update of the second model"
    lines = [_line("AUC", words)]
    for name, words in names.items():
        value = auc["whole"][name]
        shown = "-" if value is None else f"{100 * value:6.2f} %"
        lines.append(_line("", f"  {words:<22}{shown}"))
    return lines


def _row_lines(result: Mapping[str, Json]) -> list[str]:
    rows, memory = result["rows"], result["memory"]
    words = ", ".join(f"{name} {size:,.0f}" for name, size in memory.items())
    counts = f"{rows['admitted']:,} admitted, {rows['expired']:,} expired, {rows['held']:,} held"
    return [_line("rows", counts), _line("memory, MB", words)]


def _kill_lines(kill: Mapping[str, Json] | None, accounts: Mapping[str, Json]) -> list[str]:
    if kill is None:
        lines = [_line("trainer killed", "no syncs came after it")]
    else:
        caught = kill["caught_up_after"]
        words = f"up to date {caught:.1f} s after the kill" if caught else "not yet up to date"
        lines = [
            _line("trainer killed", f"{kill['without_syncs']:.1f} s without syncs; {words}"),
            _line("", f"{kill['retrained']:,} events trained again since the snapshot"),
        ]
    lost = f"{accounts['lost']:,} of {accounts['due']:,} impressions without an example"
    lines.append(_line("lost", lost))
    read = f"{accounts['trained']:,} events trained of {accounts['read']:,} examples"
    return [*lines, _line("", f"{read}, {accounts['repeated']:,} of them repeats")]


def _line(name: str, words: str) -> str:
    return f"{name:<17}{words}".rstrip()
