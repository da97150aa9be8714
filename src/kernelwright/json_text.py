"""JSON that others wrote: in files, in replies. Whatever cannot be read is one kind of error."""

from __future__ import annotations

import json
from typing import Any


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
