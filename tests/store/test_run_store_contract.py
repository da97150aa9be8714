"""The store's promises, kept by the file and by the store in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from memory_store import MemoryPlace

from kernelwright.store.log import EventLog
from kernelwright.testing.contracts_store import RunStoreContract, StoreLocation

if TYPE_CHECKING:
    from pathlib import Path

    from kernelwright.store.base import RunStore


class FilePlace:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.jsonl"
        self._writer: EventLog | None = None

    def writer(self) -> RunStore:
        self._leave()
        self._writer = EventLog(self.path).open()
        return self._writer

    def reader(self) -> RunStore:
        return EventLog(self.path)

    def content(self) -> bytes:
        return self.path.read_bytes()

    def replace(self, content: bytes) -> None:
        self._leave()
        self.path.write_bytes(content)

    def _leave(self) -> None:
        if self._writer is not None:
            self._writer.close()


class TestFileStore(RunStoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> StoreLocation:
        return FilePlace(tmp_path)


class TestMemoryStore(RunStoreContract):
    @pytest.fixture
    def place(self) -> StoreLocation:
        return MemoryPlace()
