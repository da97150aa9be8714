"""What a model may not write, whatever it was told by a comment: refused before anything is built.

A model's text is never run by Python or a shell. What reaches a compiler could still read files (`#include`), bring
code that nobody looks at (`asm`), call the C library of the worker (CPU drivers link what a kernel declares), or say
something else to a reader than to the compiler. These checks are a fence in front of the proof, not the proof:
correctness is judged from bytes, in a process that no comment can reach.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

from kernelwright.agent.model.anchors import Malformed
from kernelwright.agent.model.macro_use import (
    controlling,
    ending_statements,
    expanded,
    pasted_parts,
    unconditional,
    with_bodies,
)
from kernelwright.agent.model.prototypes import prototypes
from kernelwright.errors import Location, SpecError
from kernelwright.problem.includes import includes_in
from kernelwright.problem.toml.file import parse_toml
from kernelwright.source.lexer import (
    definitions_of,
    directives,
    hidden_parts,
    joined_lines,
    masked,
    matching,
    tokens_of,
    without_directives,
    words_of,
)
from kernelwright.template.header import header_toml, strip_header

MOST_SOURCE_CHARACTERS = 100_000
MOST_HEADER_CHARACTERS = 10_000
"""The longest header of the examples has a quarter of it. Some TOML takes the square of its length to read."""

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
    "printf", "vprintf", "snprintf", "malloc", "calloc", "realloc", "enqueue_kernel", "get_default_queue", "fopen64",
    "freopen64", "open64", "openat64", "creat64", "mmap64", "sendfile", "ioctl", "pread", "pwrite", "symlink", "chown",
    "mount", "dlvsym", "prctl", "getdents", "opendir", "fputc", "putchar", "posix_openpt", "wordexp",
)  # fmt: skip
"""Names that a kernel has no use for. Where one is refused that was only a variable, another name does as well."""

OF_THE_COMPILER = (
    "_Pragma", "__pragma", "typeof", "__typeof", "__typeof__", "__auto_type", "__DATE__", "__TIME__", "__TIMESTAMP__",
    "__FILE__", "__BASE_FILE__",
)  # fmt: skip
"""What hides directives and declarations, or makes a source mean something else at another time or place."""

HIDDEN = ("__has_include", "__has_embed", "__builtin_", "_IO_", "__libc_", "__GI_")
"""Words that begin so ask the compiler for files and functions, or are the C library's own."""

UNDECLARED = ("printf", "enqueue_kernel", "__builtin_")
"""What a source may use without declaring it; all others that could be pasted would be seen where they are declared."""

ATTRIBUTES = frozenset((
    "reqd_work_group_size", "work_group_size_hint", "vec_type_hint", "intel_reqd_sub_group_size", "aligned", "packed",
    "always_inline", "noinline", "flatten", "unused", "maybe_unused", "nodiscard", "pure", "const", "convergent",
    "noduplicate", "may_alias", "ext_vector_type", "vector_size", "opencl_unroll_hint", "overloadable", "nonnull",
    "launch_bounds", "restrict", "likely", "unlikely", "fallthrough", "min_vector_width",
))  # fmt: skip
"""Attributes that say something of a kernel's own code; others make code run by itself, or under another's name."""

BUILTINS = re.compile(
    r"__builtin_(expect|assume|assume_aligned|unreachable|prefetch|shufflevector|convertvector|nontemporal_(load|store)"
    r"|fmaf?|sqrtf?|rsqrtf?|expf?|exp2f?|fabsf?|fminf?|fmaxf?|clzl{0,2}|ctzl{0,2}|popcountl{0,2}|bswap\d+|elementwise_\w+"
    r"|reduce_\w+|is_aligned|align_(up|down)|memcpy|memset|isnan|isinf|huge_valf?|inff?|nanf?|choose_expr|constant_p"
    r"|types_compatible_p|bit_cast)"
)

