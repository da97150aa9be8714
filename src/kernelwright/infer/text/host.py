"""The launch that the file's own host code makes: `kernel<<<grid, block, bytes>>>(...)`, `clEnqueueNDRangeKernel`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelwright.errors import KernelwrightError
from kernelwright.infer.text.host_names import changes_of, macros, plain_numbers
from kernelwright.problem.dtypes import dtype_of_c_type, is_vector_c_type
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source.lexer import MacroDefinition, definitions_of, masked, matching

_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|\d+)(?:\.0*)?[uUlLzZfF]*|([A-Za-z_]\w*(?:(?:\.|::)\w+)*)|(<<|>>|[<>=!]=|[-+*/%()<>?:]|,))"
)
_CASTS = re.compile(
    r"\(\s*(?:(?:unsigned|signed|const|long|int|short|size_t|uint|uint32_t|int32_t|int64_t|uint64_t|float|double)\s*)+\)"
)
_CEIL = re.compile(r"(?i)(?:.*(?:ceil|div_?up|cdiv|idivup).*)")
_ROUND = re.compile(r"(?i)(?:.*(?:round_?up|align_?up|roundup|next_?multiple).*)")
_HIP_LAUNCH = re.compile(r"\bhipLaunchKernelGGL\s*(?=\()")
_SIZEOF = re.compile(r"\bsizeof\s*\(([\w: ]+)\)")
_COMPARISONS = ("<", ">", "<=", ">=", "==", "!=")
_COMPARED = -1
"""How tightly a comparison binds: it is the condition of a choice, and no operand."""
_NESTING = 12
_MOST_BRACKETS = 40
"""The most in one expression: what holds more is no extent that a person wrote, and would exhaust the stack."""


class Untranslatable(Exception):
    """An expression of the host that is none of a problem's."""


@dataclass(frozen=True, slots=True)
class _HostLaunch:
    """One launch, as expressions in names of the host's code."""

    grid: tuple[str, ...]
    block: tuple[str, ...]
    """Empty: left to the driver."""
    shared_bytes: str
    actuals: tuple[str, ...]
    """What is passed, as written; empty where the launch does not say."""
    literals: Mapping[str, str]
    """By parameter: a number that the call passes as it stands."""
    names: Mapping[str, str]
    """By name of the host's code: the kernel's parameter that it is passed for."""
    values: Mapping[str, int]
    """By name: the number that the host's code sets it to once and for all."""
    line: int
    computed: Mapping[str, str] = field(default_factory=dict)
    """By parameter: what the host computes for it, in the problem's language and the kernel's names."""
    zeroed: frozenset[str] = frozenset()
    """The parameters whose arrays the host sets to 0 before, and passes to nothing else in between."""


def find_launch(
    source: str,
    kernel: str,
    parameters: Sequence[str],
    said: frozenset[str],
    types: Mapping[str, str] | None = None,
) -> _HostLaunch | None:
    """The one launch of a kernel in a file; None where there is none, or several that differ.

    `said`: names that a person gives a value to, which stay names although the host's code sets them; `types`: by name
    of a template's type, what it is where the kernel is launched.
    """
    code = with_chevrons(without_texts(masked(source), source))
    found = [*_chevrons(code, kernel, parameters, said, types or {}), *_enqueues(code, kernel, said | set(parameters))]
    distinct = {(each.grid, each.block, each.shared_bytes): each for each in reversed(found)}
    if len(distinct) != 1:
        return None
    return replace(found[0], zeroed=frozenset.intersection(*(each.zeroed for each in found)))


