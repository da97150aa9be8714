"""A job, once its code is built."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from kernelwright.backend.base import Artifact, BuildUnit
from kernelwright.evaluate.device.arena import Job


def built_job(job: Job, artifact: Artifact) -> Job:
    """What the device is to launch, with the code that was built for it."""
    return replace(job, code=artifact, has_local_memory=shares_memory(artifact))


_SHARED = re.compile(r"\b(?:__local|local|__shared__)\b|##|\\\r?\n")
"""Words for memory of a block, and what such a word could be pasted from."""


def may_share_memory(unit: BuildUnit) -> bool:
    """Whether a unit may declare memory that threads of a block share; included files are not looked into."""
    texts = (unit.source, *(value for _, value in unit.macros))
    return bool(unit.include_paths) or any(_names_shared(text) for text in texts)


def shares_memory(artifact: Artifact) -> bool:
    """Whether threads of a block may share memory: by the source, or because the driver says so of what was built."""
    is_told = any(figures.get("local_memory_bytes") for figures in artifact.resources.values())
    return is_told or may_share_memory(artifact.unit)


@lru_cache(maxsize=1024)  # the same sources and values come again and again
def _names_shared(text: str) -> bool:
    return _SHARED.search(text) is not None
