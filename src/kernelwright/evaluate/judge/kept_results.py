"""Arrays in files: results that memory has no room for, and what a device's process reads.

The results lie in files without a name, which end with the process. No other process finds them by a path, so nothing
that runs a candidate does.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FREE_SHARE = 0.5
"""The share of the folder's free space that one more result may take: others write there, too."""


class KeptResults:
    """Arrays by key; not thread-safe."""

    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        """Nothing is written yet.

        Args:
            folder: on whose file system the files are.
            most_bytes: of all arrays together.
        """
        self._folder = folder
        self._left_bytes = most_bytes
        self._files: dict[Hashable, tuple[IO[bytes], Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]]] = {}

    def put(self, key: Hashable, arrays: Mapping[str, Array]) -> None:
        """Keep the arrays, unless that is done already or there is no room: then they are computed again."""
        byte_count = sum(each.nbytes for each in arrays.values())
        if key in self._files or byte_count > self._left_bytes:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            if byte_count > FREE_SHARE * shutil.disk_usage(self._folder).free:
                return
            file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  # open as long as it is kept
            for each in arrays.values():
                file.write(np.ascontiguousarray(each).reshape(-1).view(np.uint8).data)
            file.flush()
            self._files[key] = file, {name: (each.dtype, each.shape) for name, each in arrays.items()}
            self._left_bytes -= byte_count

    def get(self, key: Hashable) -> dict[str, Array] | None:
        """The arrays; None where they are not kept."""
        if key not in self._files:
            return None
        file, known = self._files[key]
        file.seek(0)
        found: dict[str, Array] = {}
        for name, (dtype, shape) in known.items():
            found[name] = np.empty(shape, dtype)
            if file.readinto(found[name].reshape(-1).view(np.uint8).data) != found[name].nbytes:  # type: ignore[attr-defined]
                return None
        return found


def write_once(path: Path, values: Array) -> None:
    """All bytes or no file; read-only. Several threads may write the same."""
    partial = path.with_suffix(f".{threading.get_ident()}.part")
    values.reshape(-1).view(np.uint8).tofile(partial)
    partial.chmod(0o444)
    partial.rename(path)
