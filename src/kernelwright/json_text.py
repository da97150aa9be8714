"""JSON that others wrote: in files, in replies. Whatever cannot be read is one kind of error."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 30
"""The most in a compressed file: a small one can hold any number of bytes."""

_GZIP = b"\x1f\x8b"


def read_json_bytes(path: Path, *, most: int | None = None) -> bytes:
    """What a JSON file holds, compressed by gzip or not, whatever its name is.

    Args:
        path: the file.
        most: how many bytes of its beginning are wanted; None: all.

    Raises:
        OSError: it cannot be read.
        json.JSONDecodeError: it is compressed and damaged, or too long.
    """
    with path.open("rb") as stream:
        is_compressed = stream.read(len(_GZIP)) == _GZIP
        stream.seek(0)
        if not is_compressed:
            return stream.read() if most is None else stream.read(most)
        try:
            with gzip.open(stream) as unpacked:
                content = unpacked.read(MOST_BYTES + 1 if most is None else most)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise json.JSONDecodeError(f"it is compressed and damaged: {error}", "", 0) from None
    if len(content) > MOST_BYTES:
        raise json.JSONDecodeError(f"it is compressed and holds more than {MOST_BYTES:,} bytes", "", 0)
    return content


def read_json_text(text: str | bytes) -> Any:
    """What a JSON text says.

    Raises:
        json.JSONDecodeError: it is no JSON or not UTF-8, is nested too deeply, or has a number that is too long.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", "", 0) from None
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError(f"it is not {error.encoding.upper()}", "", 0) from None
    except ValueError:  # Python's limit on the digits of an integer
        raise json.JSONDecodeError("a number is too long", "", 0) from None
