"""What a model may not write, whatever it was told by a comment: refused before anything is built.

A model's text is never run by Python or a shell. What reaches a compiler could still read files (`#include`), bring
code that nobody looks at (`asm`), call the C library of the worker (CPU drivers link what a kernel declares), or say
something else to a reader than to the compiler. These checks are a fence in front of the proof, not the proof:
correctness is judged from bytes, in a process that no comment can reach.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator

from kernelwright.agent.model.replies import Malformed
from kernelwright.problem.includes import included_names
from kernelwright.problem.source_scan import mask_comments, matching

MOST_SOURCE_CHARACTERS = 100_000

INCLUDES = frozenset((
    "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda_pipeline.h", "cuda_pipeline_primitives.h", "cooperative_groups.h",
    "cooperative_groups/reduce.h", "cooperative_groups/memcpy_async.h", "cooperative_groups/scan.h", "cuda/barrier",
    "cuda/pipeline", "cuda/std/cstdint", "cuda/std/limits", "cuda/std/type_traits", "mma.h", "math_constants.h",
    "vector_types.h", "cub/cub.cuh", "cub/warp/warp_reduce.cuh", "cub/block/block_reduce.cuh",
))  # fmt: skip
"""Headers of the toolchains that a source may include beside those that the original includes."""

ASSEMBLER = ("asm", "__asm", "__asm__")

C_LIBRARY = (
    "system", "popen", "execl", "execle", "execlp", "execv", "execve", "execvp", "execvpe", "fork", "vfork", "clone",
    "posix_spawn", "posix_spawnp", "dlopen", "dlsym", "dlmopen", "fopen", "freopen", "fdopen", "open", "openat",
    "creat", "unlink", "remove", "rename", "rmdir", "chmod", "socket", "connect", "sendto", "syscall", "ptrace", "mmap",
    "mprotect", "getenv", "setenv", "putenv", "environ", "kill", "raise", "signal", "sigaction", "exit", "_exit",
    "longjmp", "pthread_create", "puts", "fputs", "fwrite", "fprintf", "sprintf", "memfd_create", "fexecve",
)  # fmt: skip
"""Names that a kernel has no use for. Where one is refused that was only a variable, another name does as well."""

_PRAGMAS = re.compile(r"^[ \t]*(unroll|nounroll|OPENCL (EXTENSION|FP_CONTRACT)|clang loop|clang fp|once|GCC ivdep)\b")
_OPTION = re.compile(
    r"-cl-[a-z0-9.=-]+|--?use_fast_math|-O[0-3]|--?(fmad|ftz|prec-div|prec-sqrt|extra-device-vectorization)(=(true|false))?"
    r"|--?maxrregcount=[\w{} ]+"
)
_DIRECTIVE = re.compile(r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(?P<word>\w+)(?P<rest>[^\n]*)", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")
_PASTED = re.compile(
    r"(?:[(,]|\#\#|^[ \t]*\#[ \t]*define[ \t]+\w+[ \t])[ \t\n]*(?P<word>\w+)(?=[ \t]*(?:[,)\n]|\Z))"
    r"|(?P<before>\w+)[ \t]*\#\#",
    re.MULTILINE,
)
"""Words that pasting could join: alone as an argument, alone as a macro's text, or beside the operator."""
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_TEXT_VALUE = re.compile(r"[A-Za-z_][A-Za-z0-9_ ]{0,60}\Z")
_KNOWN_DIRECTIVES = frozenset(
    ("if", "ifdef", "ifndef", "elif", "else", "endif", "define", "undef", "pragma", "include", "error", "warning")
)


def check_source(source: str, original: str) -> None:
    """Nothing, for a source that may be built in the place of `original`.

    What the original itself holds (an include, assembly that its author declared by using it) stays allowed.

    Raises:
        Malformed: it holds something that is not allowed, with its line.
    """
    problem = next(_problems(source, original), None)
    if problem is not None:
        raise Malformed(f"the source is refused: {problem}")


def _problems(source: str, original: str) -> Iterator[str]:
    if len(source) > MOST_SOURCE_CHARACTERS:
        yield f"it has {len(source)} characters, at most {MOST_SOURCE_CHARACTERS} are taken"
        return
    source = source.replace("\r\n", "\n")
    yield from _odd_characters(source, original)
    spliced = source.replace("\\\n", "")
    code, old_code = mask_comments(spliced), mask_comments(original)
    yield from _directives(spliced, code, original, old_code)
    yield from _forbidden_words(code, old_code)
    yield from _paths(spliced, code, original)
    yield from _undefined_functions(code, old_code)


def _odd_characters(source: str, original: str) -> Iterator[str]:
    allowed = (set(original) | set("\n\t")) - set("\r")  # a lone one ends a line for some compilers only
    for number, line in enumerate(source.split("\n"), 1):
        for character in line:
            if character in allowed or " " <= character <= "~":
                continue
            if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
                yield f"line {number} holds the invisible character U+{ord(character):04X}"
    if re.search(r"\?\?[=/'()!<>-]|%:", source):
        yield "it holds a digraph or trigraph, which compilers read differently"
    if re.search(r"\\[ \t]+\n", source):
        yield "a line ends with a backslash and blanks, which compilers read differently"
    if re.search(r"\\[uUN][0-9a-fA-F{]", source) and not re.search(r"\\[uUN][0-9a-fA-F{]", original):
        yield "it spells a character by its number"