def _chevrons(
    code: str, kernel: str, parameters: Sequence[str], said: frozenset[str], types: Mapping[str, str]
) -> Iterator[_HostLaunch]:
    for match in re.finditer(rf"\b{re.escape(kernel)}\s*(?:<(?:[^<>;]|<[^<>;]*>)*>)?\s*<<<", code):
        end = code.find(">>>", match.end())
        if end < 0:
            continue
        configured = split_commas(code[match.end() : end])
        opening = re.match(r"\s*\(", code[end + 3 :])
        closing = None if opening is None else matching(code, end + 3 + opening.end() - 1)
        actuals = () if opening is None or closing is None else split_commas(
            code[end + 3 + opening.end() : closing - 1]
        )  # fmt: skip
        names, literals = _passed(actuals, parameters, code)
        reader = HostReader(code[: match.start()], said | set(names), names, types, said - set(parameters))
        try:
            grid, block = reader.extents(configured[0]), reader.extents(configured[1])
            shared = reader.text(configured[2]) if len(configured) > 2 else "0"
        except (Untranslatable, IndexError):
            continue
        grid = _in_parameters(grid, actuals, parameters, reader)
        yield _HostLaunch(
            grid, block, "" if shared == "0" else shared, tuple(actuals), literals, names, reader.numbers(),
            code.count("\n", 0, match.start()) + 1,
            {**_integers(actuals, parameters, reader), **_fractions(actuals, parameters, names, code[: match.start()])},
            frozenset(parameter for name, parameter in names.items() if _is_zeroed(name, code[: match.start()])),
        )  # fmt: skip


def with_chevrons(code: str) -> str:
    """HIP's macro for a launch as the launch that it makes, `k<<<grid, block, bytes, stream>>>(...)`, in as many lines.

    `code`: without comments and texts, as `masked` gives it.
    """
    pieces, at = [], 0
    for match in _HIP_LAUNCH.finditer(code):
        closing = matching(code, match.end())
        passed = [] if closing is None else split_commas(code[match.end() + 1 : closing - 1])
        if closing is None or match.start() < at or len(passed) < 5:
            continue
        kernel = re.sub(r"^HIP_KERNEL_NAME\s*(?=\()", "", passed[0])
        kernel = kernel[1:-1].strip() if _is_wrapped(kernel) else kernel
        launch = f"{kernel}<<<{', '.join(passed[1:5])}>>>({', '.join(passed[5:])})"
        lines = code.count("\n", match.start(), closing) - launch.count("\n")
        pieces += [code[at : match.start()], launch, "\n" * lines]
        at = closing
    return "".join((*pieces, code[at:]))


def _in_parameters(
    grid: tuple[str, ...], actuals: Sequence[str], parameters: Sequence[str], reader: HostReader
) -> tuple[str, ...]:
    """An extent that is passed too is that parameter: `k<<<n / 64, 64>>>(x, n / 64)`."""
    known: dict[str, str] = {}
    for actual, parameter in zip(actuals, parameters, strict=False):
        try:
            text = reader.text(_CASTS.sub("", actual))
        except Untranslatable:
            continue
        if not re.fullmatch(r"\w+", text):
            known.setdefault(text, parameter)
    return tuple(known.get(each, each) for each in grid) if len(actuals) == len(parameters) else grid


def without_texts(code: str, source: str) -> str:
    """The code without comments, but with names in quotes: `clCreateKernel(program, "saxpy", ...)`."""
    found = re.finditer(r'clCreateKernel\s*\([^;]*?,\s*("\w+")', source)
    for match in found:
        code = code[: match.start(1)] + match[1] + code[match.end(1) :]
    return code


