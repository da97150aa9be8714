"""The few environment variables that Kernelwright reads, each one documented here and nowhere else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

SHARED_MEMORY_MIN_BYTES = 1 << 30
"""Containers often get a `/dev/shm` of 64 MiB, which the inputs of one problem would fill."""


def cache_dir() -> Path:
    """`KERNELWRIGHT_CACHE_DIR`: where built artifacts and device locks live (default: the user's cache folder)."""
    value = os.environ.get("KERNELWRIGHT_CACHE_DIR")
    if value:
        return Path(value)
    import platformdirs

    return Path(platformdirs.user_cache_dir("kernelwright"))


def memory_dir() -> Path:
    """`KERNELWRIGHT_HOME`: its `memory/` keeps what runs have learnt (default: the user's data folder)."""
    value = os.environ.get("KERNELWRIGHT_HOME")
    if value:
        return Path(value) / "memory"
    import platformdirs

    return Path(platformdirs.user_data_dir("kernelwright")) / "memory"


def scratch_dir() -> Path | None:
    """`KERNELWRIGHT_SCRATCH_DIR`: where arrays pass between processes (default: `/dev/shm` where it has room)."""
    value = os.environ.get("KERNELWRIGHT_SCRATCH_DIR")
    if value:
        return Path(value)
    shared_memory = Path("/dev/shm")  # noqa: S108 - a memory file system; the folder inside is made with mkdtemp
    has_room = shared_memory.is_dir() and shutil.disk_usage(shared_memory).free >= SHARED_MEMORY_MIN_BYTES
    return shared_memory if has_room else None


def show_tracebacks() -> bool:
    """`KERNELWRIGHT_TRACEBACK=1`: let an error's traceback through, for people who debug Kernelwright itself."""
    return os.environ.get("KERNELWRIGHT_TRACEBACK", "") not in ("", "0")


def model_url() -> str | None:
    """`KERNELWRIGHT_MODEL_URL`: base URL of an OpenAI-compatible endpoint for `openai:NAME` (default: OpenAI's own)."""
    return os.environ.get("KERNELWRIGHT_MODEL_URL") or None


def model_key(provider: str, *, is_own_endpoint: bool) -> str | None:
    """The key for a provider, None where there is none. Nothing else in Kernelwright reads keys.

    `OPENAI_API_KEY`, `ANTHROPIC_API_KEY`, `GOOGLE_API_KEY` (or `GEMINI_API_KEY`) go to those services alone;
    `KERNELWRIGHT_MODEL_KEY` goes to an endpoint that was given by its URL.
    """
    if not is_own_endpoint:
        names = {"google": ("GOOGLE_API_KEY", "GEMINI_API_KEY")}.get(provider, (f"{provider.upper()}_API_KEY",))
    else:
        names = ("KERNELWRIGHT_MODEL_KEY",)
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
