"""A headless Chromium for tests, spoken to over its debugging pipe: no driver and no package is needed."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60.0  # seconds; a loaded machine starts a browser slowly
TROUBLE = ("Runtime.exceptionThrown", "Network.loadingFailed", "Log.entryAdded", "Runtime.consoleAPICalled")


def find_browser():
    """The browser's program, None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page. Use it in a `with`."""

    def __init__(self, program, profile):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        flags += ["--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"]
        command = [program, *flags, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        # the browser reads 3 and writes 4, whatever numbers they have here
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        os.set_blocking(self._in, False)
        self._numbers, self._rest, self._session = itertools.count(1), b"", None
        self.heard = []
        page = next(each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        os.close(self._out)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def call(self, method, **parameters):
        """One command of the DevTools protocol and its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        reply = self._wait(lambda each: each.get("id") == number)
        assert "error" not in reply, reply
        return reply["result"]

    def open(self, path, width=1200, height=900, dark=False):
        """Load a file at a width and in a colour scheme, and wait until all of it is there."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.heard.clear()
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        if not any(each.get("method") == "Page.loadEventFired" for each in self.heard):
            self._wait(lambda each: each.get("method") == "Page.loadEventFired")

    def trouble(self):
        """What the page complained of since it was opened."""
        return [each for each in self.heard if each.get("method") in TROUBLE]

    def requests(self):
        """The addresses that the page asked for."""
        sent = [each for each in self.heard if each.get("method") == "Network.requestWillBeSent"]
        return [each["params"]["request"]["url"] for each in sent]

    def evaluate(self, expression):
        """The value of some JavaScript in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, path, whole=False):
        """What is seen, or the whole page, as PNG."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        Path(path).write_bytes(base64.b64decode(taken["data"]))

    def _clip(self, whole):
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def _wait(self, wanted):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                arrived = os.read(self._in, 2**20)
                assert arrived, "the browser has ended"
            except BlockingIOError:
                time.sleep(0.01)
                continue
            *messages, self._rest = (self._rest + arrived).split(b"\0")
            found = None
            for message in map(json.loads, messages):
                self.heard.append(message)
                if found is None and wanted(message):
                    found = message
            if found is not None:
                return found
        raise AssertionError(f"the browser did not answer within {PATIENCE} s")
