"""A server of this machine alone: loopback, a random token in every address, and no answer to anybody else.

A page of another origin can make a browser send requests here, and can point a name of its own at this machine. So a
request is answered only with the token, a `Host` that is this server's address, and no `Origin` but its own.
"""

from __future__ import annotations

import html
import json
import secrets
from dataclasses import asdict
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kernelwright.errors import KernelwrightError, UserError
from kernelwright.report.html.writing import render_page
from kernelwright.store.run_folder import is_run, runs_in
from kernelwright.watching.live_run import LiveRun

HOST = "127.0.0.1"
MOST_RUNS = 50
QUIET_S = 10.0
"""A client that sends nothing for so long is left."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}


_LATER = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>watch</title><pre>{}</pre>'


class WatchServer(ThreadingHTTPServer):
    """Serves one run, or the runs of a folder, those that come later too. Reads only."""

    daemon_threads = True

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        """Listen; `serve_forever` answers.

        Raises:
            UserError: there is no such folder, or the port cannot be had.
        """
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder", hint="name a run, or a folder of runs")
        self._folder = folder
        self._is_one = is_run(folder)
        self._runs: dict[str, LiveRun] = {}
        self._token = secrets.token_urlsafe(24)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise UserError(
                f"port {port} cannot be had: {error.strerror or error}", hint="say another --port"
            ) from error

    @cached_property
    def url(self) -> str:
        """Where the page is; whoever knows it can read."""
        return f"http://{HOST}:{self.server_address[1]}/{self._token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that goes away is no news."""

    def may_ask(self, path: str, headers: Any) -> bool:
        """Whether a request has the token, and comes from this server's own pages or from a person."""
        port = self.server_address[1]
        hosts = headers.get_all("Host") or []
        origins = headers.get_all("Origin") or []
        own = [f"{name}:{port}" for name in (HOST, "localhost")]
        is_ours = len(hosts) == 1 and hosts[0] in own and all(each == f"http://{hosts[0]}" for each in origins)
        is_ours = is_ours and headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
        given = path.split("/")[1] if path.count("/") >= 2 else ""
        return is_ours and secrets.compare_digest(given.encode(), self._token.encode())

    def answer(self, path: str) -> tuple[str, str] | None:
        """A page with its type; None: there is none.

        `/` is the run or the list of runs, `/N/` a run of the list; `state` and `report` beside are its parts.
        """
        parts = path.partition("?")[0].split("/")[2:]
        if not self._is_one:
            if parts == [""]:
                return self._list(), "text/html"
            runs = self._known()
            place = parts.pop(0)
            if not place.isdecimal() or len(place) > 6 or int(place) >= len(runs):
                return None
            run = runs[int(place)]
        else:
            run = self._live(self._folder)
        match parts:
            case ["" | "report"]:
                return run.report(), "text/html"
            case ["state"]:
                return json.dumps(asdict(run.state())), "application/json"
        return None

    def _known(self) -> list[LiveRun]:
        """All runs so far; each keeps its place, so that its address stays."""
        for path in sorted(runs_in(self._folder), key=lambda each: each.name)[-MOST_RUNS:]:
            self._live(path)
        return list(self._runs.values())

    def _live(self, path: Path) -> LiveRun:
        return self._runs.setdefault(str(path), LiveRun(path))

    def _list(self) -> str:
        lines = [run.line(place) for place, run in enumerate(self._known())]
        return render_page("runs.html.j2", {"folder": self._folder.name or str(self._folder), "runs": lines[::-1]})


class _Handler(BaseHTTPRequestHandler):
    """One client. Whoever may not ask gets an empty page without a word."""

    server: WatchServer
    timeout = QUIET_S
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with a page, or with nothing."""
        if not self.server.may_ask(self.path, self.headers):
            self._send(404, b"", "text/plain")
            return
        try:
            found = self.server.answer(self.path)
        except (KernelwrightError, OSError) as error:  # no event yet, say
            found = _LATER.format(html.escape(str(error))), "text/html"
        if found is None:
            self._send(404, b"", "text/plain")
            return
        self._send(200, found[0].encode("utf-8", "replace"), found[1])

    def version_string(self) -> str:
        """What answers is nobody's business."""
        return ""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Say nothing of a request that cannot be read, or asks for something else than a page."""
        del code, message, explain
        self._send(404, b"", "text/plain")

    def _send(self, code: int, data: bytes, kind: str) -> None:
        try:
            self.send_response(code)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # it is gone
            pass
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base class
        """Nothing: addresses hold the token."""
