"""Send requests with wrk, and read what it measured."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.types import JsonObject

_SCRIPT = """
local bodies, headers = {}, {["Content-Type"] = "application/json"}
for line in io.lines(os.getenv("BODIES")) do bodies[#bodies + 1] = line end
local i = 0
request = function()
  i = i % #bodies + 1
  return wrk.format("POST", "/v1/predict", headers, bodies[i])
end
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\\n{"requests": %d, "seconds": %f, ', summary.requests,
    summary.duration / 1e6))
  io.write(string.format('"p50": %f, "p99": %f, "max": %f, ', latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, latency.max / 1e3))
  io.write(string.format('"errors": %d, "lost": %d}\\n', e.status,
    e.connect + e.read + e.write + e.timeout))
end
"""


def find_wrk() -> str:
    """Return the path of wrk.

    Raises:
        InputError: it is not installed.
    """
    program = shutil.which("wrk")
    if program is None:
        raise InputError("wrk is not installed; install it, for example by apt-get install wrk")
    return program


def load(
    url: str, bodies: Sequence[bytes], *, connections: int, seconds: float, folder: Path
) -> JsonObject:
    """Send requests one after the other on each connection.

    Args:
        url: of the server.
        bodies: of the requests, in turn.
        connections: at one time.
        seconds: how long.
        folder: for the files of wrk.

    Returns:
        requests, seconds, p50, p99 and max in milliseconds, errors (responses that are not 200)
        and lost (requests without a response).
    """
    script, file = folder / "load.lua", folder / "bodies"
    script.write_text(_SCRIPT, encoding="utf-8")
    file.write_bytes(b"\n".join(bodies) + b"\n")
    options = ["-t", "1", "-c", str(connections), "-d", f"{max(round(seconds), 1)}s"]
    done = subprocess.run(
        [find_wrk(), *options, "--timeout", "30s", "-s", str(script), url],
        env={"BODIES": str(file)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise InputError(f"wrk failed: {done.stderr or done.stdout:.200}")
    return json.loads(done.stdout.strip().splitlines()[-1])
