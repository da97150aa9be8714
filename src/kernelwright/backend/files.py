"""Copies of folders that other processes read or write meanwhile."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def add_tree(source: Path, target: Path) -> None:
    """Copy the files that a folder does not have, each into a new one that is there completely or not at all.

    `target` is there; where it is removed meanwhile, it is not made again, and that is an `OSError`.
    Links and what is no regular file stay behind: whoever wrote `source` may have had a kernel run in its process.
    """
    for root, _, names in os.walk(source):
        here = target / Path(root).relative_to(source)
        if here != target:
            here.mkdir(exist_ok=True)
        for name in names:
            file = Path(root) / name
            if not (here / name).exists() and file.is_file() and not file.is_symlink():
                _copy_whole(file, here / name)


def _copy_whole(source: Path, target: Path) -> None:
    """Copy a file to where it is there completely or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".new-")
    os.close(descriptor)
    shutil.copyfile(source, temporary)
    Path(temporary).chmod(0o644)  # others may read a cache that they share
    Path(temporary).rename(target)
