"""Start the tritonserver of the wheel nvidia-pytriton."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cowclip_merlin.errors import InputError
from cowclip_merlin.system.processes import free_ports, start, wait_for, wait_or_kill
from cowclip_merlin.types import Json, JsonObject

_LONGEST_START = 180.0  # seconds
_FIND = """
import importlib.metadata, importlib.util, json, sys, sysconfig
spec = importlib.util.find_spec("pytriton")
if spec is None:
    raise SystemExit("nvidia-pytriton is not installed")
package, = spec.submodule_search_locations
print(json.dumps({
    "package": package,
    "python": "%d.%d" % sys.version_info[:2],
    "libraries": sysconfig.get_config_var("LIBDIR"),
    "versions": {n: importlib.metadata.version(n) for n in ("nvidia-pytriton", "tritonclient")}
    | {"tensorflow in Triton": importlib.metadata.version("tensorflow")},
}))
"""


class TritonServer:
    """A tritonserver on a free port of 127.0.0.1.

    Attributes:
        address: host and port of its HTTP interface.
        versions: versions of the packages in its environment.

    Args:
        python: interpreter of an environment with nvidia-pytriton and TensorFlow.
        wheel: what `find_wheel` has found there.
        repository: the model repository.
        folder: for the backend and for what the server prints.

    Raises:
        InputError: if the server does not start.
    """

    def __init__(
        self, python: Path, wheel: Mapping[str, Json], repository: Path, folder: Path
    ) -> None:
        self.versions: dict[str, str] = wheel["versions"]
        self._log = folder / "tritonserver.log"
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        package = Path(wheel["package"])
        backends = _backends(package / "tritonserver", wheel["python"], folder / "backends")
        options = {
            "model-repository": repository,
            "backend-directory": backends,
            "http-address": "127.0.0.1",
            "http-port": port,
            "allow-grpc": "false",
            "allow-metrics": "false",
            "exit-timeout-secs": 10,
        }
        libraries = [package.parent / "nvidia_pytriton.libs", wheel["libraries"]]
        # The backend's process finds its packages by the first python on the path.
        environment = {
            "PATH": f"{python.absolute().parent}{os.pathsep}{os.environ['PATH']}",
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        }
        with self._log.open("wb") as stream:
            self._process = start(
                [
                    package / "tritonserver/bin/tritonserver",
                    *(f"--{name}={value}" for name, value in options.items()),
                ],
                stdout=stream,
                environment=os.environ | environment,
            )
        if not wait_for(self._is_ready, self._process, _LONGEST_START):
            self.stop()
            raise InputError(f"tritonserver does not start: {self.last_words()}")

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(self.address, timeout=10)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def last_words(self) -> str:
        """Return the first error in the log, or its last lines."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if re.match(r"E(?!0000)\d{4} |error: ", line)]
        return " ".join(errors[:1] or lines[-3:])[:600]

    def stop(self) -> None:
        """End it by SIGTERM."""
        self._process.terminate()
        wait_or_kill(self._process, 60)


def find_wheel(python: Path) -> JsonObject:
    """Find pytriton in the environment of an interpreter: paths and versions.

    Raises:
        InputError: if there is no such interpreter, or it has no nvidia-pytriton.
    """
    remedy = "make triton-check makes an environment with it"
    if not python.is_file():
        raise InputError(f"--triton-python {python}: no such file; {remedy}")
    done = subprocess.run([python, "-c", _FIND], capture_output=True, text=True)
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["it fails"])[-1]
        raise InputError(f"--triton-python {python}: {words}; {remedy}")
    return json.loads(done.stdout)


def _backends(triton: Path, version: str, folder: Path) -> Path:
    """Copy the Python backend, with the program for this version of Python."""
    stub = triton / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        raise InputError(f"{stub}: no such file; use another version of Python")
    shutil.copytree(triton / "backends", folder)
    shutil.copy(stub, folder / "python")
    return folder