_PRAGMAS = re.compile(
    r"^[ \t]*(unroll|nounroll|OPENCL (EXTENSION (cl_|all\b)|FP_CONTRACT)|clang loop|clang fp|once|GCC ivdep)"
)
_OPTION = re.compile(
    r"-cl-[a-z0-9.=-]+|--?use_fast_math|-O[0-3]|--?(fmad|ftz|prec-div|prec-sqrt|extra-device-vectorization)(=(true|false))?"
    r"|--?maxrregcount=[\w{} ]+"
)
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
    spliced = joined_lines(source).text
    yield from _odd_quotes(spliced)  # behind these, what a comment is can be told as every compiler does
    code, old_code = masked(spliced), _surely_code(original)
    yield from _without_header(source, code)
    header = _header_text(source, spliced)
    yield from _odd_letters(code, old_code)
    yield from _directives(spliced, code, original, old_code)
    yield from _forbidden_words(code, old_code, _text_words(header))
    yield from _attributes(code, old_code)
    yield from _paths(spliced, code, original)
    yield from _launches(code, old_code)
    yield from _undefined_functions(code, old_code, frozenset(words_of(masked(header))))
    yield from _macros(spliced, code, old_code)


def _surely_code(original: str) -> str:
    """What a compiler surely takes for code: not what stands behind a quote that nothing closes, either."""
    return masked("".join(_closed_parts(original)))


def _closed_parts(text: str) -> Iterator[str]:
    at = 0
    for each in hidden_parts(text):
        if each.kind == "open":
            yield text[at : each.start]
            at = each.start + len(each.text)
    yield text[at:]


def _odd_characters(source: str, original: str) -> Iterator[str]:
    allowed = (set(original) | set("\n\t")) - set("\r")  # a lone one ends a line for some compilers only
    for number, line in enumerate(source.split("\n"), 1):
        for character in line:
            if character in allowed or " " <= character <= "~":
                continue
            if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
                yield f"line {number} holds the invisible character U+{ord(character):04X}"
    if re.search(r"\?\?[=/'()!<>-]|%:|<%|%>", source):
        yield "it holds a digraph or trigraph, which compilers read differently"
    if re.search(r"\\[ \t]+\n", source):
        yield "a line ends with a backslash and blanks, which compilers read differently"
    if re.search(r"\\[uUN][0-9a-fA-F{]", source) and not re.search(r"\\[uUN][0-9a-fA-F{]", original):
        yield "it spells a character by its number"


def _odd_quotes(source: str) -> Iterator[str]:
    """Quotes that lexers do not agree about: text that is code for one and a comment for another."""

    def line(start: int) -> str:
        number = source.count("\n", 0, start) + 1
        return f"line {number} (joined lines counted once)"

    for each in hidden_parts(source):
        if each.kind == "raw":
            yield f"{line(each.start)} begins a raw string, which is not read here"
        elif not each.is_closed:
            yield f"{line(each.start)} opens {each.text[: 1 + (each.kind == 'comment')]!r} and does not close it"
    for token in tokens_of(source) if "'" in source else ():
        if token.kind == "number" and "'" in token.text:
            yield f"{line(token.span.start)} has a quote inside of a number"


def _odd_letters(code: str, old_code: str) -> Iterator[str]:
    """Letters of names that look like others, or that not every compiler takes."""
    for character in sorted(set(code) - set(old_code)):
        if not character.isascii() or character == "$":
            yield f"its code holds {character!r} (U+{ord(character):04X}); names are written in ASCII"


def _directives(source: str, code: str, original: str, old_code: str) -> Iterator[str]:
    allowed = INCLUDES | {each.name for each in includes_in(original) if not each.is_macro}
    found = [include.name for include in includes_in(source) if not include.is_macro]
    for name in found:
        if name not in allowed:
            yield f"#include {name!r} is not allowed; it may include {', '.join(sorted(allowed)[:8])}, ..."
    count = 0
    for each in directives(code):
        word, rest = each.word, each.rest
        line = code.count("\n", 0, each.start) + 1
        count += word == "include"
        if word not in _KNOWN_DIRECTIVES and (word or rest.strip()):
            yield f"the directive #{word} is not allowed (line {line}, joined lines counted once)"
        if word == "pragma" and not _PRAGMAS.match(rest) and rest.strip() not in old_code:
            yield f"#pragma{rest[:40]} is not allowed (line {line}, joined lines counted once)"
    if count != len(found):
        yield "an #include names its file by a macro, or in no way that can be read"


def _without_header(source: str, code: str) -> Iterator[str]:
    """A header is taken out and written anew: one that begins in a comment would end that comment elsewhere then."""
    if masked(joined_lines(strip_header(source)).text).split() != code.split():
        yield "its header stands inside another comment or a text: write it as // comments at the top of the source"


