"""A real server process, and raw connections to it."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request


class ServerProcess:
    """`cowclip online serve` on a free port; use it in a `with` block.

    `words` are those of another command.
    """

    def __init__(self, log, *options, words=("online", "serve", "--from")):
        command = [sys.executable, "-m", "cowclip_merlin", *words, str(log)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", *map(str, options)],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        self.wait_for(lambda: self._address() is not None)
        self.host, port = self._address()
        self.port = int(port)
        self.wait_for(lambda: self.get("/ready", ok=(200, 503)))

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)

    def _address(self):
        found = re.search(r"serving http://(\S+):(\d+) from", "".join(self.lines))
        return found and found.groups()

    def wait_for(self, condition, seconds=600):
        """Wait until a condition holds; fails if the process ends before."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if value := condition():
                    return value
            except urllib.error.URLError:
                pass
            assert self.process.poll() is None, "".join(self.lines)
            time.sleep(0.02)
        raise AssertionError(f"waited {seconds} s; {''.join(self.lines)}")

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    def get(self, path, ok=(200,), **headers):
        """The JSON of an address; None with another status."""
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, headers=headers),
                timeout=30,
            ) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error) if error.code in ok else None

    def predict(self, rows, **headers):
        """Status and JSON of a request."""
        body = json.dumps({"events": rows}).encode()
        request = urllib.request.Request(
            self.url + "/v1/predict", body, {"Content-Type": "application/json", **headers}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def raw(self, *parts, seconds=30):
        """What a connection answers to bytes; and whether the server cut it while they came."""
        answer = b""
        with socket.create_connection((self.host, self.port), timeout=seconds) as connection:
            try:
                for part in parts:
                    connection.sendall(part)
                while part := connection.recv(1 << 16):
                    answer += part
                    connection.settimeout(1)
            except TimeoutError:
                return answer, False
            except (ConnectionResetError, BrokenPipeError):
                return answer, True
        return answer, False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._thread.join()
        self.process.stderr.close()
