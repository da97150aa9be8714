"""`watch`: a run's page as it grows, for nobody but who has the address on this machine."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kernelwright.errors import StoreError, UserError
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.report.page import render_report
from kernelwright.store.event import Event
from kernelwright.store.log import LogTail
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView
from kernelwright.testing.sample_runs import FILES, sample_events
from kernelwright.testing.scripted_agent import ScriptedAgent, ScriptedTactic
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.watching.live_run import LiveRun
from kernelwright.watching.server import WatchServer

Ask = Callable[..., tuple[int, bytes]]
EVENTS = sample_events(evaluations=40)


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[tuple[RunFolder, list[Event]]]:
    """A run with its first events, and those that are still to come."""
    with RunFolder.create(tmp_path / "runs" / "one", files=FILES) as folder:
        folder.append(EVENTS[:20])
        yield folder, EVENTS[20:]


@pytest.fixture
def server(growing: tuple[RunFolder, list[Event]]) -> Iterator[WatchServer]:
    yield from serving(growing[0].path)


def serving(folder: Path) -> Iterator[WatchServer]:
    with WatchServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(120)


@pytest.fixture
def ask(server: WatchServer) -> Ask:
    return asking(server)


def asking(server: WatchServer) -> Ask:
    address = urlsplit(server.url)

    def get(path: str = "", *, method: str = "GET", whole: str | None = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", address.port or 0, timeout=120)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, whole if whole is not None else address.path + path, headers=named)
        answer = connection.getresponse()
        return answer.status, answer.read()

    return get


# -- who is answered ---------------------------------------------------------------------------------------------------


def test_with_its_address_a_page_is_given_that_must_not_be_kept_or_framed(server: WatchServer) -> None:
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection("127.0.0.1", address.port or 0, timeout=120)
    connection.request("GET", address.path)
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.getheader("Cache-Control") == "no-store"
    assert answer.getheader("Content-Security-Policy") == "frame-ancestors 'none'"
    assert answer.getheader("Access-Control-Allow-Origin") is None
    assert b"<h2>Convergence" in answer.read()


@pytest.mark.parametrize(
    "whole", ["/", "", "/state", "/x/", "/x/state", "//", "/../", "/%2e%2e/", "/" + "a" * 32 + "/report", "*"]
)
def test_without_the_token_there_is_nothing(ask: Ask, whole: str) -> None:
    assert ask(whole=whole) == (404, b"")


def test_a_part_of_the_token_is_none(ask: Ask, server: WatchServer) -> None:
    path = urlsplit(server.url).path
    assert ask(whole=path[:-2] + "/") == (404, b"")
    assert ask(whole=path[:-1] + "a/") == (404, b"")
    assert ask(whole=path[:-1]) == (404, b"")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1", ""])
def test_another_origin_gets_nothing_even_with_the_token(ask: Ask, origin: str) -> None:
    assert ask("state", Origin=origin) == (404, b"")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{}", "127.0.0.1", "127.0.0.1.evil.example:{}", "[::1]:{}"]
)
def test_a_name_that_was_pointed_here_gets_nothing(ask: Ask, server: WatchServer, host: str) -> None:
    assert ask("state", Host=host.format(server.server_address[1])) == (404, b"")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_a_foreign_page_makes_a_browser_ask_gets_nothing(ask: Ask, site: str) -> None:
    assert ask("report", Sec_Fetch_Site=site) == (404, b"")


def test_the_own_origin_is_answered(ask: Ask, server: WatchServer) -> None:
    own = f"http://127.0.0.1:{server.server_address[1]}"
    assert ask("state", Origin=own, Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "HEAD", "CONNECT", "nonsense"])
def test_it_can_only_be_read(ask: Ask, method: str) -> None:
    assert ask("state", method=method) == (404, b"")


@pytest.mark.parametrize(
    "data",
    [
        b"\0\n\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"A" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ],
)
def test_what_is_no_request_gets_nothing(server: WatchServer, data: bytes) -> None:
    with socket.create_connection(server.server_address[:2], timeout=120) as client:
        client.sendall(data)
        answer = client.recv(4096)
    assert b"200" not in answer
    assert b"<" not in answer


def test_it_listens_to_this_machine_alone(server: WatchServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_two_servers_have_two_tokens(server: WatchServer, growing: tuple[RunFolder, list[Event]]) -> None:
    for other in serving(growing[0].path):
        assert urlsplit(other.url).path != urlsplit(server.url).path
        assert len(urlsplit(other.url).path) > 30


def test_no_path_leads_to_a_file(ask: Ask) -> None:
    for path in (
        "events.jsonl",
        "../one/events.jsonl",
        "problem/problem.toml",
        "%2e%2e/",
        "0/",
        "state/x",
        "report/../state",
    ):
        assert ask(path) == (404, b"")


def test_a_folder_that_there_is_not_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no folder"):
        WatchServer(tmp_path / "none")


def test_the_command_says_where_and_ends_with_ctrl_c(growing: tuple[RunFolder, list[Event]]) -> None:
    words = [sys.executable, "-m", "kernelwright", "watch", str(growing[0].path), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with urllib.request.urlopen(f"{url}state", timeout=120) as answer:
            assert json.load(answer)["version"] == 20
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0


# -- growing -----------------------------------------------------------------------------------------------------------


def state_of(ask: Ask, path: str = "") -> dict[str, object]:
    found: dict[str, object] = json.loads(ask(f"{path}state")[1])
    return found


def test_the_state_grows_with_the_run_and_tells_its_end(ask: Ask, growing: tuple[RunFolder, list[Event]]) -> None:
    folder, rest = growing
    first = state_of(ask)
    folder.append(rest[:5])
    second = state_of(ask)
    assert (first["version"], second["version"]) == (20, 25)
    assert first["words"] == "under way"
    folder.append(rest[5:])
    last = state_of(ask)
    assert str(last["words"]).startswith("over: budget")
    assert str(last["log"][-1]).startswith("over: budget")  # type: ignore[index]


def test_when_it_is_over_the_page_is_the_report(ask: Ask, growing: tuple[RunFolder, list[Event]]) -> None:
    """The same sections, but for what only a live page has."""
    folder, rest = growing
    assert b"Reckoned when the run is over" in ask("report")[1]
    folder.append(rest)
    live = LiveRun(folder.path).report()
    still = render_report(RunView.read(folder.path))
    sections = re.compile(r'<section id="(?!live)\w+">.*?</section>', re.DOTALL)
    assert sections.findall(live) == sections.findall(still)
    assert "connect-src" in live
    assert "connect-src" not in still
    assert "fetch(" not in still


@pytest.mark.thorough
def test_of_a_run_with_a_tree_the_nodes_are_read_on_too(beatable_saxpy: Path, tmp_path: Path) -> None:
    optimize(
        beatable_saxpy,
        settings=OptimizeSettings(tune=TuneSettings(budget=Budget(evaluations=20), data_seed=1), memory="off"),
        run=tmp_path / "tree",
        machine=SimulatedMachine(lambda config, workload: 1.0 + len(config) * 1e-3),
        agent=ScriptedAgent([ScriptedTactic("tile", 2.0)]),
    )
    live = LiveRun(tmp_path / "tree")
    state = live.state()
    assert any(re.match(r"node \d+: #\d", line) for line in state.log)
    assert any(line.startswith("expand node") for line in state.log)
    assert state.version > len(list(RunFolder.open(tmp_path / "tree", writable=False).read()))
    assert '<section id="tree">' in live.report()


def test_several_runs_are_listed_and_new_ones_come(tmp_path: Path, growing: tuple[RunFolder, list[Event]]) -> None:
    for server in serving(tmp_path / "runs"):
        ask = asking(server)
        assert b'<a href="0/">one</a>' in ask()[1]
        with RunFolder.create(tmp_path / "runs" / "another", files=FILES) as other:
            assert b"another" in ask()[1]
            assert b"no event yet" in ask("1/")[1]
            other.append(EVENTS[:10])
            assert state_of(ask, "1/")["version"] == 10
            assert state_of(ask, "0/")["version"] == 20
            assert ask("2/") == (404, b"")


def test_a_damaged_log_is_told_and_what_was_read_stays(ask: Ask, growing: tuple[RunFolder, list[Event]]) -> None:
    folder, _ = growing
    assert state_of(ask)["version"] == 20
    with (folder.path / "events.jsonl").open("ab") as file:
        file.write(b"damage\nmore damage\n")
    state = state_of(ask)
    assert state["version"] == 20
    assert "cannot be read on" in str(state["words"])
    assert ask("report")[0] == 200


def test_a_log_is_read_on_and_each_record_once(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder.create(path, files=FILES) as folder:
        tail = LogTail(path / "events.jsonl")
        assert tail.read_on() == []
        seen: list[Event] = []
        for start in range(0, len(EVENTS), 7):
            folder.append(EVENTS[start : start + 7])
            seen += tail.read_on()
            assert tail.read_on() == []
        assert seen == tail.events == EVENTS


def test_a_record_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", files=FILES) as folder:
        folder.append(EVENTS)
    data = (tmp_path / "run" / "events.jsonl").read_bytes()
    copy, seen = tmp_path / "events.jsonl", []
    tail = LogTail(copy)
    with pytest.raises(StoreError):
        tail.read_on()
    for end in [*range(0, len(data), 997), len(data)]:
        copy.write_bytes(data[:end])
        seen += tail.read_on()
    assert seen == EVENTS
    copy.write_bytes(data[: len(data) // 2])  # another run took its place
    assert 0 < len(tail.read_on()) < len(EVENTS)