def _passed(actuals: Sequence[str], parameters: Sequence[str], code: str) -> tuple[dict[str, str], dict[str, str]]:
    """By the host's names the parameters that they are passed for; by parameter a literal, or a macro that is one."""
    fractions = {
        each.name: each.body.strip() for each in definitions_of(code)
        if each.parameters is None and re.search(r"\d[.eE]|\.\d", each.body)
    }  # fmt: skip
    names: dict[str, str] = {}
    literals: dict[str, str] = {}
    if len(actuals) != len(parameters):
        return names, literals
    for actual, parameter in zip(actuals, parameters, strict=True):
        bare = _CASTS.sub("", actual).strip()
        bare = fractions.get(bare, bare).removeprefix("(").removesuffix(")").strip()
        if bare in ("true", "false"):
            literals[parameter] = str(int(bare == "true"))
        elif re.fullmatch(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", bare):
            names[bare] = parameter
        elif number := re.fullmatch(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fFuUlLhH]*", bare):
            literals[parameter] = number[1]
    return names, literals


ZEROING = re.compile(r"\b(?:cuda|hip)Memset(?:Async)?\s*\(\s*(?:\([^()]*\)\s*)?(\w+)\s*,\s*0(?:x0+)?\s*,[^;]*;")
"""A call that sets an array to 0."""
_LOOP = re.compile(r"\b(?:for|while)\s*\(|\bdo(?=\s*\{)")
_OPENED = re.compile(r"\s*\{")


def _is_zeroed(array: str, before: str) -> bool:
    """Whether the last that the code says of an array is that it is 0, anew wherever it goes on to the end again."""
    places = [found.start() for found in re.finditer(rf"\b{re.escape(array)}\b", before)]
    calls = (found for found in ZEROING.finditer(before) if found[1] == array and found.start(1) == places[-1])
    call = next(calls, None)
    return call is not None and call.start() > (loop_around(before) or 0)


def loop_around(before: str) -> int | None:
    """Where the innermost loop begins in which a text ends; None: it ends in none."""
    place = None
    for found in _LOOP.finditer(before):
        head = matching(before, found.end() - 1) if found[0].endswith("(") else found.end()
        body = None if head is None else _OPENED.match(before, head)
        if head is None or (body is None and before[head:].strip()):
            continue
        if body is None or matching(before, body.end() - 1) is None:
            place = found.start()
    return place


def _integers(actuals: Sequence[str], parameters: Sequence[str], reader: HostReader) -> dict[str, str]:
    """What is computed of other arguments in whole numbers: `int tile = (n + 7) / 8;`, passed by name or as it is."""
    found: dict[str, str] = {}
    if len(actuals) != len(parameters):
        return found
    for actual, parameter in zip(actuals, parameters, strict=True):
        bare = _CASTS.sub("", actual).strip()
        same = [each for other, each in zip(actuals, parameters, strict=True) if other == actual]
        if bare.isidentifier() and len(same) > 1:
            found[parameter] = same[(same.index(parameter) + 1) % len(same)]  # in a ring: whichever is said says all
            continue
        try:
            text = reader.computed(bare)
            words = Expression.parse(text).names
        except (Untranslatable, KernelwrightError):
            continue
        if words and text != bare and parameter not in words and words <= {*parameters, *reader.said}:
            found[parameter] = text
    return found


def _fractions(
    actuals: Sequence[str], parameters: Sequence[str], names: Mapping[str, str], before: str
) -> dict[str, str]:
    """What is computed in floating point: `float scale = 1.0f / sqrtf((float)dim);`, passed by its name or as it is."""
    found: dict[str, str] = {}
    for actual, parameter in zip(actuals, parameters, strict=False):
        bare = actual.strip()
        kinds = r"(?:float|double|auto)"
        values = re.findall(rf"\b{kinds}\s+{re.escape(bare)}\s*=\s*([^;]+);", before) if bare.isidentifier() else [bare]
        text = _fraction(values[0], names) if len(set(values)) == 1 else None
        if text is not None:
            found[parameter] = text
    return found


def _fraction(text: str, names: Mapping[str, str]) -> str | None:
    """C's floating point in the language of problems; None where it is something else, or of integers alone."""
    if not re.search(r"\d\.|\.\d|float|double|sqrt", text) or text.count("(") > _MOST_BRACKETS:
        return None
    text = re.sub(r"\bstatic_cast\s*<\s*\w+\s*>", "", _CASTS.sub("", text))
    text = re.sub(r"(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)[fF]\b", r"\1", text)
    text = re.sub(r"^\s*(?:std::)?rsqrtf?\b", "1.0 / sqrt", re.sub(r"\b(?:std::)?sqrtf?\b", "sqrt", text))
    words = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text)) - {"sqrt"}
    if not words <= set(names) or not words or re.search(r"[^\w\s.+\-*/()]", text):
        return None
    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda word: names.get(word[0], word[0]), text).strip()


