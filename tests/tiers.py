"""How much of what is drawn at random a run of the tests tries."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

TIMES = 1
"""What `pytest --times` says: so many times as many random programs, configurations and examples as both tiers have."""

WHOLE = 100
"""The examples of a test that names no number of its own, in both tiers."""


def examples(count: int, **others: Any) -> settings:
    """So many examples in both tiers; in the first one, or with `--times`, in proportion to the profile's."""
    return settings(max_examples=max(1, count * settings.default.max_examples // WHOLE), **others)
