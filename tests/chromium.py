"""Headless Chromium by its debugging pipe: JSON that ends in a zero byte, no package needed."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-pipe",
)  # fmt: skip


def find():
    """The browser's path; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One browser with one page, whose console and requests are recorded."""

    def __init__(self, program):
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The browser reads from file 3 and writes to file 4, whatever numbers the pipes have here.
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        command = [program, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(to_browser, from_browser),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._rest, self._number, self._session, self.events = b"", 0, None, []
        attached = self.call("Target.attachToTarget", targetId=self._page(), flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _page(self, seconds=300):
        """The id of the first page; it may appear after the browser answers."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for target in self.call("Target.getTargets")["targetInfos"]:
                if target["type"] == "page":
                    return target["targetId"]
            time.sleep(0.1)
        raise TimeoutError("the browser has no page")

    def _message(self, seconds=120):
        """The next message; fails rather than wait for ever."""
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
            part = os.read(self._read, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser does not answer")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def call(self, method, **parameters):
        """Send a command and return its result; events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, path, *, width=1280, height=900, scheme="light"):
        """Load a file or an address at a width in CSS pixels, in a light or dark colour scheme."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        address = path if isinstance(path, str) else path.as_uri()
        self.call("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())

    def value(self, expression):
        """What a JavaScript expression gives."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def complaints(self):
        """Errors and warnings of the console since the page was opened."""
        self.value("1")  # what the page still had to say comes before this answer
        found = [e["params"]["entry"] for e in self._of("Log.entryAdded")]
        found = [entry for entry in found if entry["level"] in ("error", "warning")]
        calls = [e["params"] for e in self._of("Runtime.consoleAPICalled")]
        found += [call for call in calls if call["type"] in ("error", "warning", "assert")]
        return found + self._of("Runtime.exceptionThrown")

    def requests(self):
        """Addresses that the page asked for."""
        return [e["params"]["request"]["url"] for e in self._of("Network.requestWillBeSent")]

    def _of(self, method):
        return [event for event in self.events if event.get("method") == method]

    def pdf(self):
        """The page as printed."""
        options = {"printBackground": True, "preferCSSPageSize": True}
        return base64.b64decode(self.call("Page.printToPDF", **options)["data"])

    def screenshot(self, *, whole=True):
        """The page as a PNG."""
        done = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(done["data"])

    def close(self):
        """End the browser."""
        for end in (self._write, self._read):
            os.close(end)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()
