"""A fence that keeps this process from writing outside of its own folders, whatever code comes to run in it.

Kept artifacts, references, other workers' files and other processes' memory in /proc are out of reach then. Linux with
Landlock only (5.13 on); https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls, of the same number on all machines
_ASK_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))  # remove and make files, folders, links, devices, sockets
_SINCE = {_REFER: 2, _TRUNCATE: 3}
"""The version from which a right is known."""


def fence_writes(folders: Sequence[Path]) -> str:
    """Let this thread, and all that it starts from now on, write into these folders only; reading stays as it was.

    Returns:
        Why that cannot be; empty: it is so.
    """
    if sys.platform != "linux":
        return "not on Linux"
    version = _call(_CREATE_RULESET, None, 0, _ASK_VERSION)
    if version < 1:
        return "the system has no Landlock"
    rights = _WRITE_FILE | _CHANGE_FOLDERS | sum(right for right, since in _SINCE.items() if version >= since)
    asked = struct.pack("=Q", rights)
    ruleset = _call(_CREATE_RULESET, asked, len(asked), 0)
    if ruleset < 0:
        return f"Landlock refuses a ruleset: {os.strerror(ctypes.get_errno())}"
    try:
        for folder in folders:
            _allow(ruleset, folder, rights)
        _allow(ruleset, Path(os.devnull), rights & (_WRITE_FILE | _TRUNCATE))
        _library().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        if _call(_RESTRICT_SELF, ruleset, 0):
            return f"Landlock refuses to begin: {os.strerror(ctypes.get_errno())}"
    except OSError as error:
        return f"Landlock does not take a folder: {error}"
    finally:
        os.close(ruleset)
    return ""


def _allow(ruleset: int, path: Path, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(place)


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: int | bytes | None) -> int:
    words = [ctypes.c_long(each) if isinstance(each, int) else ctypes.c_char_p(each) for each in arguments]
    return int(_library().syscall(ctypes.c_long(number), *words))
