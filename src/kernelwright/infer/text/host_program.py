"""The launches that a program's host code makes from `main` on, in order, with what it passes by value.

Of loops around launches the first round is read. Sizes stay names where the code sets them once: macros, literals,
`atoi(argv[1])` with the numbers that the program is run with.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kernelwright.errors import Location, SpecError
from kernelwright.infer.text.host import (
    HostReader,
    Untranslatable,
    extents_of_enqueue,
    folded,
    loop_around,
    split_commas,
    with_sizes,
    without_casts,
    without_texts,
)
from kernelwright.infer.text.host_changes import (
    asked_of_device,
    changed_value,
    element_value,
    is_set_by_call,
    member_value,
    read_from_file,
    returned_value,
)
from kernelwright.infer.text.host_text import HostText
from kernelwright.problem.expressions.expression import Expression
from kernelwright.source.if_conditions import condition_value
from kernelwright.source.lexer import directives, masked, matching, tokens_of
from kernelwright.source.preprocess import preprocess

_ARGV = re.compile(r"(?:std::)?(?:ato[ifl]l?|sto[iufld]l*|strto\w+)\s*\(\s*argv\s*\[\s*(\d+)\s*\][^()]*\)")
_FLOAT = re.compile(r"\(?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fFlL]?\s*\)?")
_CAST = re.compile(r"\(\s*(?:const\s+)?(?:void|float|double|char|int|cl_mem|size_t)\s*\**\s*\)")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<((?:[^<>;]|<<(?!<)|<[^<>;]*>)*)>\s*)?(<<<|\()")
_FUNCTION = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_T = TypeVar("_T")
_WORDS = frozenset(("if", "for", "while", "switch", "return", "sizeof"))
_MOST_CALLS = 8
_ELEMENT = re.compile(r"(?<![\w.>])([A-Za-z_]\w*)\s*\[\s*(\w+)\s*\]")
_POINTED = re.compile(r"(?:^|(?<=[=(,?:+\-/%<>]))\s*\*\s*([A-Za-z_]\w*)")
MULTIPROCESSORS = 128
"""What a program that asks the device is taken to hear. A guess."""
SIZE_OF_FILES = 1 << 16
"""What a count that a program reads from its data is taken to be. A guess."""
_ALLOCATIONS = frozenset(
    f"{vendor}{call}"
    for vendor in ("cuda", "hip")
    for call in ("Malloc", "MallocManaged", "MallocAsync", "MallocHost", "HostAlloc", "HostMalloc")
)
_FILLS = re.compile(r"(?:cuda|hip)(?:Memset|Memcpy)(?:Async)?")
_COUNT = re.compile(r"\b(\w+)\s*\.\s*size\s*\(\s*\)")
_MEMBER = re.compile(r"(?<=[\w\])])\s*(?:->|\.)\s*(?=[A-Za-z_])")
_SIZEOF = re.compile(r"\bsizeof\s*\(\s*([\w: ]+?)\s*\)")


@dataclass(frozen=True, slots=True)
class ProgramLaunch:
    """One launch; expressions are in names that `HostProgram.sizes` has."""

    kernel: str
    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared_bytes: str
    actuals: tuple[str, ...]
    """What is passed for each parameter: the name of an array, or a number or an expression."""
    location: Location
    is_in_loop: bool
    instance: str = ""
    """The arguments of a template, as written."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """A function while its body is followed, up to `at`."""

    start: int
    at: int
    parameters: Mapping[str, str]
    """By parameter, what the caller passes."""
    caller: _Frame | None = None

    @property
    def depth(self) -> int:
        """How many callers there are."""
        return 0 if self.caller is None else 1 + self.caller.depth


@dataclass
class HostProgram:
    """Host code, and what its names stand for."""

    host: HostText
    run: tuple[str, ...] = ()
    """The words that the program is run with."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Names that were met, with their values."""
    _allocations: list[tuple[_Frame, list[str]]] = field(default_factory=list)
    """What was passed to the calls that allocate arrays, and where."""
    zeroed: set[str] = field(default_factory=set)
    """Arrays that were set to 0 before any launch got them, and to nothing else."""
    _fillings: dict[str, _Frame] = field(default_factory=dict)
    """By array, where it was set to 0 last."""
    _launched: set[str] = field(default_factory=set)
    """Arrays that launches got."""
    guesses: dict[str, str] = field(default_factory=dict)
    """By name of a size that the code does not say, what is guessed."""

    def __post_init__(self) -> None:
        first = preprocess(self.host.text, "cuda")
        self.macros = {name: each.value for name, each in first.macros.items() if each.value is not None}
        self._expanded = preprocess(_without(self.host.text, self.macros), "cuda")
        self.code = _joined_chevrons(without_texts(masked(self._expanded.text), self._expanded.text))
        self.functions = dict(_functions(self.code))
        self.bodies = {name: (names, self.code[a:b]) for name, (names, a, b) in self.functions.items()}
        self.objects = dict(re.findall(r'(\w+)\s*=\s*clCreateKernel\s*\(\s*\w+\s*,\s*"(\w+)"', self.code))

    def location(self, at: int) -> Location:
        """Where a place in the code is."""
        start = self._expanded.place(at, at + 1).span.start
        return self.host.location(self.host.text.encode("utf-8", "surrogatepass")[:start].count(b"\n"))

    def with_run_words(self, text: str) -> str:
        """An expression with the words that the program is run with in place of `atoi(argv[1])`."""
        run = self.run
        text = with_sizes(text, {})
        return _ARGV.sub(lambda found: run[int(found[1]) - 1] if int(found[1]) <= len(run) else found[0], text)

    def launches(self, kernels: Mapping[str, int]) -> Iterator[ProgramLaunch]:
        """From `main` on, in order; `kernels`: how many parameters each has.

        Raises:
            SpecError: a grid or a block is computed in a way that is not read.
        """
        _, start, end = self.functions.get("main", ((), 0, 0))
        yield from self._within(_Frame(start, start, {}), end, kernels, 0)

    def _within(self, frame: _Frame, end: int, kernels: Mapping[str, int], depth: int) -> Iterator[ProgramLaunch]:
        for found in _CALL.finditer(self.code, frame.start, end):
            name, opening = found[1], found.end() - 1
            here = replace(frame, at=found.start())
            if found[3] == "<<<" and name in kernels:
                passed = self._passed(self.code.find("(", self.code.find(">>>", opening)))
                instance = self._in_numbers(self.instance(found[2] or self._deduced(here, name, passed), here), here)
                launch = replace(self._chevron(here, name, opening + 1), instance=instance)
                self.zeroed -= {each for each in launch.actuals if not self._is_filled_before(each, here)}
                self._launched.update(launch.actuals)
                yield launch
            elif name == "clEnqueueNDRangeKernel":
                yield from self._enqueued(here, self._passed(opening), kernels)
            elif name in _ALLOCATIONS:
                self._allocations.append((here, self._passed(opening)))
            elif _FILLS.fullmatch(name):
                self._note_filling(here, name, self._passed(opening))
            elif name in self.functions and depth < _MOST_CALLS and found[3] == "(":
                formal, start, stop = self.functions[name]
                actual = dict(zip(formal, self._passed(opening), strict=False))
                said = found[2] or self._deduced(here, name, self._passed(opening))
                actual |= zip(self._template_names(name), split_commas(said, opening="<(", closing=">)"), strict=False)
                yield from self._within(_Frame(start, start, actual, here), stop, kernels, depth + 1)

    def allocated_bytes(self) -> Mapping[str, str]:
        """By array of the launches that were read, the bytes that the host allocates for it, in names of `sizes`.

        Arrays whose bytes are computed in a way that is not read, or that are allocated in several ways, are left out.
        """
        found: dict[str, set[str]] = {}
        for frame, passed in self._allocations:
            if len(passed) < 2:
                continue
            reader = _Reader(self, frame)
            array = reader.origin(re.sub(r"^reinterpret_cast\s*<[^<>]*>|[(&\s]+|\)$", "", _CAST.sub("", passed[0])))
            try:
                found.setdefault(array, set()).add(reader.text(passed[1]))
            except Untranslatable:
                found.setdefault(array, set()).add("")
        return {array: texts.pop() for array, texts in found.items() if len(texts) == 1 and texts != {""}}

    def _note_filling(self, frame: _Frame, call: str, passed: Sequence[str]) -> None:
        """What a call fills before the launches: with 0, or with something else."""
        array = _Reader(self, frame).origin(_CAST.sub("", passed[0]).strip().lstrip("&")) if len(passed) > 2 else ""
        if "Memset" in call and re.fullmatch(r"0(?:x0+)?", passed[1]) and array not in self._launched:
            self.zeroed.add(array)
            self._fillings[array] = frame
        elif array not in self._launched:
            self.zeroed.discard(array)

    def _template_names(self, function: str) -> list[str]:
        """The names of a function's template parameters."""
        head = re.search(rf"\btemplate\s*<([^<>{{}};]*)>[^{{}};()]*\b{re.escape(function)}\s*\(", self.code)
        return [] if head is None else [re.sub(r"\s*=.*", "", each).split()[-1] for each in split_commas(head[1])]

    def _passed(self, opening: int) -> list[str]:
        closing = matching(self.code, opening)
        return [] if closing is None else split_commas(self.code[opening + 1 : closing - 1])

    def _enqueued(self, frame: _Frame, passed: list[str], kernels: Mapping[str, int]) -> Iterator[ProgramLaunch]:
        kernel = self.objects.get(passed[1].strip(), "") if len(passed) > 5 else ""
        if kernel not in kernels:
            return
        reader = _Reader(self, frame)
        grid, block = self._read(frame, lambda: extents_of_enqueue(reader, passed))
        pattern = rf"clSetKernelArg\s*\(\s*{re.escape(passed[1].strip())}\s*,\s*(\d+)\s*,(.*?)\)\s*;"
        given = {int(n): split_commas(rest)[-1] for n, rest in re.findall(pattern, self.code[frame.start : frame.at])}
        actuals = tuple(self._actual(reader, given.get(index, "")) for index in range(kernels[kernel]))
        yield ProgramLaunch(kernel, grid, block, "", actuals, self.location(frame.at), self._is_in_loop(frame))

    def _chevron(self, frame: _Frame, kernel: str, start: int) -> ProgramLaunch:
        end = self.code.find(">>>", start)
        opening = self.code.find("(", end)
        configured = split_commas(self.code[start:end])
        reader = _Reader(self, frame)
        grid, block = self._read(frame, lambda: (reader.extents(configured[0]), reader.extents(configured[1])))
        shared = self._read(frame, lambda: reader.text(configured[2])) if len(configured) > 2 else "0"
        actuals = tuple(self._actual(reader, each) for each in self._passed(opening))
        shared = "" if shared == "0" else shared
        return ProgramLaunch(kernel, grid, block, shared, actuals, self.location(frame.at), self._is_in_loop(frame))

    def _deduced(self, frame: _Frame, function: str, passed: Sequence[str]) -> str:
        """Template arguments that are left to the types of what is passed; empty where one is not found."""
        names = self._template_names(function)
        formal = re.search(rf"\b{re.escape(function)}\s*\(([^;{{}}]*?)\)\s*\{{", self.code) if names else None
        if not names or formal is None:
            return ""
        found: dict[str, str] = {}
        for declared, actual in zip(split_commas(formal[1]), passed, strict=False):
            array = re.sub(r"\W.*", "", actual) or "\0"
            meant = next((name for name in names if re.search(rf"\b{name}\b\s*[*&\s]", declared)), None)
            before = self.code[max(0, self.code.rfind("\n}", 0, frame.start)) : frame.at]
            pattern = rf"([A-Za-z_][\w ]*?)\s*(?:\*\s*(?:__restrict__\s*)?|\s){array}\b\s*[=,;)\[]"
            listed = rf"(?:^|[;{{}}])\s*([A-Za-z_][\w ]*?)\s*[*\s]\s*\w+\s*,[^;(){{}}]*\b{array}\b\s*[=,;\[]"
            own = re.findall(pattern, before) or re.findall(listed, before)
            if meant is not None and own:
                found.setdefault(meant, re.sub(r"\b(?:const|static)\b", "", own[-1]).strip())
        return ", ".join(found[name] for name in names) if set(names) == set(found) else ""

    def instance(self, text: str, frame: _Frame) -> str:
        """Template arguments without the file's own names for types and numbers, as the callers give them."""
        aliases = dict(re.findall(r"\busing\s+(\w+)\s*=\s*([\w ]+?)\s*;", self.code))
        aliases |= {name: meant for meant, name in re.findall(r"\btypedef\s+([\w ]+?)\s+(\w+)\s*;", self.code)}
        aliases |= {name: str(value) for name, value in self.macros.items()}
        at: _Frame | None = frame
        while at is not None:
            text = _in_words(text, at.parameters)
            at = at.caller
        return _in_words(text, aliases).strip()

    def _in_numbers(self, instance: str, frame: _Frame) -> str:
        """Template arguments with the numbers that the host's code sets its names to."""
        reader = _Reader(self, frame)
        parts = split_commas(instance.replace("<<", "\0"), opening="<(", closing=">)")
        return ", ".join(reader.number_of(each.replace("\0", "<<")) for each in parts)

    def _read(self, frame: _Frame, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except (Untranslatable, IndexError) as error:
            raise SpecError(
                f"how a kernel is launched here is not read: {str(error) or 'its configuration'}",
                hint="write the launch into problem.toml by hand: kernelwright init KERNEL --grid X,Y --block X,Y",
                location=self.location(frame.at),
            ) from None

    def _actual(self, reader: _Reader, text: str) -> str:
        """What is passed: an array's name in `main`, a number, or an expression in sizes."""
        bare = _CAST.sub("", text).strip().lstrip("&").strip()
        try:
            return reader.text(bare)
        except Untranslatable:
            return reader.number(bare) or reader.origin(bare)

    def _is_in_loop(self, frame: _Frame) -> bool:
        return self._loop_around(frame) is not None

    def _loop_around(self, frame: _Frame) -> tuple[_Frame, int] | None:
        """The innermost loop around a place: the call in which it stands, and where it begins there."""
        begin = loop_around(self.code[frame.start : frame.at])
        if begin is not None:
            return frame, frame.start + begin
        return None if frame.caller is None else self._loop_around(frame.caller)

    def _is_filled_before(self, array: str, frame: _Frame) -> bool:
        """Whether an array that was set to 0 is so whenever a launch begins: a loop around that sets it anew."""
        filled, loop = self._fillings.get(array), self._loop_around(frame)
        if filled is None or loop is None:
            return filled is not None
        around, begin = loop
        while filled is not None and filled.depth > around.depth:
            filled = filled.caller
        return filled is not None and filled.start == around.start and filled.at > begin


class _Reader(HostReader):
    """Names as a function sees them where it launches: its own last value, what the caller passes, globals."""

    def __init__(self, program: HostProgram, frame: _Frame) -> None:
        super().__init__(program.code[frame.start : frame.at], frozenset(), {})
        self._program = program
        self._frame = frame

    def numbers(self) -> Mapping[str, int]:
        """None but the program's sizes: what a function sets is read where it is used."""
        return {}

    def extents(self, text: str) -> tuple[str, ...]:
        """As the host's; what a component of a `dim3` was last set to counts."""
        name = text.strip()
        changed = {
            axis: found[-1]
            for axis in "xyz"
            if (found := re.findall(rf"(?<!\w){re.escape(name)}\s*\.\s*{axis}\s*=(?!=)\s*([^;]+);", self._before))
        }
        if (
            not changed
            and not re.search(rf"\b{re.escape(name)}\b\s*[=({{,;)]", self._before)
            and re.fullmatch(r"\w+", name)
        ):
            outside = re.search(
                rf"^\s*(?:const\s+|static\s+)*dim3\s+{re.escape(name)}\s*(?:=\s*dim3\s*)?\(([^;]*)\)\s*;",
                self._program.code,
                re.MULTILINE,
            )
            if outside is not None:
                return self._components(outside[1])
        if not changed:
            return super().extents(text)
        made = list(re.finditer(rf"\bdim3\s+(?:[^;]*,\s*)?{re.escape(name)}\s*\(", self._before))
        end = matching(self._before, made[-1].end() - 1) if made else None
        given = [] if end is None else split_commas(self._before[made[-1].end() : end - 1])
        texts = [*given, "1", "1", "1"][:3]
        extents = [self.text(changed.get(axis, text)) for axis, text in zip("xyz", texts, strict=True)]
        while len(extents) > 1 and extents[-1] == "1":
            extents.pop()
        return tuple(extents)

    def variable(self, name: str) -> str:
        owner, dot, component = name.partition(".")
        if dot and component in "xyz":
            extents = self.extents(owner)
            index = "xyz".index(component)
            return extents[index] if index < len(extents) else "1"
        member = self._member(component) if dot else ""
        if member:
            return self.text(member)
        made = member_value(self.origin(owner), component, self._program.code) if dot else None
        name = component if dot else name
        macro = self._program.macros.get(name)
        if macro is not None:
            self._program.sizes[name] = macro
            return name
        value, is_round, reader = self.value_of(name) if made is None else (made, False, self)
        if value is None and dot:
            value = self._of_device(name)
        if value is None:
            raise Untranslatable(name)
        text = reader.text(value)
        if not re.fullmatch(r"\d+", text) or is_round:
            return text
        if self._program.sizes.setdefault(name, int(text)) != int(text):
            return text
        return name

    def _member(self, name: str) -> str:
        """What the one assignment to a member of this name says; empty where there is none.

        Raises:
            Untranslatable: several members have the name, or one changes.
        """
        place = rf"(?:->|\.)\s*{re.escape(name)}\b"
        found = re.findall(rf"{place}\s*([-+*/%|&^]?=(?!=)|<<=|>>=|\+\+|--)\s*([^;]*);", self._program.code)
        said = {_value_alone(text) for operator, text in found if operator == "=" and "optarg" not in text}
        if any(operator != "=" for operator, _ in found) or len(said) > 1 or any(re.search(place, e) for e in said):
            raise Untranslatable(name)
        return said.pop() if said else ""

    def is_below(self, text: str, other: str) -> bool:
        """By the sizes that are known."""
        try:
            first, second = (Expression.parse(each).evaluate(self._program.sizes) for each in (text, other))
        except SpecError:
            return False
        return isinstance(first, int) and isinstance(second, int) and first < second

    def _of_device(self, name: str) -> str | None:
        """A property of the device; None: it is none that is known."""
        if name == "multiProcessorCount":
            self._program.guesses[name] = f"{name} is the device's: {MULTIPROCESSORS} is a guess"
        return {"warpSize": "32", "maxThreadsPerBlock": "1024", "multiProcessorCount": str(MULTIPROCESSORS)}.get(name)

    def _element(self, found: re.Match[str]) -> str:
        """The number or name that an array's element is; as it is where that is not known."""
        index: str | None = found[2]
        if not found[2].isdigit():
            index = self.value_of(found[2])[0]
        if index is None or not index.isdigit():
            return found[0]
        value = element_value(found[1], int(index), self._before, self._program.code)
        return found[0] if value is None else (value if value.isdigit() else f"({value})")

    def text(self, expression: str) -> str:
        for _ in range(_MOST_CALLS):
            before, expression = expression, _POINTED.sub(self._pointed, _ELEMENT.sub(self._element, expression))
            if expression == before:
                break
        expression = _SIZEOF.sub(lambda found: f"sizeof({self._program.instance(found[1], self._frame)})", expression)
        expression = _MEMBER.sub(".", _COUNT.sub(self._vector_length, expression))
        expression = self._program.with_run_words(expression)
        try:
            return super().text(expression)
        except Untranslatable:
            if not re.search(r"[&|^~]|<<|>>", expression):
                raise
        return self._number_of_bits(expression)

    def _pointed(self, found: re.Match[str]) -> str:
        """`*n`, where the caller passes `&n`, as `n`."""
        return found[1] if self._frame.parameters.get(found[1], "").strip().startswith("&") else found[0]

    def _vector_length(self, found: re.Match[str]) -> str:
        """What `std::vector<float> name(length)` says for `name.size()`."""
        name = re.escape(self.origin(found[1]))
        said = re.findall(rf"\bvector\s*<[^;()]*>\s*{name}\s*\(([^;]*)\)\s*;", self._program.code)
        return f"({split_commas(said[0])[0]})" if len(said) == 1 and said[0].strip() else found[0]

    def _number_of_bits(self, expression: str) -> str:
        """The number that an expression with `&`, `|`, `^`, `~` or shifts has.

        Raises:
            Untranslatable: it is made of what is not known here.
        """
        text = re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda found: self._known(found[0]), without_casts(expression))
        value = condition_value(list(tokens_of(text)))
        if value is None or value < 0:
            raise Untranslatable(expression)
        return str(value)

    def _known(self, name: str) -> str:
        try:
            return str(Expression.parse(self.variable(name)).evaluate(self._program.sizes))
        except SpecError:
            raise Untranslatable(name) from None

    def number_of(self, text: str) -> str:
        """The number that an expression has, `true` or `false`; as it is where it is a type, or none is known."""
        if re.fullmatch(r"[A-Za-z_]\w*", text) and self.value_of(text)[0] in ("true", "false"):
            return self.value_of(text)[0] or text
        try:
            return str(Expression.parse(self.text(text)).evaluate(self._program.sizes))
        except (Untranslatable, SpecError):
            return text

    def called(self, function: str, passed: Sequence[str]) -> str:
        """What a function of the program returns that does nothing else."""
        formal, start, end = self._program.functions.get(function, ((), 0, 0))
        value = returned_value(self._program.code[start:end])
        if value is None or len(formal) != len(passed) or self._frame.depth > 2 * _MOST_CALLS:
            raise Untranslatable(function)
        inside = _Frame(start, start, dict(zip(formal, passed, strict=True)), self._frame)
        before = dict(self._program.sizes)
        text = _Reader(self._program, inside).text(value)
        own = {
            name: str(self._program.sizes.pop(name))
            for name in self._program.sizes.keys() & set(formal) - before.keys()
        }
        return _in_words(text, own)

    def number(self, text: str) -> str:
        """A float that is passed; empty where it is none that is set to a plain number."""
        reader: _Reader = self
        for _ in range(_MOST_CALLS):
            text = self._program.with_run_words(_CAST.sub("", text))
            if found := _FLOAT.fullmatch(text.strip()):
                return found[1]
            if not re.fullmatch(r"\w+", text.strip()):
                return ""
            value, _, reader = reader.value_of(text.strip())
            if value is None:
                return ""
            text = value
        return ""

    def _first_of_list(self, name: str) -> str | None:
        """The first that `for (int name : list)` takes of `list[] = {...}`."""
        heads = re.findall(rf"\bfor\s*\([^;:()]*\b{re.escape(name)}\s*:\s*(\w+|\{{[^{{}}]*\}})\s*\)", self._before)
        if not heads:
            return None
        items = re.findall(rf"\b{heads[-1]}\s*(?:\[\w*\])?\s*=?\s*\{{([^{{}}]*)\}}", self._program.code) if (
            heads[-1][0] != "{"
        ) else [heads[-1][1:-1]]  # fmt: skip
        listed = split_commas(items[0]) if len(items) == 1 else []
        return listed[0] if listed else None

    def origin(self, name: str) -> str:
        """What the outermost caller calls an array."""
        frame: _Frame | None = self._frame
        name = re.sub(r"^.*\?\s*", "", name)  # of a choice the first
        name = re.sub(r"\W.*", "", re.sub(r"^(\w+)\[(\w+)\]$", r"\1_\2", name))
        while frame is not None and name in frame.parameters and frame.caller is not None:
            passed = re.sub(r"^[^\w]*|\W.*$", "", _CAST.sub("", frame.parameters[name]).strip())
            if not passed:
                break
            name, frame = passed, frame.caller
        return name

    def value_of(self, name: str) -> tuple[str | None, bool, _Reader]:
        """What a name is set to, whether a loop's head says it, and who reads that; None: nothing is known."""
        word = rf"(?<![\w.>]){re.escape(name)}\b"
        pattern = rf"(\bfor\s*\(\s*(?:\w+\s+)*)?(?<![\w.>\]])({re.escape(name)})\s*=(?!=)\s*([^;]+);"
        own = [
            (text, found[1] is not None, found.end())
            for found in re.finditer(pattern, self._before)
            if (text := _value_alone(found[3])) and not re.search(word, text)
        ]
        text, is_round, end = own[-1] if own else ("", False, 0)
        if (read := read_from_file(name, end, self._before)) is not None:
            self._program.guesses[name] = f"{name} is read from a file: {SIZE_OF_FILES} is a guess"
            return self._changed(name, str(SIZE_OF_FILES), read), False, self
        if (asked := asked_of_device(name, end, self._before)) is not None:
            return self._changed(name, self._of_device("multiProcessorCount") or "", asked), False, self
        if own and is_set_by_call(name, end, self._before, self._program.bodies):
            return None, False, self
        if own:
            return (text if is_round else self._changed(name, text, end)), is_round, self
        listed = self._first_of_list(name)
        if listed is not None:
            return listed, True, self
        frame = self._frame
        if name in frame.parameters and frame.caller is not None:
            passed, caller = frame.parameters[name].strip().lstrip("&"), _Reader(self._program, frame.caller)
            if changed_value(name, passed, 0, self._before) == passed:
                return passed, False, caller
            number = caller.number_of(passed)
            return (self._changed(name, number, 0) if number.isdigit() else None), False, self
        code = self._program.code
        pattern = rf"(?<![\w.>\]])\*?\s*{re.escape(name)}\s*=(?!=)\s*([^;]+);"
        others = {_value_alone(found[1]) for found in re.finditer(pattern, code)}
        others = {each for each in others if "optarg" not in each}  # without options a program has its defaults
        return (others.pop(), False, self) if len(others) == 1 else (None, False, self)

    def _changed(self, name: str, text: str, end: int) -> str | None:
        """What a name stands for that is set to a text before `end`; as a plain number where it is one."""
        value = changed_value(name, text, end, self._before)
        if value is None or value == text:
            return value
        with contextlib.suppress(Untranslatable):
            number = folded(self.text(value))
            return number if number.isdigit() else value
        return None


