"""List the machine, the versions, and the values that sweeps chose."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from cowclip_merlin.experiments.report.results_folder import ResultsFolder


def environment(folder: ResultsFolder) -> list[tuple[str, str]]:
    """Return heading and text of each fact about the machine and the software."""
    runs = [*folder.results, *folder.replays]
    if not runs:
        return []
    starts = sorted(run.started for run in runs)
    loads = [run.load for run in runs if math.isfinite(run.load)]
    found = [
        ("hardware", _distinct(run.hardware for run in runs)),
        ("runs started (UTC)", _span(starts[0], starts[-1])),
        ("revision", _distinct(run.revision for run in runs)),
        ("TensorFlow", _distinct(run.tensorflow for run in runs)),
        ("running processes before a run", _range(loads)),
        ("data fingerprint", _distinct(run.data_fingerprint for run in runs)),
        ("scores of", _distinct(run.split for run in folder.results)),
    ]
    packages = [f"{name} {', '.join(v)}" for name, v in folder.versions.items()]
    found += [("versions", "; ".join(packages)), ("base values that sweeps chose", _tuned(folder))]
    return [(k, v) for k, v in found if v]


def _tuned(folder: ResultsFolder) -> str:
    """Format values by group: "cowclip" and "baseline" apply to all lines, others to one."""
    return "; ".join(
        f"{group}{f' ({size})' if len(folder.tuned) > 1 else ''}: "
        + ", ".join(f"{name} {value:.3g}" for name, value in values.items())
        for size, tuned in folder.tuned.items()
        for group, values in tuned.items()
    )


def _distinct(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def _range(loads: Sequence[float]) -> str:
    return _span(f"{min(loads):g}", f"{max(loads):g}") if loads else ""
