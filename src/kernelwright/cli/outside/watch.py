"""`watch`: serve runs to this machine's browser while they grow."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import typer

from kernelwright.watching.server import WatchServer


def run_watch(folder: Path, *, port: int, is_json: bool) -> None:
    """Say where the page is, and serve until Ctrl-C.

    Raises:
        UserError: there is no such folder, or the port cannot be had.
    """
    with WatchServer(folder, port=port) as server:
        typer.echo(json.dumps({"url": server.url}) if is_json else server.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.5)