def _header_text(source: str, spliced: str) -> str:
    """What is a template header or may be meant as one, in which nothing but `"` begins a text; empty without one."""
    first = list(itertools.takewhile(lambda line: line.lstrip(" \t").startswith("//"), spliced.split("\n")))
    meant = first if first and "kernelwright" in first[0] else []
    return "\n".join((*meant, header_toml(source))).translate(str.maketrans("'/", "  "))


def _text_words(header: str) -> frozenset[str]:
    """Words in a header's texts: values of parameters become macros."""
    return frozenset(word for each in hidden_parts(header) for word in words_of(each.text))


def _forbidden_words(code: str, old_code: str, header_words: frozenset[str]) -> Iterator[str]:
    words, old_words = set(words_of(code)), set(words_of(old_code))
    forbidden = (*ASSEMBLER, *C_LIBRARY, *OF_THE_COMPILER)
    for word in forbidden:
        if word in words and word not in old_words:
            yield f"{word!r} is not allowed: the original does not use it"
    for word in sorted(words - old_words):
        if word.startswith(HIDDEN) and not BUILTINS.fullmatch(word):
            yield f"{word!r} is not allowed: the original does not use it"
    parts = pasted_parts(code, header_words)
    for word in (*ASSEMBLER, *OF_THE_COMPILER, *UNDECLARED) if parts else ():
        if word not in old_words and _can_be_pasted(word, parts):
            yield f"it pastes tokens (##) and holds the parts of {word!r}"


def _can_be_pasted(word: str, parts: Iterable[str]) -> bool:
    """Whether `word`, or one that it begins when it ends with `_`, is a row of the parts; a short one but for `asm`."""
    is_beginning = word.endswith("_") and word not in ASSEMBLER
    known = {each for each in parts if each and each != word}
    ends: set[int] = {0}
    for _ in range(len(word) if word in ASSEMBLER or is_beginning else 3):
        ends = {start + len(each) for start in ends for each in known if word.startswith(each, start)} | (
            {len(word) for start in ends for each in known if is_beginning and each.startswith(word[start:])}
        )
        if len(word) in ends:
            return True
    return False


def _paths(source: str, code: str, original: str) -> Iterator[str]:
    included = {each.start for each in directives(code) if each.word == "include"}  # judged with the includes
    for each in hidden_parts(source):
        text = each.text
        is_path = each.kind == "text" and text[0] == '"' and ("/" in text or "\\\\" in text or ".." in text)
        if is_path and text not in original and source.rfind("\n", 0, each.start) + 1 not in included:
            yield f"the text {text[:60]} looks like a path"


_VENDORS = frozenset(("gnu", "clang", "nv"))
_ATTRIBUTE = re.compile(r"\b__attribute(?:__)?\b|\[[ \t\n]*\[(?=[ \t\n]*[A-Za-z_])")


def _attributes(code: str, old_code: str) -> Iterator[str]:
    """Attributes that are not known to be harmless."""
    old_words = set(words_of(old_code))
    for match in _ATTRIBUTE.finditer(code):
        is_gnu = match.group().startswith("__")
        start = code.find("(", match.end()) if is_gnu else match.start()
        end = matching(code, start) if start >= 0 else None
        if end is None:
            yield "an attribute cannot be read"
            continue
        depth = 0
        for each in re.finditer(r"[(\[]|[)\]]|[A-Za-z_]\w*", code[start:end]):
            depth += (each.group() in "([") - (each.group() in ")]")
            name = each.group().strip("_")
            is_name = depth == 2 and each.group()[0] not in "()[]"
            if is_name and name not in ATTRIBUTES | _VENDORS and each.group() not in old_words:
                yield f"the attribute {each.group()!r} is not allowed; known are {', '.join(sorted(ATTRIBUTES)[:8])}"


def _launches(code: str, old_code: str) -> Iterator[str]:
    """Ways to start other code than the kernel's own."""
    for match in re.finditer(r"\bcuda[A-Z]\w*", code):
        if not re.search(rf"\b{match.group()}\b", old_code):
            yield f"{match.group()!r} is not allowed: a kernel calls nothing of the host's library"
    if "<<<" in code and "<<<" not in old_code:
        yield "a kernel is launched from the source; launches belong into the header"
    if re.search(r"\bgoto\s*\*|[=(,{?:;]\s*&&\s*[A-Za-z_]", code):
        yield "it jumps to where a pointer says"
    if re.search(r"^[ \t]*(@|export\b|import\b|module\b)", code, re.MULTILINE) or re.search(r"\(\s*\^", code):
        yield "it holds an import or a block, which kernels have no use for"


