"""Texts and bytes by content id: sources, logs and profiles that events refer to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kernelwright.errors import Location, StoreError
from kernelwright.identity import ID_LENGTH, content_id
from kernelwright.store.files import explain, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

_ID = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")


class BlobStore:
    """One file a blob, named by the id of its content, so that a blob never changes.

    Any number of processes may put and get at once; putting the same content twice stores it once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, data: str | bytes) -> str:
        """Store `data` (a text as UTF-8) and return its id. It is on the disk when this returns.

        Raises:
            StoreError: it cannot be written.
        """
        content = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else bytes(data)
        identity = content_id(content)
        path = self.folder / identity
        try:
            if not self._is_whole(path, content):
                self.folder.mkdir(exist_ok=True)
                write_atomically(path, content)
        except OSError as error:
            raise explain(error, "write", path) from error
        return identity

    def get(self, identity: str) -> bytes:
        """The content whose id is `identity`, byte for byte.

        Raises:
            StoreError: there is none, or what is there is damaged.
        """
        path = self.folder / identity
        if not _ID.fullmatch(identity):
            raise StoreError(f"{identity!r} is not the id of a blob: {ID_LENGTH} hexadecimal digits were expected")
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise StoreError(
                f"the run has no blob {identity}",
                hint="copy the whole run folder: its blobs/ belongs to it",
                location=Location(self.folder),
            ) from error
        except OSError as error:
            raise explain(error, "read", path) from error
        if content_id(content) != identity:
            raise StoreError(
                "this blob is damaged: its content is not that of its name",
                hint="restore it from a copy of the run folder",
                location=Location(path),
            )
        return content

    def get_text(self, identity: str) -> str:
        """The text whose id is `identity`; bytes that are not UTF-8 appear as U+FFFD.

        Raises:
            StoreError: there is none, or what is there is damaged.
        """
        return self.get(identity).decode("utf-8", "replace")

    def __contains__(self, identity: str) -> bool:
        return bool(_ID.fullmatch(identity)) and (self.folder / identity).is_file()

    def _is_whole(self, path: Path, content: bytes) -> bool:
        """Whether the blob is already there; one that a crash or a bad disk damaged is written again."""
        try:
            return path.read_bytes() == content
        except FileNotFoundError:
            return False
