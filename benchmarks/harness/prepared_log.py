"""Generate and prepare a log once, for benchmarks that train on one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from cowclip_merlin.synthetic.criteo_log import generate
from cowclip_merlin.workflows import PreparedData, PrepareSettings, prepare


def prepared(work: Path, rows: int) -> PreparedData:
    """Open the prepared log of this size; create it if it is missing."""
    folder = work / f"data-{rows}"
    if not (folder / "dataset.json").exists():
        work.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=work) as temporary:
            log = Path(temporary) / "log.txt"
            generate(log, rows=rows, seed=11)
            prepare(PrepareSettings(kind="criteo", files=(log,), out=folder))
    return PreparedData.load(folder)
