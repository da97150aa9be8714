"""Headless Chromium through its DevTools pipe, with the standard library alone."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    """The browser's path, if one is installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


@dataclass
class Page:
    """What one visit to a file showed."""

    errors: list[str] = field(default_factory=list)
    """Console errors and warnings, uncaught exceptions, and whatever the browser itself complains about."""
    urls: list[str] = field(default_factory=list)
    """Everything that was requested."""


class Browser:
    """One browser process; `open` a file, then `evaluate` in it."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._pending = b""
        self._next_id = 0
        self._session = ""
        self._events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._next_id += 1
        message: dict[str, Any] = {"id": self._next_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self._next_id:
                assert "error" not in reply, f"{method}: {reply}"
                return reply["result"]
            self._events.append(reply)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + 300
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._read_fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser did not answer within 300 s"
            data = os.read(self._read_fd, 1 << 20)
            assert data, "the browser went away"
            self._pending += data
        message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(message)

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self._events):
            self._events.append(self._receive())

    def open(self, file: Path | str, *, width: int, height: int = 900, dark: bool = False) -> Page:
        """Load a file or an address in a new tab of the given size; collect what it complains about and asks for."""
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.call("Page.navigate", url=file if isinstance(file, str) else file.resolve().as_uri())
        self.wait_for("Page.loadEventFired")
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        return self.complaints()

    def complaints(self) -> Page:
        """What was said and asked for since the file was opened."""
        page = Page()
        for event in self._events:
            params = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    page.errors.append(json.dumps(params["exceptionDetails"])[:500])
                case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                    page.errors.append(json.dumps(params["args"])[:500])
                case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                    page.errors.append(params["entry"]["text"])
                case "Network.requestWillBeSent":
                    page.urls.append(params["request"]["url"])
        return page

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def screenshot(self, out: Path) -> Path:
        """The whole page as a picture, for people to look at."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        out.write_bytes(base64.b64decode(data))
        return out


@contextmanager
def running(program: str, profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, ended with the block."""
    to_browser_read, to_browser_write = os.pipe()
    from_browser_read, from_browser_write = os.pipe()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (to_browser_read, from_browser_write)]

    def place_pipes() -> None:
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=place_pipes,  # noqa: PLW1509 - the browser wants descriptors 3 and 4; no thread runs here
        start_new_session=True,
    )
    for fd in (to_browser_read, from_browser_write, *high):
        os.close(fd)
    try:
        yield Browser(from_browser_read, to_browser_write)
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_browser_read)
        os.close(to_browser_write)