_NOT_TYPES = frozenset(("return", "else", "do", "case", "sizeof", "goto", "defined", "define", "if", "elif", "throw"))
_DECLARATOR = re.compile(r"\b(?P<type>[A-Za-z_]\w*)(?:\s+|\s*\*+\s*(?:restrict|const)?\s*)(?P<name>[A-Za-z_]\w*)\s*\(")


def _is_opencl(code: str, old_code: str) -> bool:
    return any(re.search(r"\b(__kernel|kernel)\b", each) for each in (code, old_code))


def _always_defined(code: str) -> frozenset[str]:
    """Functions with a body that no condition leaves out, where no name can have two: they may be declared before."""
    if re.search(r"\boverloadable\b", code):
        return frozenset()
    found = _declarators(without_directives(unconditional(code)))
    return frozenset(match["name"] for match, after in found if after.startswith("{"))


def _undefined_functions(code: str, old_code: str, types: AbstractSet[str]) -> Iterator[str]:
    """Functions that are declared and not defined: a CPU driver would take them from its own process."""
    if not _is_opencl(code, old_code):
        return  # other languages' kernels are linked with nothing
    if re.search(r"\bextern\b", code) and not re.search(r"\bextern\b", old_code):
        yield "'extern' is not allowed: everything that a kernel uses must be defined in its source"
    if re.search(r"\(\s*\*+\s*\w*\s*\)\s*\(", code):
        yield "it holds a pointer to a function, which OpenCL does not have"
    definitions = definitions_of(code)
    for each in definitions:
        yield from _declaring_macro(each.body)
    ending = ending_statements(definitions) | controlling(definitions)
    yield from _declared_only(with_bodies(code), old_code, ending)
    known = set(prototypes(without_directives(old_code))) | _always_defined(code)
    macros = frozenset(each.name for each in definitions)
    found = [prototypes(without_directives(code), types=types, macros=macros, ending=ending)]
    found += [prototypes(view.text, types=types) for view in expanded(code)]
    for name in itertools.chain.from_iterable(found):
        if name not in known and not BUILTINS.fullmatch(name):
            yield f"{name!r} is declared and not surely defined: define each function before it is used"


def _declared_only(code: str, old_code: str, ending: AbstractSet[str] = frozenset()) -> Iterator[str]:
    """Declarations without definitions; behind a macro that ends statements (`ending`) there is a call and none."""
    declared: dict[str, bool] = {}
    for match, after in _declarators(code):
        if match["type"] in ending and "*" not in code[match.end("type") : match.start("name")]:
            continue
        is_definition = after.startswith("{")
        if not is_definition and not _is_declaration(code, match, after):
            continue
        declared[match["name"]] = declared.get(match["name"], False) or is_definition
        if after.startswith(","):
            yield f"{match['name']!r} is declared in a list: give each function a definition"
    for name, is_defined in declared.items():
        if not is_defined and not re.search(rf"\b{name}\b", old_code):
            yield f"{name!r} is declared and not defined: everything that a kernel uses must be in its source"


def _declarators(code: str) -> Iterator[tuple[re.Match[str], str]]:
    """What looks like a function's type and name, with what follows its brackets."""
    for match in _DECLARATOR.finditer(code):
        if match["type"] not in _NOT_TYPES and "__attribute" not in match.group():
            yield match, _end_of(code, match.end() - 1)


def _is_declaration(code: str, match: re.Match[str], after: str) -> bool:
    """Whether it is none of the products that look like one: `a * f(x);`."""
    is_product = "*" in code[match.end("type") : match.start("name")] and not match["type"].endswith("_t")
    return after.startswith((";", ",")) and not (is_product and match["type"] not in _C_TYPES)


