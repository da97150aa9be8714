"""What ties the exported header to the exported source: nothing else, and no other build, has the kernels it launches.

The header's options hold a mark that belongs to the template, with the config as its value. The exported source, and
nothing else, knows the mark: with it, its kernels are called after the config, as the header's launches call them.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from kernelwright.problem.config import Config
from kernelwright.template.model import Candidate, Template

_ENTRY = re.compile(r"(?P<scope>[^<]*::\s*)?(?P<name>[A-Za-z_]\w*)\s*(?P<rest><.*>)?", re.DOTALL | re.ASCII)
"""A kernel's scope ends before its template arguments, which may have scopes of their own."""
_ANY_SOURCE = "KERNELWRIGHT_EXPORTED_SOURCE"
"""Defined by every exported source, so that the second one in a translation unit knows of the first."""
_JOIN = "KERNELWRIGHT_BUILD_NAME"


def option(template: Template, config: Config) -> str:
    """The word of the header's options that says which config is built; empty where nothing can be named so."""
    return f"-D{_mark(template)}={_token(template, config)}" if _kernels(template) else ""


def built_name(template: Template, entry: str, config: Config) -> str:
    """What a kernel is called in a build for this config; as it is where it has no plain name."""
    found = _parts(template, entry)
    if found is None:
        return entry
    return f"{found['scope'] or ''}{found['name']}_{_token(template, config)}{found['rest'] or ''}"


def guard(template: Template, macros: Sequence[str], *, function_of: Mapping[str, str]) -> str:
    """What stands before the values in the exported source; empty where nothing can be named.

    Args:
        template: whose source is exported.
        macros: what has to come from outside when the header's options build it.
        function_of: of those that depend on sizes, which function of the header gives the value.
    """
    kernels, mark = _kernels(template), _mark(template)
    if not kernels:
        return ""
    lines = [
        *_comment(
            "These are the general winner's values. The header that is exported with this file has in "
            "build_options, for each of its configs, the values to build it with instead, and launches kernels "
            "that are called after the config: only this file, built with those options, has them."
        ),
        f"#ifdef {mark}",
        *_unless_all(macros, function_of),
        f"#ifndef {_JOIN}",
        f"#define {_JOIN}_(kernel, build) kernel##_##build",
        f"#define {_JOIN}(kernel, build) {_JOIN}_(kernel, build)",
        "#endif",
        *(f"#define {kernel} {_JOIN}({kernel}, {mark})" for kernel in kernels),
        "#endif",
        *_alone(macros),
    ]
    return "".join(f"{line}\n" for line in lines)


def _mark(template: Template) -> str:
    """The macro that only the header's options define and only this template's exported source looks at."""
    return f"KERNELWRIGHT_TUNED_{template.identity}"


def _token(template: Template, config: Config) -> str:
    return f"kw{Candidate(template, config).id}"


def _kernels(template: Template) -> tuple[str, ...]:
    """The kernels' plain names, each once."""
    found = (_parts(template, step.entry) for step in template.steps)
    return tuple(dict.fromkeys(each["name"] for each in found if each is not None))


def _parts(template: Template, entry: str) -> re.Match[str] | None:
    """An entry such as `space::scale<VEC>` in parts; None where macros cannot rename it."""
    return None if template.language == "triton" else _ENTRY.fullmatch(entry.strip())


def _unless_all(macros: Sequence[str], function_of: Mapping[str, str]) -> Iterator[str]:
    """An error where the mark came without the values that belong to it."""
    fixed = [name for name in macros if name not in function_of]
    for place, name in enumerate(fixed):
        yield f"#{'elif' if place else 'if'} !defined({name})"
        yield f'#error "{name} is not defined: build this file with all build_options of the exported header"'
    if fixed:
        yield "#endif"
    for name, function in function_of.items():
        yield f"#ifndef {name}"
        yield f'#error "{name} depends on the sizes: define it as what {function}() gives"'
        yield "#endif"


def _alone(macros: Sequence[str]) -> Iterator[str]:
    """An error where another exported source has set one of the values already."""
    if macros:
        yield f"#ifdef {_ANY_SOURCE}"
        yield from _condition("", " || ", macros, "")
        yield '#error "another exported source sets values of these names too: compile each of them by itself"'
        yield "#endif"
        yield "#endif"
    yield f"#ifndef {_ANY_SOURCE}"
    yield f"#define {_ANY_SOURCE}"
    yield "#endif"


def _condition(before: str, between: str, names: Sequence[str], after: str) -> Iterator[str]:
    """`#if` over several lines, none too long."""
    text = before + between.join(f"defined({name})" for name in names) + after
    yield "#if \\"
    *lines, last = textwrap.wrap(text, 110, break_long_words=False, break_on_hyphens=False)
    yield from (f"    {line} \\" for line in lines)
    yield f"    {last}"


def _comment(text: str) -> list[str]:
    return [f"// {line}" for line in textwrap.wrap(text, 112)]
