"""The parts of a spool: whole files only, one claim at a time, nothing that leaves its folder."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spool_runs import worker

from kernelwright.errors import StoreError
from kernelwright.identity import content_id
from kernelwright.remote.base import Finalist
from kernelwright.remote.envelope import FORMAT, SpoolTooNew, decode, digest, encode
from kernelwright.remote.folder import SpoolFolder
from kernelwright.remote.messages import (
    Begin,
    CompareAsked,
    NodeAnswered,
    NodeAsked,
    Race,
    Refused,
    Request,
    RequestContext,
    all_files,
    kind_of,
    parse,
)
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.worker.claims import Claims, Lease

ID = content_id("some request")
WORK = RequestContext(
    "saxpy", {"problem.toml": digest(b"x")}, TuneSettings(budget=Budget(seconds=1.0)).as_record(), "opencl"
)
NODE = NodeAsked(
    WORK,
    "run",
    "started",
    "baseline",
    Race({"small": 1.5}, 0.5),
    3,
    {"a/b.cl": digest(b"y")},
    digest(b"log"),
    {},
    9,
    None,
)

texts = st.text(max_size=30)


# -- envelopes


@given(st.dictionaries(texts, st.floats(allow_nan=False, allow_infinity=False) | texts | st.none()), st.data())
def test_a_file_is_read_whole_or_not_at_all(body: dict[str, object], data: st.DataObject) -> None:
    whole = encode("node", ID, body)
    found = decode(whole, file=Path("x"))
    assert found is not None
    assert json.loads(found.body) == body
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert decode(whole[:cut], file=Path("x")) is None
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + bytes([whole[place] ^ 0x01]) + whole[place + 1 :]
    try:
        other = decode(changed, file=Path("x"))
    except SpoolTooNew:
        return
    assert other is None or other.body == found.body, "a changed body is never read"


@given(st.binary(max_size=200))
def test_anything_else_is_no_file_of_a_spool(data: bytes) -> None:
    assert decode(data, file=Path("x")) is None


def test_a_newer_format_is_refused_with_words() -> None:
    data = encode("node", ID, {}).replace(b'{"spool":%d' % FORMAT, b'{"spool":%d' % (FORMAT + 1), 1)
    with pytest.raises(SpoolTooNew, match=f"format {FORMAT + 1}; this version reads up to {FORMAT}") as caught:
        decode(data, file=Path("x"))
    assert "same version" in str(caught.value)


# -- messages


@pytest.mark.parametrize(
    "message",
    [
        Begin(WORK),
        NODE,
        dataclasses.replace(NODE, seconds=2.5, template_points=4, proof="line"),
        NodeAnswered(("one", "two"), "budget", 1.5, "host", {"stage": "check"}, "proof"),
        Refused("UsageError", "no", "", "host"),
    ],
)
def test_messages_come_back_as_they_were(message: object) -> None:
    envelope = decode(encode(kind_of(message), ID, message), file=Path("x"))  # type: ignore[arg-type]
    assert envelope is not None
    assert parse(envelope.kind, envelope.body) == message


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"work": 3}', b'{"work": null, "extra": 1}'])
def test_fields_that_are_wrong_are_named(body: bytes) -> None:
    with pytest.raises(StoreError, match="'begin' message"):
        parse("begin", body)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(StoreError, match="no kind of message"):
        parse("shell", b"{}")


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/passwd", "a/../../b", "", ".", "a\\b", "C:x", "a//b", "a/./b", "x" * 500, "a\nb"]
)
def test_names_that_leave_their_folder_are_refused(name: str) -> None:
    for request in (
        Begin(dataclasses.replace(WORK, files={name: digest(b"x")})),
        dataclasses.replace(NODE, node_files={name: digest(b"x")}),
    ):
        with pytest.raises(StoreError, match="plain path"):
            all_files(request)


def test_a_file_is_no_folder_of_another_one() -> None:
    with pytest.raises(StoreError, match="lies below"):
        all_files(Begin(dataclasses.replace(WORK, files={"a": digest(b"x"), "a/b": digest(b"x")})))


FINALS = CompareAsked(WORK, "run", {"3": {"a.cl": digest(b"y")}}, (Finalist(3, "id", {"A": 1}),), 1, 9, None)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (dataclasses.replace(NODE, race=Race({"small": 0.0}, 0.5)), "times that are none"),
        (dataclasses.replace(NODE, race=Race({"small": 1.0}, -1.0)), "times that are none"),
        (dataclasses.replace(FINALS, nodes={"3; rm": {}, "3": {}}), "no number of a node"),
        (dataclasses.replace(FINALS, entries=(Finalist(4, "id", {}),)), "node 4"),
        (dataclasses.replace(FINALS, count=0), "finalists"),
        (dataclasses.replace(FINALS, rounds=10**9), "rounds"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_done(request_: Request, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        all_files(request_)
    assert all_files(FINALS) == {digest(b"x"), digest(b"y")}


# -- the folder


def test_a_request_of_the_same_id_is_written_once(tmp_path: Path) -> None:
    spool = SpoolFolder(tmp_path / "spool")
    spool.put("requests", ID, Begin(WORK))
    spool.put("requests", ID, NODE)
    assert spool.message("requests", ID) == Begin(WORK)


def test_a_file_under_another_name_is_not_read(tmp_path: Path) -> None:
    spool = SpoolFolder(tmp_path / "spool")
    spool.put("requests", ID, Begin(WORK))
    other = content_id("another request")
    os.link(tmp_path / "spool" / "requests" / f"{ID}.json", tmp_path / "spool" / "requests" / f"{other}.json")
    assert spool.message("requests", other) is None


def test_files_are_known_by_their_content(tmp_path: Path) -> None:
    spool = SpoolFolder(tmp_path / "spool")
    name = spool.put_file(b"kernel")
    assert spool.file(name) == b"kernel"
    path = tmp_path / "spool" / "files" / name
    path.write_bytes(b"kern")
    assert spool.file(name) is None
    assert spool.put_file(b"kernel") == name
    assert spool.file(name) == b"kernel"
    assert spool.file("../requests/x") is None


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    spool = SpoolFolder(tmp_path / "spool")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "spool" / "files" / digest(b"secret")).symlink_to(tmp_path / "secret")
    assert spool.file(digest(b"secret")) is None
    os.mkfifo(tmp_path / "spool" / "requests" / f"{ID}.json")
    assert spool.message("requests", ID) is None


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(StoreError, match="something else"):
        SpoolFolder(tmp_path)


# -- claims


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_one_worker_has_a_request_until_its_lease_is_over(tmp_path: Path) -> None:
    now = Time()
    first, second = (Claims(tmp_path, lease_s=60, now=now) for _ in range(2))
    second._host = "another"
    assert first.earlier_attempts(ID) == 0
    claim = first.take(ID)
    assert claim is not None
    assert claim.attempt == 1
    assert second.earlier_attempts(ID) is None
    assert second.take(ID) is None
    now.now_s += 61
    assert second.earlier_attempts(ID) == 1
    taken = second.take(ID)
    assert taken is not None
    assert taken.attempt == 2
    second.give_back(ID)
    assert first.earlier_attempts(ID) == 0
    assert not list(tmp_path.iterdir())


def test_a_claim_of_a_process_that_is_gone_is_over_at_once(tmp_path: Path) -> None:
    claims = Claims(tmp_path, now=Time())
    gone = Lease(claims._host, 2**22 + 1, 1e12, 2)
    claims._written(gone).replace(tmp_path / f"{ID}.json")
    assert claims.earlier_attempts(ID) == 2
    taken = claims.take(ID)
    assert taken is not None
    assert taken.attempt == 3


def test_half_a_claim_counts_until_it_is_old(tmp_path: Path) -> None:
    now = Time()
    claims = Claims(tmp_path, lease_s=60, now=now)
    path = tmp_path / f"{ID}.json"
    path.write_text('{"host": "x", "pro')
    os.utime(path, (now.now_s, now.now_s))
    assert claims.take(ID) is None
    now.now_s += 61
    assert claims.take(ID) is not None


# -- what a worker leaves


def test_what_cannot_be_done_is_left_and_said(tmp_path: Path) -> None:
    spool = SpoolFolder(tmp_path / "spool")
    spool.put("requests", ID, Begin(WORK))
    torn = tmp_path / "spool" / "requests" / f"{content_id('torn')}.json"
    torn.write_bytes(encode("begin", content_id("torn"), Begin(WORK))[:-9])
    newer = tmp_path / "spool" / "requests" / f"{content_id('newer')}.json"
    today = encode("begin", content_id("newer"), Begin(WORK))
    newer.write_bytes(today.replace(b'{"spool":%d' % FORMAT, b'{"spool":9', 1))
    evil = Begin(dataclasses.replace(WORK, files={"../../x": digest(b"x")}))
    spool.put("requests", content_id("evil"), evil)
    other = tmp_path / "spool" / "requests" / f"{content_id('other')}.json"
    other.write_bytes(encode("worker", content_id("other"), {"a": 1}))
    ended = worker(tmp_path / "spool").run(until_idle=True)
    assert ended.done == ended.refused == 0
    reasons = {identity: ended.left[content_id(identity)] for identity in ("torn", "newer", "evil", "other")}
    assert "incomplete" in reasons["torn"]
    assert "spool format 9" in reasons["newer"]
    assert "plain path" in reasons["evil"]
    assert "cannot be read" in reasons["other"]
    assert "files are not here" in ended.left[ID]
