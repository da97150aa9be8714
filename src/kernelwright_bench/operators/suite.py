"""The operator suite: which operators and shapes, and what other kernels took for them.

Each operator is a problem folder (the example `cuda/NAME`): a plain baseline, a template written for tuning, a
reference, and `eager.py`, the same in PyTorch. `run` measures them, `table` shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelwright import examples
from kernelwright.errors import UsageError
from kernelwright.problem.toml.file import did_you_mean


@dataclass(frozen=True, slots=True)
class Shape:
    """One row of the table."""

    sizes: Mapping[str, int]
    upstream_us: float | None = None
    """What the production kernel of SGLang or FlashInfer took on an H100 80GB HBM3: its own build flags, cold cache
    (512 MB written between launches), events around one launch, median of 30; from docs/benchmarks.md."""
    has_compiled: bool = False
    """Measure torch.compile too: it takes seconds to tens of seconds for each shape."""

    @property
    def label(self) -> str:
        """`8192 x 7168`."""
        return " x ".join(str(size) for size in self.sizes.values())


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator with the shapes that the table shows."""

    name: str
    """Of its folder."""
    shapes: Sequence[Shape]
    goal: float | None = None
    """The share of the floor that the last shape should reach."""
    has_clean_goal: bool = False
    """The goal is for a clean cache: a kernel that only reads would be charged for the writes of others."""
    search_factor: float = 1.0
    """How much longer than others it is searched: compiling and running it takes longer."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """Sizes that all shapes share."""


def _rows(*shapes: tuple[int, int, float | None], names: tuple[str, str] = ("rows", "d")) -> tuple[Shape, ...]:
    """Shapes of two sizes; the last one is compiled by PyTorch too."""
    return tuple(
        Shape({names[0]: first, names[1]: second}, upstream_us, has_compiled=place == len(shapes) - 1)
        for place, (first, second, upstream_us) in enumerate(shapes)
    )


def _merges(*shapes: tuple[int, int, int, float | None]) -> tuple[Shape, ...]:
    return tuple(
        Shape({"tokens": tokens, "heads": heads, "d": d}, upstream_us, has_compiled=place == len(shapes) - 1)
        for place, (tokens, heads, d, upstream_us) in enumerate(shapes)
    )


TOKENS = ("tokens", "d")

SUITE: tuple[Operator, ...] = (
    Operator(
        "silu_and_mul",
        _rows((1, 14336, 6.0), (128, 11008, 8.2), (512, 14336, 21.6), (8192, 8192, 136.1), names=TOKENS),
        goal=0.95,
    ),
    Operator("fused_add_rmsnorm", _rows((128, 4096, None), (1024, 8192, None), (16384, 7168, 318.6)), goal=0.95),
    Operator(
        "merge_attn_states", _merges((512, 32, 256, None), (512, 40, 128, None), (1536, 128, 512, 203.6)), goal=0.95
    ),
    Operator("rmsnorm", _rows((128, 8192, None), (1024, 4096, 11.0), (16384, 7168, 198.0)), goal=0.95),
    Operator(
        "per_token_group_quant_fp8",
        _rows((128, 7168, None), (2048, 7168, 22.6), (4096, 16384, 81.1), names=TOKENS),
        goal=0.95,
        fixed={"group": 128},
    ),
    Operator("softmax", _rows((1024, 4096, None), (1024, 16384, None), (8192, 8192, None)), goal=0.95),
    Operator("matmul", (Shape({"m": 4096, "n": 4096, "k": 4096}, has_compiled=True),), goal=0.8, search_factor=8.0),
    Operator("transpose", _rows((4096, 4096, None), (8192, 8192, None), names=("rows", "cols")), goal=0.93),
    Operator(
        "reduction", (Shape({"n": 1 << 24}), Shape({"n": 1 << 26}, has_compiled=True)), goal=0.93, has_clean_goal=True
    ),
    Operator("stencil", _rows((4096, 4096, None), (8192, 8192, None), names=("height", "width")), goal=0.95),
)


def choose_operators(names: Sequence[str]) -> tuple[Operator, ...]:
    """The operators of these names, in the suite's order; all of them for none.

    Raises:
        UsageError: there is no such operator.
    """
    known = [operator.name for operator in SUITE]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
            raise UsageError(f"there is no operator {name!r} in the suite", hint=hint)
    return tuple(operator for operator in SUITE if not names or operator.name in names)


def find_suite(folder: Path | None) -> Path:
    """The folder that holds the operators' folders: the given one, or that of the CUDA examples.

    Raises:
        UsageError: they are not there.
    """
    place = folder if folder is not None else examples.FOLDER / "cuda"
    if not (place / SUITE[0].name / "problem.toml").is_file():
        raise UsageError(
            f"the operators' folders are not in {str(place)!r}", hint="leave --folder out for those that come along"
        )
    return place
