"""Whether the frozen problem in a run folder is still what the run recorded.

The run's first event holds one content id of all files (`problem_id`): that decides. `problem.sha256` beside the
folder, one line a file as `sha256sum` writes and checks them, only tells which file it was; older runs have none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from kernelwright.errors import StoreError
from kernelwright.identity import content_id

if TYPE_CHECKING:
    from collections.abc import Iterator

MANIFEST_NAME = "problem.sha256"

_LEFTOVER = re.compile(r"(~|#|\.sw[a-p]|\.pyc(\.\d+)?|\.DS_Store|Thumbs\.db|desktop\.ini)\Z")
"""How the names end of what editors, Python and file managers leave in a folder that somebody looked into."""

_HINT = (
    "what was measured holds for the recorded files only: restore them from a copy of the run, or make a new run of "
    "what is there now"
)


def manifest(files: Mapping[str, bytes]) -> bytes:
    """The text of `problem.sha256`: `sha256sum --check problem.sha256` in the run folder reads it too."""
    lines = (f"{hashlib.sha256(data).hexdigest()}  problem/{name}\n" for name, data in files.items())
    return "".join(lines).encode()


def recorded_files(folder: Path, files: Mapping[str, bytes], problem_id: str) -> Mapping[str, bytes]:
    """The files as they were recorded, without what an editor or Python left beside them.

    Args:
        folder: the run folder.
        files: what is in its `problem/` now.
        problem_id: what the run's first event says; empty: nothing, so that all files are taken as they are.

    Raises:
        StoreError: they are others; the message names the file where the run can tell which.
    """
    if not problem_id or content_id(dict(files)) == problem_id:
        return files
    kept = {name: data for name, data in files.items() if _LEFTOVER.search(name) is None}
    if content_id(kept) == problem_id:
        return kept
    known = _read_manifest(folder / MANIFEST_NAME)
    path, complaint = next(_differences(folder, kept, known), (folder / "problem", ""))
    if not complaint:
        complaint = "is not what this run recorded: one of its files was changed, added or removed"
    raise StoreError(f"{path} {complaint}", hint=_HINT)


def _differences(folder: Path, files: Mapping[str, bytes], known: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Paths with what is wrong with each: the changed before the missing and the added ones."""
    if not known:
        return
    problem = folder / "problem"
    for name, digest in known.items():
        if name in files and hashlib.sha256(files[name]).hexdigest() != digest:
            yield problem / name, "is not what this run recorded: it was changed"
    for name in known:
        if name not in files:
            yield problem / name, "is missing: it is part of what this run recorded"
    for name in files:
        if name not in known:
            yield problem / name, "is not what this run recorded: it was added"


def _read_manifest(path: Path) -> dict[str, str]:
    """Digests by path inside `problem/`; empty where the file is missing, or is not one that was written here."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    found = {}
    for line in lines:
        digest, _, name = line.partition("  ")
        if PurePosixPath(name).parts[:1] != ("problem",):
            return {}
        found[name.removeprefix("problem/")] = digest
    return found