def _enqueues(code: str, kernel: str, said: frozenset[str]) -> Iterator[_HostLaunch]:
    """Calls of `clEnqueueNDRangeKernel`, where the file makes one kernel object or one of that name."""
    objects = dict(re.findall(r'(\w+)\s*=\s*clCreateKernel\s*\(\s*\w+\s*,\s*"(\w+)"', code))
    for match in re.finditer(r"\bclEnqueueNDRangeKernel\s*\(", code):
        closing = matching(code, match.end() - 1)
        if closing is None:
            continue
        passed = split_commas(code[match.end() : closing].removesuffix(")"))
        if len(passed) < 6:
            continue
        made = objects.get(passed[1].strip())
        if made is not None and made != kernel:
            continue
        reader = HostReader(code[: match.start()], said, {})
        try:
            grid, local = extents_of_enqueue(reader, passed)
        except Untranslatable:
            continue
        yield _HostLaunch(grid, local, "", (), {}, {}, reader.numbers(), code.count("\n", 0, match.start()) + 1)


def extents_of_enqueue(reader: HostReader, passed: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Groups and work-items of a group, x first, from what `clEnqueueNDRangeKernel` gets; no items: all are counted.

    Raises:
        Untranslatable: one is computed in a way that is not read here.
    """
    dimensions = reader.text(passed[2])
    if not dimensions.isdigit():
        raise Untranslatable(passed[2])
    total = reader.array(passed[4], int(dimensions))
    if re.fullmatch(r"NULL|nullptr|0", passed[5].strip()):
        return total, ()
    local = reader.array(passed[5], int(dimensions))
    return tuple(divided(whole, part) for whole, part in zip(total, local, strict=True)), local


_LOOSER = re.compile(r"\b(?:if|else|and|or|not)\b|[<>=!]")
"""What binds less than any arithmetic."""


def divided(total: str, local: str) -> str:
    """`ceil_div(n, 64) * 64` groups of 64 are `ceil_div(n, 64)`."""
    while _is_wrapped(total):
        total = total[1:-1]
    for pattern, others in ((rf"(.+) \* {re.escape(local)}", "+-"), (rf"{re.escape(local)} \* (.+)", "+-/%")):
        found = re.fullmatch(pattern, total)
        outside = _outside_brackets(found[1]) if found else ""
        if found and _is_closed(found[1]) and not set(others) & set(outside) and not _LOOSER.search(outside):
            return found[1].removeprefix("(").removesuffix(")") if _is_wrapped(found[1]) else found[1]
    return f"ceil_div({total}, {local})"


_PASSED = "kw_passed_"
"""Before the name of a kernel's argument, which the host may have another variable of."""


def _is_closed(text: str) -> bool:
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            return False
    return depth == 0


def _outside_brackets(text: str) -> str:
    while (shorter := re.sub(r"\([^()]*\)", "", text)) != text:
        text = shorter
    return text


def _is_wrapped(text: str) -> bool:
    return text.startswith("(") and text.endswith(")") and _is_closed(text[1:-1])


def split_commas(text: str, *, opening: str = "([{", closing: str = ")]}") -> list[str]:
    """The parts between commas that are in no bracket."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        if letter in opening:
            depth += 1
        elif letter in closing:
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    last = text[start:].strip()
    return [*parts, last] if last or parts else []


class HostReader:
    """Expressions of host code, in the names that it does not compute: `blocks` as `ceil_div(n, 256)`."""

    def __init__(
        self,
        before: str,
        kept: frozenset[str] | set[str],
        renamed: Mapping[str, str],
        types: Mapping[str, str] | None = None,
        said: frozenset[str] = frozenset(),
    ) -> None:
        """`kept`: names that stay, although the code sets them; `renamed`: by name, what it is called instead.

        `types`: by name of a template's type, what it is; `said`: names of this code alone that a person says.
        """
        self.said = said
        self._types = types or {}
        self._before = before
        self._kept = kept
        self._renamed = renamed
        self._nesting = 0

    def computed(self, text: str) -> str:
        """What an argument is made of; a name that is kept elsewhere as what the code sets it to.

        Raises:
            Untranslatable: it is computed in a way that is not read here, or of what is not passed.
        """
        marked = {name: _PASSED + parameter for name, parameter in self._renamed.items()}
        made = HostReader(self._before, set(self._kept) - {text}, marked, self._types).text(text)
        if not all(word.startswith(_PASSED) or word in self.said for word in Expression.parse(made).names):
            raise Untranslatable(text)  # the host's `n` may not be the kernel's
        return made.replace(_PASSED, "")

    def numbers(self) -> Mapping[str, int]:
        """Names that are set to a plain number, once."""
        return plain_numbers(self._before)

    def extents(self, text: str) -> tuple[str, ...]:
        """What a `dim3`, a number or a variable of either says, x first.

        Raises:
            Untranslatable: it is computed in a way that is not read here.
        """
        value = text.strip()
        made = re.fullmatch(r"dim3\s*[({](.*)[)}]", value, re.DOTALL)
        if made:
            return self._components(made[1])
        if re.fullmatch(r"[A-Za-z_]\w*", value):
            name = re.escape(value)
            if re.search(rf"\b{name}\s*\.\s*[xyz]\s*[-+*/%]?=(?!=)", self._before):
                raise Untranslatable(value)
            patterns = (
                rf"\bdim3\s+(?:[^;]*,\s*)?{name}\s*[({{]",
                rf"\bdim3\s+{name}\s*=\s*(?:dim3\s*)?[({{]",
                rf"\b{name}\s*=\s*dim3\s*[({{]",
            )
            for pattern in patterns:
                found = list(re.finditer(pattern, self._before))
                if len(found) > 1:
                    raise Untranslatable(value)
                if found:
                    start = found[0].end() - 1
                    return self._components(self._before[start + 1 : _closing(self._before, start)])
        return (self.text(value),)

    def _components(self, inside: str) -> tuple[str, ...]:
        parts = tuple(self.text(part) for part in split_commas(inside))
        if not 1 <= len(parts) <= 3:
            raise Untranslatable(inside)
        while len(parts) > 1 and parts[-1] == "1":
            parts = parts[:-1]
        return parts

    def array(self, text: str, count: int) -> tuple[str, ...]:
        """The extents behind a pointer to `size_t`: an array with its items, or a variable's address."""
        value = text.strip()
        if value.startswith("&"):
            return (self.text(value[1:]),)
        name = re.escape(value)
        found = list(re.finditer(rf"\b{name}\s*(?:\[[^\]]*\])?\s*=?\s*\{{", self._before))
        if not found:
            return tuple(self._item(value, index) for index in range(count))
        if len(found) != 1:
            raise Untranslatable(value)
        start = found[0].end() - 1
        parts = tuple(self.text(part) for part in split_commas(self._before[start + 1 : _closing(self._before, start)]))
        if len(parts) != count:
            raise Untranslatable(value)
        return parts

    def _item(self, array: str, index: int) -> str:
        """What `array[index] = ...;` last says."""
        found = re.findall(rf"(?<![\w.]){re.escape(array)}\s*\[\s*{index}\s*\]\s*=(?!=)\s*([^;]+);", self._before)
        if not found:
            raise Untranslatable(f"{array}[{index}]")
        return self.text(found[-1])

    def text(self, expression: str) -> str:
        """A C integer expression in the language of problems.

        Raises:
            Untranslatable: it uses something that is not read here.
        """
        self._nesting += 1
        try:
            if self._nesting > _NESTING:
                raise Untranslatable(expression)
            if re.search(r"\bceilf?\b", expression) and not re.search(r"float|double|\d\.", expression):
                raise Untranslatable(expression)  # of integers, whose quotient is rounded down before
            return _Translation(self, _tokens(_CASTS.sub("", with_sizes(expression, self._types)))).whole()
        finally:
            self._nesting -= 1

    def is_below(self, text: str, other: str) -> bool:
        """Whether what one expression stands for is surely less than another."""
        return text.isdigit() and not other.isdigit()

    def called(self, function: str, passed: Sequence[str]) -> str:
        """What a call of a macro or function of the host's code stands for; `passed`: as written.

        Raises:
            Untranslatable: what it does is not read.
        """
        macro = self._macro(function)
        if macro is None or macro.parameters is None or len(macro.parameters) != len(passed):
            raise Untranslatable(function)
        given = dict(zip(macro.parameters, (f"({each})" for each in passed), strict=True))
        return self.text(re.sub(r"[A-Za-z_]\w*", lambda word: given.get(word[0], word[0]), macro.body))

    def _macro(self, name: str) -> MacroDefinition | None:
        """The one definition of a macro; None where there is none, or several differ."""
        found = {each.body.strip(): each for each in macros(self._before).get(name, ())}
        return next(iter(found.values())) if len(found) == 1 else None

    def variable(self, name: str) -> str:
        """What a name stands for: its one initial value, or itself."""
        owner, dot, component = name.partition(".")
        if dot and name in self._kept:
            return self._renamed.get(name, name)
        if dot and component in "xyz":
            extents = self.extents(owner)
            index = "xyz".index(component)
            return extents[index] if index < len(extents) else "1"
        if dot or "::" in name:
            raise Untranslatable(name)
        if name in self._kept:
            return self._renamed.get(name, name)
        known = self.numbers().get(name)
        if known is not None:
            return str(known)
        macro = self._macro(name)
        if macro is not None and macro.parameters is None and macro.body.strip():
            return folded(self.text(macro.body))
        kinds = r"\b(?:int|unsigned|size_t|long|auto|uint\w*|int\w*_t)"
        assigned = re.findall(rf"{kinds}\s+{re.escape(name)}\s*=\s*([^;]+);", self._before)
        again = changes_of(self._before)[name]
        if len(assigned) == 1 and again == 1:
            return self.text(split_commas(assigned[0])[0])
        if len(assigned) == 1 and again == 2:
            return self._doubled(name, self.text(split_commas(assigned[0])[0]))
        if assigned or again:
            raise Untranslatable(name)
        return name

    def _doubled(self, name: str, start: str) -> str:
        """What a name is after `while (name < n && name < 1024) name *= 2;`.

        Raises:
            Untranslatable: there is no such loop, or none of its limits is a number.
        """
        word, limit = re.escape(name), r"([^&|()<>=]+?)"
        head = rf"while\s*\(\s*{word}\s*<\s*{limit}\s*&&\s*{word}\s*<\s*{limit}\s*\)"
        found = re.search(rf"\b{head}\s*\{{?\s*{word}\s*\*=\s*2\s*;", self._before)
        limits = [self.text(each) for each in found.groups()] if found else []
        most = min((int(each) for each in limits if each.isdecimal()), default=0)
        size = next((each for each in limits if not each.isdecimal()), "")
        if not size or not most or not start.isdecimal() or not 0 < int(start) < most:
            raise Untranslatable(name)
        values = [int(start)]
        while values[-1] < most:
            values.append(2 * values[-1])
        if len(values) > _NESTING:
            raise Untranslatable(name)
        made = str(values[-1])
        for each in reversed(values[:-1]):
            made = f"({each} if {size} <= {each} else {made})"
        return made


def folded(text: str) -> str:
    """An expression in plain numbers as the number that it is; others as they are."""
    with contextlib.suppress(KernelwrightError, ArithmeticError):
        expression = Expression.parse(text)
        return text if expression.names else str(expression.evaluate({}))
    return text


def without_casts(expression: str) -> str:
    """The expression without casts to numbers."""
    return _CASTS.sub("", expression)


def with_sizes(expression: str, types: Mapping[str, str]) -> str:
    """`sizeof(float)` as 4, and that of a name in `types` as its type's; others as they are."""

    def size(found: re.Match[str]) -> str:
        name = " ".join(found[1].split())
        name = types.get(name, name)
        dtype = dtype_of_c_type(name, "cuda")
        if dtype is not None:
            width = re.search(r"[a-z]([234])$", name)
            return str(dtype.item_bytes * (int(width[1]) if width and is_vector_c_type(name, "cuda") else 1))
        return found[0]

    return _SIZEOF.sub(size, expression)


def _closing(text: str, start: int) -> int:
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] in "({[") - (text[index] in ")}]")
        if depth == 0:
            return index
    raise Untranslatable(text[start : start + 20])


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Untranslatable(text)
        number, name, sign = match.groups()
        found.append(str(int(number, 0)) if number else name or sign)
        at = match.end()
        while at < len(text) and text[at].isspace():
            at += 1
    if found.count("(") + found.count("?") > _MOST_BRACKETS:
        raise Untranslatable(text)
    return found


