"""JSON nested deeper than Python can follow, and numbers longer than it reads, in every file that a command reads."""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path

import pytest

from kernelwright.cli.main import main
from kernelwright.errors import StoreError
from kernelwright.llm.recorded import decode
from kernelwright.memory.library import Library
from kernelwright.optimization import optimize as engine_optimize
from kernelwright.remote.folder import SpoolFolder
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright.tuning import tune as engine_tune
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import tune
from kernelwright.worker.claims import Claims

DEEP = {
    "nested": "[" * 200_000 + "]" * 200_000,
    "nested-objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "long-number": "9" * 5000,
    "not-utf8": '"\udcff"',
}


@pytest.fixture(params=DEEP)
def deep(request: pytest.FixtureRequest) -> bytes:
    return DEEP[request.param].encode("utf-8", "surrogateescape")


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (engine_tune, engine_optimize):
        monkeypatch.setattr(module, "LocalMachine", lambda: SimulatedMachine(lambda config, workload: 1.0))


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    """Exit status and message of a command; anything but a message is an error here."""
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in words])
    code = exit_.value.code
    assert isinstance(code, int | None)
    err = capsys.readouterr().err
    assert len(err) < 2000, "a message, not a dump"
    return code or 0, err


def with_checksum(body: bytes) -> bytes:
    return b'{"crc":"%08x",' % zlib.crc32(b"{" + body) + body


@pytest.mark.parametrize("index", [0, 3, -1])
@pytest.mark.parametrize("is_checked", [False, True])
def test_the_log_of_a_run(
    index: int, is_checked: bool, deep: bytes, saxpy: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = TuneSettings(budget=Budget(evaluations=4), searcher="random", comparison_rounds=5)
    tune(saxpy, settings=settings, run=in_tmp / "run")
    log = in_tmp / "run" / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    record = json.loads(lines[index])
    for body in (deep, b'"i":%d,"kind":"%s","x":%s}' % (record["i"], record["kind"].encode(), deep)):
        lines[index] = (with_checksum(body) if is_checked else body) + b"\n"
        log.write_bytes(b"".join(lines))
        for command in (["show", "run"], ["report"], ["resume"], ["export"]):
            status, err = said(capsys, *command, in_tmp / "run")
            assert status in (0, 2), err
            assert status == 0 or f"{log}:{index % len(lines) + 1}: " in err


def test_a_file_of_the_tuning_community(deep: bytes, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for body in (deep, b'{"results": %s}' % deep, b'{"tune_params_keys": [], "cache": %s}' % deep):
        (in_tmp / "deep.json").write_bytes(body)
        for words in (["init"], ["bench", "search"]):
            status, err = said(capsys, *words, in_tmp / "deep.json")
            assert status == 2, err
            assert "deep.json" in err


def test_a_recorded_reply(deep: bytes) -> None:
    for body in (deep, b'{"request":%s,"reply":{}}' % deep):
        assert decode(b"%08x %s\n" % (zlib.crc32(body), body)) is None


def test_the_library_of_lessons(deep: bytes, tmp_path: Path) -> None:
    library = Library(tmp_path)
    library.file.write_bytes(b"%08x %s\n" % (zlib.crc32(deep), deep))
    assert library.read().damaged_count == 1


def test_what_lies_in_a_spool(deep: bytes, tmp_path: Path) -> None:
    identity = "0123456789abcdef"
    spool = SpoolFolder(tmp_path / "spool")
    head = {"spool": 1, "kind": "begin", "id": identity, "bytes": len(deep), "sha256": hashlib.sha256(deep).hexdigest()}
    for data in (deep[:4000] + b"\n" + deep, json.dumps(head).encode() + b"\n" + deep):
        (spool.path / "requests" / f"{identity}.json").write_bytes(data)
        if data.startswith(b'{"spool'):
            with pytest.raises(StoreError, match="'begin' message"):
                spool.message("requests", identity)
        else:
            assert spool.message("requests", identity) is None
    (spool.path / "claims" / f"{identity}.json").write_bytes(deep[:4000])
    assert Claims(spool.path / "claims").earlier_attempts(identity) in (None, 1)
    claim = {"host": "x", "process_id": 1, "until_s": 10**400, "attempt": 1}
    (spool.path / "claims" / f"{identity}.json").write_text(json.dumps(claim))
    assert Claims(spool.path / "claims").earlier_attempts(identity) is None
