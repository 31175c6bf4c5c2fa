"""A worker with a limit of its memory: runs a command of `cowclip`.

    python limited_memory.py LIMIT OUT ARGUMENTS

LIMIT is in bytes, as for `ulimit -d`, which counts memory of this process alone; 0: none. Writes
OUT/RANK.json: the exit code, and how much such memory the process has at its end, in bytes.
"""

import json
import os
import resource
import sys
from pathlib import Path

from cowclip_merlin.cli import main


def own_memory():
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (kilobytes,) = (int(line.split()[1]) for line in lines if line.startswith("VmData:"))
    return 1024 * kilobytes


def run(limit, out, arguments):
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    code = main(arguments)
    rank = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
    (Path(out) / f"{rank}.json").write_text(json.dumps({"code": code, "memory": own_memory()}))
    sys.exit(code)


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