class _Translation:
    """A recursive descent over `+ - * / % << >>`, choices by a comparison, brackets, names and calls."""

    def __init__(self, reader: HostReader, tokens: list[str]) -> None:
        self._reader = reader
        self._tokens = tokens
        self._at = 0

    def whole(self) -> str:
        text = self._value()
        if self._at != len(self._tokens):
            raise Untranslatable(" ".join(self._tokens))
        return text

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _value(self) -> str:
        text, binding = self._choice()
        if binding == _COMPARED:
            raise Untranslatable(text)
        return text

    def _choice(self) -> tuple[str, int]:
        """`d < 1024 ? d : 1024` is `min(d, 1024)`; other choices by one comparison stay choices."""
        text, binding = self._sum()
        if self._peek() in _COMPARISONS:
            text, binding = f"{text} {self._take()} {self._sum()[0]}", _COMPARED
        if self._peek() != "?":
            return text, binding
        self._take()
        chosen = self._value()
        if binding != _COMPARED or self._take() != ":":
            raise Untranslatable(text)
        other = self._value()
        left, sign, right = re.split(r" ([<>=!]=|[<>]) ", text, maxsplit=1)
        whole = _rounded_quotient(left, sign, right, (chosen, other))
        if whole:
            return whole, 2
        if sign[0] in "<>" and {left, right} == {chosen, other}:
            return f"{'min' if (sign[0] == '<') == (chosen == left) else 'max'}({left}, {right})", 2
        return f"({chosen} if {text} else {other})", 2

    def _sum(self) -> tuple[str, int]:
        """A text with how tightly it binds: 2 for one thing, 1 for a product, 0 for a sum."""
        text, binding = self._product()
        while self._peek() in ("+", "-"):
            sign = self._take()
            other, other_binding = self._product()
            text, binding = f"{text} {sign} {_bound(other, other_binding, 1)}", 0
        return text, binding

    def _product(self) -> tuple[str, int]:
        text, binding = self._one()
        while self._peek() in ("*", "/", "%", "<<", ">>"):
            sign = self._take()
            other, other_binding = self._one()
            right = _bound(other, other_binding, 2)
            if sign == "/":
                text, binding = self._quotient(text, binding, right)
                continue
            if sign in ("<<", ">>"):
                if not (right.isdigit() and len(right) <= 2):
                    raise Untranslatable(right)
                sign, right = ("*" if sign == "<<" else "//"), str(1 << int(right))
            text, binding = f"{_bound(text, binding, 1)} {sign} {right}", 1
        return text, binding

    def _quotient(self, text: str, binding: int, divisor: str) -> tuple[str, int]:
        """`(n + 255) / 256` and `(n + b - 1) / b` are `ceil_div`."""
        inside = text[1:-1] if _is_wrapped(text) else text
        if divisor.isdigit():
            above = re.fullmatch(rf"(.+) \+ {int(divisor) - 1}|(.+) \+ {divisor} - 1", inside)
            if above and _is_closed(above[1] or above[2]):
                return f"ceil_div({above[1] or above[2]}, {divisor})", 2
        else:
            above = re.fullmatch(rf"(.+) \+ {re.escape(divisor)} - 1|(.+) - 1 \+ {re.escape(divisor)}", inside)
            if above:
                return f"ceil_div({above[1] or above[2]}, {divisor})", 2
        return f"{_bound(text, binding, 1)} // {divisor}", 1

    def _one(self) -> tuple[str, int]:
        word = self._take()
        if word == "(":
            text, binding = self._choice()
            if self._take() != ")" or (binding == _COMPARED and self._peek() != "?"):
                raise Untranslatable(text)
            return (text, binding) if binding in (2, _COMPARED) else (f"({text})", 2)
        if word.isdigit():
            return word, 2
        if not word or not (word[0].isalpha() or word[0] == "_"):
            raise Untranslatable(word or "nothing")
        if self._peek() == "(":
            return self._call(word), 2
        text = self._reader.variable(word)
        return (text, 2) if re.fullmatch(r"\w+|ceil_div\([^()]*\)", text) else (f"({text})", 2)

    def _call(self, function: str) -> str:
        self._take()
        starts = [self._at]
        arguments = [self._value()]
        while self._peek() == ",":
            self._take()
            starts.append(self._at)
            arguments.append(self._value())
        if self._take() != ")":
            raise Untranslatable(function)
        bare = function.rpartition("::")[2]
        if bare in ("min", "max") and len(arguments) == 2:
            return f"{bare}({', '.join(arguments)})"
        if bare in ("static_cast", "int", "size_t") and len(arguments) == 1:
            return f"({arguments[0]})"
        if bare in ("ceil", "ceilf") and len(arguments) == 1:
            return _rounded_up(arguments[0])
        ends = (*(start - 1 for start in starts[1:]), self._at - 1)
        written = [" ".join(self._tokens[start:end]) for start, end in zip(starts, ends, strict=True)]
        try:
            return f"({self._reader.called(bare, written)})"
        except Untranslatable as error:
            unread = error
        if len(arguments) == 2 and _ROUND.fullmatch(bare) and self._reader.is_below(*arguments):
            arguments.reverse()  # nobody rounds a small number up to multiples of a large one
        if len(arguments) == 2 and _ROUND.fullmatch(bare):
            return f"(ceil_div({arguments[0]}, {arguments[1]}) * {arguments[1]})"
        if len(arguments) == 2 and _CEIL.fullmatch(bare):
            return f"ceil_div({arguments[0]}, {arguments[1]})"
        raise unread


