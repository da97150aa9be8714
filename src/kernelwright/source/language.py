"""The languages of kernel sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Language = Literal["opencl", "cuda", "hip", "triton"]

LANGUAGE_OF_SUFFIX: Mapping[str, Language] = {
    ".cl": "opencl",
    ".cu": "cuda",
    ".hip": "hip",
    ".py": "triton",
}