def _end_of(code: str, start: int) -> str:
    """What follows brackets that open at `start`, further brackets and attributes behind them left out."""
    while True:
        end = matching(code, start)
        if end is None:
            return ""
        after = code[end:].lstrip()
        attribute = re.match(r"__attribute(?:__)?\s*(?=\()", after)
        if attribute is not None:
            after = after[attribute.end() :]
        if not after.startswith("("):
            return after[:200]
        start = len(code) - len(code[end:].lstrip()) + (attribute.end() if attribute is not None else 0)


def _declaring_macro(body: str) -> Iterator[str]:
    """A macro whose text is a function's declaration, with whatever name it is given."""
    for match, after in _declarators(body):
        if "*" not in body[match.end("type") : match.start("name")] and after[:1] in ("", ";"):
            yield f"a macro declares the function {match['name']!r}: write functions out, with what they do"


def _macros(source: str, code: str, old_code: str) -> Iterator[str]:
    """Macros that come to something that is not allowed, or that compilers and readers see differently."""
    for each in definitions_of(code):
        if not each.is_balanced:
            yield f"the macro {each.name!r} opens a bracket that it does not close, or closes one that it does not open"
    for part in hidden_parts(source):
        is_long = part.kind == "comment" and "\n" in part.text
        if is_long and code[source.rfind("\n", 0, part.start) + 1 : part.start].lstrip().startswith("#"):
            yield "a comment of several lines begins in the line of a directive, which goes on behind it"
    old_words = set(words_of(old_code))
    for each in definitions_of(code):
        if each.name.strip("_") in ATTRIBUTES | {"attribute"} and each.name not in old_words:
            yield f"the macro {each.name!r} has an attribute's name: call it otherwise"
    is_opencl = _is_opencl(code, old_code)
    for view in expanded(code):
        if not view.is_whole:
            yield "its macros make more text than is read"
        yield from _made(view.text, old_code, old_words, is_opencl=is_opencl)


def _made(text: str, old_code: str, old_words: AbstractSet[str], *, is_opencl: bool) -> Iterator[str]:
    """What expanded macros come to that may not be."""
    words = set(words_of(text))
    hidden = {word for word in words if word.startswith("__builtin_") and not BUILTINS.fullmatch(word)}
    never = {*ASSEMBLER, *C_LIBRARY, *OF_THE_COMPILER, *UNDECLARED, *(("extern",) if is_opencl else ())}
    for word in sorted((words & never | hidden) - old_words):
        yield f"its macros make {word!r}, which is not allowed: the original does not use it"
    yield from _attributes(text, old_code)
    if is_opencl:
        yield from _declared_only(text, old_code)


_C_TYPES = frozenset(("void", "char", "short", "int", "long", "float", "double", "half", "unsigned", "signed", "bool"))


def check_header(text: str, original: str) -> None:
    """Nothing, for the TOML of a header that may stand in the place of `original`, the whole text before.

    Raises:
        Malformed: an option is not known to be harmless, or a text value would be more than a word of the source.
    """
    if len(text) > MOST_HEADER_CHARACTERS:
        raise Malformed(f"the toml block has {len(text)} characters, at most {MOST_HEADER_CHARACTERS} are taken")
    try:
        data = parse_toml(text, Path("toml")).data
    except SpecError as error:
        place = error.location or Location(Path("toml"))
        where = f"line {place.line}, column {place.column}"
        raise Malformed(f"the toml block cannot be read ({where}): {error.message[:300]}") from None
    options = data.get("options", [])
    for option in options if isinstance(options, list) else []:
        if not (isinstance(option, str) and (_OPTION.fullmatch(option) or f'"{option}"' in original)):
            raise Malformed(f"the compile option {option!r} is not allowed; -cl-*, --use_fast_math, --maxrregcount are")
    parameters = data.get("parameters", {})
    for name, each in parameters.items() if isinstance(parameters, dict) else []:
        values = each.get("values", []) if isinstance(each, dict) else []
        for value in values if isinstance(values, list) else []:
            _check_value(name, value)


def _check_value(name: str, value: object) -> None:
    if isinstance(value, int) and abs(value) >= 2**63:
        raise Malformed(f"a value of {name} has more than 64 bits")
    if not isinstance(value, str):
        return
    words = set(value.split())
    if not _TEXT_VALUE.match(value) or words & {*ASSEMBLER, *C_LIBRARY, *OF_THE_COMPILER}:
        raise Malformed(f"the value {value!r} of {name} is not allowed: a text value must be words of the source")
