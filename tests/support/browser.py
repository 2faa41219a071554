"""A real browser for tests: headless Chromium through ChromeDriver, driven over plain HTTP (W3C WebDriver)."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

REQUIRED = "LOOKSAM_REQUIRE_BROWSER"
_FLAGS = [
    "--headless",
    "--no-sandbox",  # Chromium refuses to run as root with its sandbox
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
]
_TIMEOUT = 60  # seconds, on a busy machine


def programs():
    """The paths of Chromium and its driver. Without them the test is skipped, or fails where a browser is required."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not browser or not driver:
        missing = "chromium" if not browser else "chromedriver"
        message = f"{missing} is not installed: apt-get install chromium chromium-driver"
        if os.environ.get(REQUIRED):
            pytest.fail(f"{message} ({REQUIRED} is set).")
        pytest.skip(message)
    return browser, driver


class Browser:
    """One window. Every error of a page, in its scripts or in what it loads, is kept by the browser for `errors`."""

    def __init__(self, folder: pathlib.Path):
        browser, driver = programs()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._address = f"http://127.0.0.1:{port}"
        with (folder / "chromedriver.log").open("w") as log:
            self._driver = subprocess.Popen([driver, f"--port={port}"], stdout=log, stderr=log)
        try:
            self._wait()
            self._open(browser, folder / "profile")
        except BaseException:
            self._end()
            raise

    def _wait(self):
        end = time.monotonic() + _TIMEOUT
        while True:
            try:
                return self._send("GET", "/status")
            except (urllib.error.URLError, ConnectionError):
                if time.monotonic() > end or self._driver.poll() is not None:
                    raise
                time.sleep(0.05)

    def _open(self, browser, profile):
        options = {"binary": browser, "args": [*_FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"

    def _send(self, method, path, data=None):
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(
            self._address + path, body, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=_TIMEOUT) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(json.load(error)["value"]["message"]) from None

    def visit(self, path: pathlib.Path):
        """Open a file from disk, and wait until it is loaded."""
        self._send("POST", f"{self._session}/url", {"url": path.as_uri()})

    def run(self, script: str, *arguments):
        """The value that a script returns; an element comes back as a handle for `click` and `point`."""
        return self._send("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector: str):
        return self.run("return document.querySelector(arguments[0])", selector)

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)

    def click(self, selector: str):
        (handle,) = self.find(selector).values()
        self._send("POST", f"{self._session}/element/{handle}/click", {})

    def point(self, x: float, y: float):
        """Move the mouse to a position in the window."""
        move = {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y), "origin": "viewport"}
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [move]}
        self._send("POST", f"{self._session}/actions", {"actions": [mouse]})

    def press(self, key: str):
        """Send a key to the element that has the focus."""
        keys = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self._send("POST", f"{self._session}/actions", {"actions": [{"type": "key", "id": "keys", "actions": keys}]})

    def devtools(self, command: str, **parameters):
        data = {"cmd": command, "params": parameters}
        return self._send("POST", f"{self._session}/goog/cdp/execute", data)

    def errors(self) -> list[str]:
        """The errors and warnings in the console since the last call: of scripts, of the policy and of loading."""
        entries = self._send("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def close(self):
        try:
            self._send("DELETE", self._session)
        finally:
            self._end()

    def _end(self):
        self._driver.terminate()
        self._driver.wait(_TIMEOUT)