def _rounded_quotient(left: str, sign: str, right: str, values: tuple[str, str]) -> str:
    """`n % 64 == 0 ? n / 64 : n / 64 + 1` as `ceil_div`; empty where it is something else."""
    product = re.fullmatch(r"(\w+|\(.+\)) % (\w+)", left[1:-1] if _is_wrapped(left) else left)
    exact, above = (each[1:-1] if _is_wrapped(each) else each for each in (values if sign == "==" else values[::-1]))
    if product is None or right != "0" or sign not in ("==", "!=", ">"):
        return ""
    quotient = f"{product[1]} // {product[2]}"
    is_ceil = exact == quotient and above in (f"{quotient} + 1", f"({quotient}) + 1")
    return f"ceil_div({product[1]}, {product[2]})" if is_ceil else ""


def _rounded_up(text: str) -> str:
    """`ceil(n / 256.0)`, read as `n // 256`."""
    inside = text[1:-1] if _is_wrapped(text) else text
    if "//" not in text:
        return text
    found = re.fullmatch(r"(.+) // (\w+|\([^()]*\))", inside)
    if found is None or not _is_closed(found[1]):
        raise Untranslatable(text)
    whole = found[1][1:-1] if _is_wrapped(found[1]) else found[1]
    return f"ceil_div({whole}, {found[2]})"


def _bound(text: str, binding: int, least: int) -> str:
    return text if binding >= least else f"({text})"
