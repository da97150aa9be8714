"""The folder between the two machines.

```
DIR/
  requests/ID.json   what is asked for
  results/ID.json    what came of it; a request with a whole result is done
  files/SHA256       the files of problems, by their content
  claims/ID.json     which worker is at it, and until when it is believed to be
  ended/ID           nobody waits for it any more
  workers/NAME.json  who was here, and with which devices
```

Every file is written under another name and renamed, and says what its bytes must be, so that whoever copies the
folder may do so at any time, in any order, in parts and twice.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from kernelwright.errors import StoreError
from kernelwright.remote import envelope
from kernelwright.remote.envelope import ID, MOST_FILE_BYTES, MOST_MESSAGE_BYTES, digest, read_plain
from kernelwright.remote.messages import Message, kind_of, parse
from kernelwright.store.files import explain, write_atomically

PARTS = ("requests", "results", "files", "claims", "ended", "workers")

_DIGEST = re.compile(r"[0-9a-f]{64}")
_WORKER = re.compile(r"[A-Za-z0-9._-]{1,100}")


class SpoolFolder:
    """See the module. Any number of processes may use it at once."""

    def __init__(self, path: Path) -> None:
        """Make what is missing.

        Raises:
            StoreError: it cannot be written, or is something else.
        """
        self.path = Path(path)
        if self.path.is_dir() and not any((self.path / part).is_dir() for part in PARTS) and any(self.path.iterdir()):
            raise StoreError(
                f"{self.path} is a folder of something else", hint="name a spool, or a folder that does not exist yet"
            )
        try:
            for part in PARTS:
                (self.path / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain(error, "create the spool", self.path) from error

    # -- files ---------------------------------------------------------------------------------------------------

    def put_file(self, data: bytes) -> str:
        """Keep a file; gives its digest. What is there already is not written again.

        Raises:
            StoreError: it is too large, or cannot be written.
        """
        if len(data) > MOST_FILE_BYTES:
            raise StoreError(f"a file of {len(data) >> 20} MiB; a spool takes at most {MOST_FILE_BYTES >> 20} MiB")
        name = digest(data)
        path = self.path / "files" / name
        with contextlib.suppress(OSError):
            if path.stat().st_size == len(data) and self.file(name) is not None:
                return name
        self._write(path, data)
        return name

    def put_files(self, files: Mapping[str, bytes]) -> dict[str, str]:
        """Keep the files of a problem; by path their digests."""
        return {name: self.put_file(data) for name, data in files.items()}

    def file(self, name: str) -> bytes | None:
        """The file of a digest; None: it is not here, or not whole yet."""
        if not _DIGEST.fullmatch(name):
            return None
        data = read_plain(self.path / "files" / name, most_bytes=MOST_FILE_BYTES)
        return data if data is not None and digest(data) == name else None

    def files(self, names: Mapping[str, str]) -> dict[str, bytes]:
        """The files of a problem by path.

        Raises:
            StoreError: one is not here.
        """
        found: dict[str, bytes] = {}
        for path, name in names.items():
            data = self.file(name)
            if data is None:
                raise StoreError(f"the spool does not hold {path} ({name[:16]}...)", hint="copy the whole spool")
            found[path] = data
        return found

    # -- messages ------------------------------------------------------------------------------------------------

    def put(self, part: str, identity: str, message: Message) -> None:
        """Write a message, unless a whole one of this id is there.

        Raises:
            StoreError: it cannot be written.
        """
        if self.message(part, identity) is None:
            self.replace(part, identity, message)

    def replace(self, part: str, identity: str, message: Message) -> None:
        """Write a message in the place of any that is there."""
        self._write(self._at(part, identity), envelope.encode(kind_of(message), identity, message))

    def message(self, part: str, identity: str) -> Message | None:
        """A message; None: it is not here, or not whole yet.

        Raises:
            SpoolTooNew: it is of a newer format.
            StoreError: it is whole, and nothing that this version understands.
        """
        path = self._at(part, identity)
        data = read_plain(path, most_bytes=MOST_MESSAGE_BYTES + envelope.MOST_HEAD_BYTES)
        found = envelope.decode(data, file=path) if data is not None else None
        if found is None or found.id != identity:
            return None
        return parse(found.kind, found.body)

    def ids(self, part: str) -> Iterator[tuple[str, float, int]]:
        """Id, time of change and size of what lies in a part, whole or not, the oldest first."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path / part) as entries:
            for entry in entries:
                identity = entry.name.removesuffix(".json")
                if ID.fullmatch(identity) and entry.name.endswith(".json"):
                    with contextlib.suppress(OSError):
                        facts = entry.stat(follow_symlinks=False)
                        found.append((identity, facts.st_mtime, facts.st_size))
        yield from sorted(found, key=lambda each: (each[1], each[0]))

    # -- ends ----------------------------------------------------------------------------------------------------

    def end(self, identity: str) -> None:
        """Say that nobody waits for a request any more."""
        with contextlib.suppress(OSError):
            (self.path / "ended" / identity).touch()

    def is_ended(self, identity: str) -> bool:
        """Whether nobody waits for it any more."""
        return (self.path / "ended" / identity).exists()

    # -- inside --------------------------------------------------------------------------------------------------

    def _at(self, part: str, identity: str) -> Path:
        if not (ID.fullmatch(identity) or (part == "workers" and _WORKER.fullmatch(identity))):
            raise StoreError(f"{identity[:80]!r} is no id")
        return self.path / part / f"{identity}.json"

    def _write(self, path: Path, data: bytes) -> None:
        try:
            write_atomically(path, data)
        except OSError as error:
            raise explain(error, "write to the spool", path) from error