def _directives(source: str, code: str, original: str, old_code: str) -> Iterator[str]:
    allowed = INCLUDES | {name for name, _ in included_names(original)}
    found = [name for name, _ in included_names(source)]
    for name in found:
        if name not in allowed:
            yield f"#include {name!r} is not allowed; it may include {', '.join(sorted(allowed)[:8])}, ..."
    count = 0
    for match in _DIRECTIVE.finditer(code):
        word, rest = match["word"], match["rest"]
        line = code.count("\n", 0, match.start()) + 1
        count += word == "include"
        if word not in _KNOWN_DIRECTIVES:
            yield f"the directive #{word} is not allowed (line {line}, joined lines counted once)"
        if word == "pragma" and not _PRAGMAS.match(rest) and rest.strip() not in old_code:
            yield f"#pragma{rest[:40]} is not allowed (line {line}, joined lines counted once)"
    if count != len(found):
        yield "an #include names its file by a macro, or in no way that can be read"


def _forbidden_words(code: str, old_code: str) -> Iterator[str]:
    words, old_words = set(_WORD.findall(code)), set(_WORD.findall(old_code))
    forbidden = (*ASSEMBLER, *C_LIBRARY, "_Pragma", "__pragma", "__has_include", "__has_embed")
    for word in forbidden:
        if word in words and word not in old_words:
            yield f"{word!r} is not allowed: the original does not use it"
    if "##" in code:
        parts = {match["word"] or match["before"] for match in _PASTED.finditer(code)}
        for word in forbidden:
            if word not in old_words and _can_be_pasted(word, parts):
                yield f"it pastes tokens (##) and holds the parts of {word!r}"


def _can_be_pasted(word: str, parts: Iterable[str]) -> bool:
    """Whether `word` is a row of two or three of the parts."""
    known = {each for each in parts if each in word and each != word}
    ends: set[int] = {0}
    for _ in range(3):
        ends = {start + len(each) for start in ends for each in known if word.startswith(each, start)}
        if len(word) in ends:
            return True
    return False


def _paths(source: str, code: str, original: str) -> Iterator[str]:
    for match in _STRING.finditer(source):
        text = match.group()
        is_code = code[match.start()] == '"'
        if is_code and ("/" in text or "\\\\" in text or ".." in text) and text not in original:
            if re.search(r"#[ \t]*include[^\n]*$", source[: match.start()].rpartition("\n")[2]):
                continue  # judged with the includes
            yield f"the text {text[:60]} looks like a path"


_NOT_TYPES = frozenset(("return", "else", "do", "case", "sizeof", "goto", "defined", "define", "if", "elif", "throw"))
_DECLARATOR = re.compile(r"\b(?P<type>[A-Za-z_]\w*)(?:\s+|\s*\*+\s*(?:restrict|const)?\s*)(?P<name>[A-Za-z_]\w*)\s*\(")


def _undefined_functions(code: str, old_code: str) -> Iterator[str]:
    """Functions that are declared and not defined: a CPU driver would take them from its own process."""
    if not re.search(r"\b(__kernel|kernel)\b", code):
        return  # other languages' kernels are linked with nothing
    if re.search(r"\bextern\b", code) and not re.search(r"\bextern\b", old_code):
        yield "'extern' is not allowed: everything that a kernel uses must be defined in its source"
    declared: dict[str, bool] = {}
    for match in _DECLARATOR.finditer(code):
        is_product = "*" in code[match.end("type") : match.start("name")] and not match["type"].endswith("_t")
        if match["type"] in _NOT_TYPES or match["type"].startswith("__attribute"):
            continue
        end = matching(code, match.end() - 1)
        after = code[end:].lstrip() if end is not None else ""
        is_definition = after.startswith(("{", "__attribute__"))
        is_declaration = after.startswith(";") and not (is_product and match["type"] not in _C_TYPES)
        if is_definition or is_declaration:
            declared[match["name"]] = declared.get(match["name"], False) or is_definition
    for name, is_defined in declared.items():
        if not is_defined and not re.search(rf"\b{name}\b", old_code):
            yield f"{name!r} is declared and not defined: everything that a kernel uses must be in its source"


_C_TYPES = frozenset(("void", "char", "short", "int", "long", "float", "double", "half", "unsigned", "signed", "bool"))


def check_header(text: str, original: str) -> None:
    """Nothing, for the TOML of a header that may stand in the place of `original`, the whole text before.

    Raises:
        Malformed: an option is not known to be harmless, or a text value would be more than a word of the source.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Malformed(f"the toml block cannot be read: {error}") from None
    options = data.get("options", [])
    for option in options if isinstance(options, list) else []:
        if not (isinstance(option, str) and (_OPTION.fullmatch(option) or f'"{option}"' in original)):
            raise Malformed(f"the compile option {option!r} is not allowed; -cl-*, --use_fast_math, --maxrregcount are")
    parameters = data.get("parameters", {})
    for name, each in parameters.items() if isinstance(parameters, dict) else []:
        values = each.get("values", []) if isinstance(each, dict) else []
        for value in values if isinstance(values, list) else []:
            if isinstance(value, str) and not (_TEXT_VALUE.match(value) and not set(value.split()) & set(ASSEMBLER)):
                raise Malformed(
                    f"the value {value!r} of {name} is not allowed: a text value must be words of the source"
                )
