"""Prompts from their files, and the worked example that is shown with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

from kernelwright import examples
from kernelwright.agent.model.hostile import ATTRIBUTES, INCLUDES
from kernelwright.problem.source_scan import scan_kernels
from kernelwright.source.language import Language

_HOLE = re.compile(r"\[\[(\w+)\]\]")
_FENCES = re.compile(r"^(BEGIN|END) DATA\b", re.MULTILINE)

WORKED: Mapping[str, str] = {
    "elementwise": "silu_and_mul",
    "row-wise": "softmax",
    "whole reduction": "reduction",
    "transpose": "transpose",
    "stencil": "stencil",
    "contraction": "matmul",
}
"""By a kernel's pattern: its verified template."""

OPTIONS: Mapping[str, str] = {"opencl": "-cl-mad-enable", "cuda": "--use_fast_math"}
"""By language: a compile option that a header may give."""

ATTRIBUTES_OF_OPENCL = (
    "reqd_work_group_size", "work_group_size_hint", "vec_type_hint", "intel_reqd_sub_group_size", "opencl_unroll_hint",
    "overloadable",
)  # fmt: skip
"""Attributes that no other language has."""

RULES_OF_TRITON = (
    "- The file holds `import triton` and `import triton.language as tl`, constants, and `@triton.jit` functions of "
    "assignments, `if`, `for`, `while` and calls of `tl`: no other import, class, lambda, comprehension, text with "
    "braces, `assert`, `break`, `continue` or `**`. What is called a macro here is a `tl.constexpr` argument of that "
    "name; a launch has a grid and no block."
)
"""What the fence of Triton files takes, as a person says it."""

_ASSEMBLY = re.compile(r"\basm\b")


@cache
def prompt_text(name: str) -> str:
    """The prompt file of that name, without its ending."""
    return resources.files(__package__).joinpath("prompts", f"{name}.md").read_text(encoding="utf-8")


def filled(name: str, **values: str) -> str:
    """A prompt with its holes filled, in one pass: what is filled in has no holes.

    A line of data that looks like the end of data is indented, so that it does not end it.
    """
    safe = {key: _FENCES.sub(r" \g<0>", value) for key, value in values.items() if key != "context"}
    safe["edits"] = prompt_text("edits").rstrip("\n")
    if "context" in values:
        safe["context"] = values["context"]

    def fill(match: re.Match[str]) -> str:
        return safe[match[1]]

    return _HOLE.sub(fill, prompt_text(name))


def system_prompt(language: str, words: str, *, name: str = "system") -> str:
    """The system text for a language, which a person calls `words`, with the notes that there are on it.

    Args:
        language: as problems name it.
        words: as a person does.
        name: of the prompt file.
    """
    has_notes = resources.files(__package__).joinpath("prompts", f"notes_{language}.md").is_file()
    notes = filled(f"notes_{language}", headers=", ".join(sorted(INCLUDES))).rstrip("\n") if has_notes else ""
    is_c = language != "triton"
    rules = filled("rules_c", attributes=_attributes(language)).rstrip("\n") if is_c else RULES_OF_TRITON
    option = OPTIONS.get(language, "-O3")
    return filled(name, language=words, notes=notes, rules=rules, option=option).rstrip("\n") + "\n"


def _attributes(language: str) -> str:
    """Those that a model may use, without those of the other languages."""
    of_others = ("launch_bounds",) if language == "opencl" else ATTRIBUTES_OF_OPENCL
    return ", ".join(sorted(ATTRIBUTES - set(of_others)))


def data(text: str) -> str:
    """A text between the lines that mark it as data."""
    return "BEGIN DATA\n" + _FENCES.sub(r" \g<0>", text).strip("\n") + "\nEND DATA"


def worked_example(pattern: str, language: str, entry: str) -> tuple[str, str] | None:
    """Name and text of a verified template of that pattern; None where there is none that a model could have written.

    A template of the very kernel that is worked on is never shown, nor one with assembly, which a model may not use.
    """
    name = WORKED.get(pattern)
    if name is None or language not in ("opencl", "cuda", "hip"):
        return None
    shown: Language = "opencl" if language == "opencl" else "cuda"
    text = _worked_text(name, shown)
    own = {name, *(each.name for each in scan_kernels(text, shown))}
    return None if entry in own or _ASSEMBLY.search(text) else (name, text)


@cache
def _worked_text(name: str, language: Language) -> str:
    file = f"{name}/{name}.cl" if language == "opencl" else f"cuda/{name}/{name}.cu"
    return (examples.FOLDER / file).read_text(encoding="utf-8")