def _joined_chevrons(code: str) -> str:
    """`<<<` and `>>>` where a macro's body leaves blanks in them, in the same length."""
    return re.sub(r"<<(\s+)<|>>(\s+)>", lambda found: f"{found[0][:2]}{found[0][-1]}{found[1] or found[2]}", code)


def _in_words(text: str, words: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda found: words.get(found[0], found[0]), text)


def _value_alone(text: str) -> str:
    """What a name is set to, without what follows: `n) <= 0` is `n`, `1, j = 2` is `1`, `m = 3` is `3`."""
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            text = text[:index]
            break
    alone = (split_commas(text) or [""])[0]
    return re.split(r"(?<![=!<>])=(?!=)", alone)[-1].strip()


def _without(text: str, macros: Mapping[str, int]) -> str:
    """The text without the definitions of some macros, in the same length."""
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for each in directives(masked(text)):
        if each.definition is not None and each.definition.name in macros:
            start = len(text[: each.start].encode("utf-8", "surrogatepass"))
            end = len(text[: each.end].encode("utf-8", "surrogatepass"))
            data[start:end] = re.sub(rb"[^\n]", b" ", bytes(data[start:end]))
    return data.decode("utf-8", "surrogatepass")


def _functions(code: str) -> Iterator[tuple[str, tuple[tuple[str, ...], int, int]]]:
    """By name: parameters, and where the body starts and ends."""
    at = 0
    while found := _FUNCTION.search(code, at):
        closing = matching(code, found.end() - 1)
        body = None if closing is None else re.match(r"\s*(?:noexcept\s*)?\{", code[closing:])
        if closing is None or body is None or found[1] in _WORDS:
            at = found.end()
            continue
        end = matching(code, closing + body.end() - 1)
        if end is None:
            return
        parameters = split_commas(code[found.end() : closing - 1])
        names = tuple((re.findall(r"[A-Za-z_]\w*", re.sub(r"\[.*", "", each)) or [""])[-1] for each in parameters)
        yield found[1], (names, closing + body.end(), end)
        at = end
