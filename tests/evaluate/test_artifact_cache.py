"""The artifact cache holds complete entries only, whoever dies when, and stays within its size."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kernelwright.backend.base import Artifact, BuildUnit
from kernelwright.errors import InfrastructureError, StoreError
from kernelwright.evaluate.builds import artifact_cache
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.problem.outcome import Failed
from kernelwright.testing.fault_backend import FAULT_DEVICE

UNIT = BuildUnit("opencl", "kernel", "k.cl", (("N", "4"),), ("-O",), ("k",))


@pytest.fixture
def cache(tmp_path):
    return ArtifactCache(tmp_path / "cache")


def key_of(cache, unit=UNIT, device=FAULT_DEVICE, toolchain_id="t1"):
    return cache.key(unit, device, toolchain_id=toolchain_id)


def store(cache, unit=UNIT, *, content=b"binary") -> Artifact:
    with cache.stage() as folder:
        (folder / "program.bin").write_bytes(content)
        artifact = Artifact(unit, FAULT_DEVICE.id, folder, {"k": {"registers_per_thread": 32.0}}, "warning: x")
        return cache.keep(key_of(cache, unit), artifact)


def test_artifact_comes_back_as_it_was(cache):
    assert cache.get(key_of(cache), UNIT, FAULT_DEVICE) is None
    stored = store(cache)
    found = cache.get(key_of(cache), UNIT, FAULT_DEVICE)
    assert found == stored
    assert (found.folder / "program.bin").read_bytes() == b"binary"
    assert pickle.loads(pickle.dumps(found)) == stored


def test_failure_comes_back_as_it_was(cache):
    failure = Failed("build", "compile-error", "k.cl:1:2: no", "long log")
    cache.commit_failure(key_of(cache), UNIT, FAULT_DEVICE, failure)
    found = cache.get(key_of(cache), UNIT, FAULT_DEVICE)
    assert found == failure


@pytest.mark.parametrize(
    "changed",
    [
        {"source": "other"}, {"file_name": "l.cl"}, {"macros": (("N", "5"),)}, {"options": ()},
        {"entries": ("l",)}, {"language": "cuda"}, {"include_digest": "d"},
    ],
)  # fmt: skip
def test_every_field_of_a_unit_is_in_the_key(cache, changed):
    assert key_of(cache, replace(UNIT, **changed)) != key_of(cache)


def test_device_and_toolchain_are_in_the_key(cache):
    keys = {
        key_of(cache),
        key_of(cache, toolchain_id="t2"),
        key_of(cache, device=replace(FAULT_DEVICE, id="fault:1")),
    }
    assert len(keys) == 3


def test_first_of_two_writers_wins_and_both_get_its_files(cache):
    first = store(cache, content=b"first")
    second = store(cache, content=b"second")
    assert first == second
    assert (second.folder / "program.bin").read_bytes() == b"first"
    assert list((cache.folder / "staging").iterdir()) == []


def test_error_while_building_leaves_nothing(cache):
    def build():
        with cache.stage() as folder:
            (folder / "half").write_bytes(b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        build()
    assert list((cache.folder / "staging").iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 99, "unit_id": "x"}', b"\0" * 100])
def test_damaged_entry_is_absent_and_is_replaced(cache, damage):
    (store(cache).folder / "entry.json").write_bytes(damage)
    assert cache.get(key_of(cache), UNIT, FAULT_DEVICE) is None
    store(cache, content=b"fresh")
    assert cache.get(key_of(cache), UNIT, FAULT_DEVICE) is not None


def test_killed_writers_leave_only_complete_entries(tmp_path):
    """Processes that write as fast as they can are killed at arbitrary moments."""
    folder = tmp_path / "cache"
    script = textwrap.dedent(f"""
        import sys
        from dataclasses import replace
        from pathlib import Path
        from kernelwright.backend.base import Artifact, BuildUnit
        from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
        from kernelwright.testing.fault_backend import FAULT_DEVICE
        cache = ArtifactCache(Path({str(folder)!r}))
        unit = BuildUnit("opencl", "", "k.cl", (), (), ("k",))
        for index in range(10**6):
            mine = replace(unit, source=str(index))
            with cache.stage() as staged:
                for name in "abc":
                    (staged / name).write_bytes(str(index).encode() * 1000)
                artifact = Artifact(mine, FAULT_DEVICE.id, staged, {{"k": {{}}}})
                cache.keep(cache.key(mine, FAULT_DEVICE, toolchain_id="t1"), artifact)
            if not index:
                print("it writes", flush=True)
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    writers = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE) for _ in range(2)
    ]
    for writer in writers:
        writer.stdout.readline()
    time.sleep(0.15)
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
    cache = ArtifactCache(folder)
    found = 0
    for entry in (folder / "entries").glob("*/*"):
        data = (entry / "a").read_bytes()
        source = data[: len(data) // 1000].decode()
        unit = BuildUnit("opencl", source, "k.cl", (), (), ("k",))
        artifact = cache.get(entry.name, unit, FAULT_DEVICE)
        for name in "abc":
            assert (artifact.folder / name).read_bytes() == source.encode() * 1000
        found += 1
    assert found > 0
    cache.evict()
    assert list((folder / "staging").iterdir()) == [], "what the dead left is removed"


def test_least_recently_used_entries_are_evicted_first(tmp_path):
    cache = ArtifactCache(tmp_path / "cache", size_limit_bytes=300_000)
    units = [replace(UNIT, source=str(index)) for index in range(6)]
    now = time.time()
    for age, unit in enumerate(reversed(units)):
        artifact = store(cache, unit, content=b"x" * 90_000)
        os.utime(artifact.folder / "entry.json", (0, now - 3600 * (age + 1)))
    cache.get(key_of(cache, units[0]), units[0], FAULT_DEVICE)  # the oldest of all is used again
    cache.evict()
    kept = [unit.source for unit in units if cache.get(key_of(cache, unit), unit, FAULT_DEVICE)]
    assert kept == ["0", "4", "5"], "the one just used, and the two youngest"


def test_entries_in_use_are_not_evicted(tmp_path):
    cache = ArtifactCache(tmp_path / "cache", size_limit_bytes=1)
    store(cache)
    assert cache.evict() == 0
    assert cache.get(key_of(cache), UNIT, FAULT_DEVICE) is not None


def test_staging_of_the_living_is_left_alone(cache):
    with cache.stage() as folder:
        (folder / "half").write_bytes(b"x")
        cache.evict()
        assert (folder / "half").exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_the_machines_failure_and_says_where(cache, monkeypatch, code):
    def full(*_, **__):
        raise OSError(code, os.strerror(code))

    with cache.stage() as folder:
        monkeypatch.setattr(Path, "write_text", full)
        artifact = Artifact(UNIT, FAULT_DEVICE.id, folder, {})
        with pytest.raises(InfrastructureError, match="full disk") as caught:
            cache.keep(key_of(cache), artifact)
    assert str(cache.folder) in str(caught.value)
    assert "KERNELWRIGHT_CACHE_DIR" in caught.value.hint


def test_an_entry_has_files_of_its_own_whoever_holds_the_builders_open(cache, tmp_path):
    built = tmp_path / "built"
    built.mkdir()
    (built / "program.bin").write_bytes(b"binary")
    (built / "link").symlink_to(built / "program.bin")
    with (built / "program.bin").open("r+b") as kept_open:
        stored = cache.keep(key_of(cache), Artifact(UNIT, FAULT_DEVICE.id, built, {"k": {}}))
        kept_open.write(b"poison")
    assert (stored.folder / "program.bin").read_bytes() == b"binary"
    assert not (stored.folder / "link").exists()


def test_what_is_added_to_an_entry_replaces_nothing(cache, tmp_path):
    stored = store(cache)
    before = (stored.folder / "entry.json").read_bytes()
    added = tmp_path / "added"
    added.mkdir()
    for name in ("program.bin", "entry.json", "new"):
        (added / name).write_bytes(b"added")
    cache.add(key_of(cache), added)
    assert (stored.folder / "entry.json").read_bytes() == before
    assert (stored.folder / "program.bin").read_bytes() == b"binary"
    assert (stored.folder / "new").read_bytes() == b"added"
    cache.add("0" * 16, added)  # an entry that was evicted meanwhile
    assert cache.get("0" * 16, UNIT, FAULT_DEVICE) is None


def test_an_entry_that_goes_while_it_is_added_to_leaves_nothing_and_can_be_built_again(cache, tmp_path, monkeypatch):
    stored, key = store(cache), key_of(cache)
    added = tmp_path / "added"
    (added / "deep").mkdir(parents=True)
    for name in ("new", "deep/new", "deep/newer"):
        (added / name).write_bytes(b"added")
    renamed, plain = [], Path.rename

    def evicting(path, target):
        plain(path, target)
        renamed.append(target)
        if len(renamed) == 1:
            shutil.rmtree(stored.folder)

    monkeypatch.setattr(Path, "rename", evicting)
    cache.add(key, added)
    monkeypatch.undo()
    assert len(renamed) == 1
    assert not stored.folder.exists()
    assert cache.get(key, UNIT, FAULT_DEVICE) is None
    assert (store(cache).folder / "program.bin").exists()


def test_what_is_left_of_an_entry_is_no_entry(cache):
    stored, key = store(cache), key_of(cache)
    (stored.folder / "entry.json").unlink()
    again = store(cache, content=b"again")
    assert cache.get(key, UNIT, FAULT_DEVICE) == again
    assert (again.folder / "program.bin").read_bytes() == b"again"


def test_what_is_left_of_an_entry_is_evicted(tmp_path):
    cache = ArtifactCache(tmp_path / "cache", size_limit_bytes=1)
    folder = store(cache).folder
    (folder / "entry.json").unlink()
    assert cache.evict() == 0, "someone may be about to complete it"
    os.utime(folder, (0, time.time() - 3600))
    assert cache.evict() == 1
    assert not folder.exists()


def test_a_removed_cache_is_made_again(cache):
    store(cache)
    shutil.rmtree(cache.folder)
    assert cache.get(key_of(cache), UNIT, FAULT_DEVICE) is None
    found = store(cache)
    assert cache.get(key_of(cache), UNIT, FAULT_DEVICE) == found
    shutil.rmtree(cache.folder / "staging")
    cache.evict()


def test_folder_that_cannot_be_made_is_the_users_to_fix(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be made"):
        ArtifactCache(tmp_path / "file" / "cache")


def test_marks_are_by_entry_and_name(cache):
    store(cache)
    key = key_of(cache)
    cache.mark(key, "a")
    assert (cache.has_mark(key, "a"), cache.has_mark(key, "b")) == (True, False)
    cache.mark("0" * 16, "a")  # an entry that was evicted meanwhile: nothing to note, no error
    assert not cache.has_mark("0" * 16, "a")


def test_eviction_looks_at_the_size_after_many_commits(tmp_path, monkeypatch):
    monkeypatch.setattr(artifact_cache, "MIN_AGE_S", -10.0)
    monkeypatch.setattr(artifact_cache, "EVICTION_INTERVAL", 5)
    cache = ArtifactCache(tmp_path / "cache", size_limit_bytes=100_000)
    for index in range(20):
        store(cache, replace(UNIT, source=str(index)), content=b"x" * 50_000)
    assert len(list((cache.folder / "entries").glob("*/*"))) < 8
