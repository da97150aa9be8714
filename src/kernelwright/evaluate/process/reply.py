"""Unpickling of what an untrusted worker sent: plain data, NumPy arrays and data classes of the package alone.

A kernel can write into its worker's memory, hence into what the worker sends. A plain unpickler would let it
call any function in the parent, which decides about it.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import io
import pickle
import struct
from types import MappingProxyType

from kernelwright.errors import KernelwrightError

_SAFE_BUILTINS = frozenset({"set", "frozenset", "bytearray", "complex", "range", "slice", "object"})

_SAFE_NAMES = MappingProxyType(
    {
        "collections": frozenset({"OrderedDict", "Counter", "deque"}),
        "datetime": frozenset({"datetime", "date", "timedelta", "timezone"}),
        "pathlib": frozenset({"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"}),
        "pathlib._local": frozenset({"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"}),
        "numpy": frozenset({"ndarray", "dtype"}),
        "numpy._core.multiarray": frozenset({"_reconstruct", "scalar"}),
        "numpy._core.numeric": frozenset({"_frombuffer"}),
        "numpy.core.multiarray": frozenset({"_reconstruct", "scalar"}),
        "numpy.core.numeric": frozenset({"_frombuffer"}),
        "kernelwright.errors": frozenset({"_rebuild"}),
    }
)


_DAMAGED = (
    ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError, KernelwrightError, LookupError,
    MemoryError, NameError, OSError, RuntimeError, TypeError, ValueError, pickle.PickleError, struct.error,
)  # fmt: skip
"""What unpickling damaged bytes raises; what runs is `pickle` and the constructors that may be named."""


class UntrustedReply(Exception):
    """A reply is damaged or asks for something that data never needs."""


class _ReplyUnpickler(pickle.Unpickler):
    def __init__(self, body: bytes, packages: frozenset[str]) -> None:
        super().__init__(io.BytesIO(body))
        self._packages = packages

    def find_class(self, module: str, name: str) -> object:
        if name in _SAFE_NAMES.get(module, ()):
            return getattr(importlib.import_module(module), name)
        if module == "builtins":
            found = getattr(importlib.import_module("builtins"), name, None)
            if name in _SAFE_BUILTINS or (isinstance(found, type) and issubclass(found, Exception)):
                return found
        if module.partition(".")[0] in self._packages and "." not in name:
            found = getattr(importlib.import_module(module), name, None)
            if _is_own_data_class(found, module):
                return found
        raise UntrustedReply(
            f"a worker's reply holds {module}.{name}, which is neither plain data, a NumPy array nor a "
            f"data class of {' or '.join(sorted(self._packages))}"
        )


def _is_own_data_class(found: object, module: str) -> bool:
    if not isinstance(found, type) or found.__module__ != module:
        return False
    return dataclasses.is_dataclass(found) or issubclass(found, Exception | enum.Enum) or found.__name__ == "Config"


def loads_reply(body: bytes, package: str = "kernelwright") -> object:
    """The object in `body`.

    Args:
        body: what the worker sent.
        package: the one whose factory made the worker: its data classes may be sent too.

    Raises:
        UntrustedReply: it is damaged, or names a class or function that is not on the list.
    """
    try:
        return _ReplyUnpickler(body, frozenset({"kernelwright", package})).load()
    except _DAMAGED as error:
        raise UntrustedReply(f"a worker's reply cannot be read: {type(error).__name__}: {error}") from error
