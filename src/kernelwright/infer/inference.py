"""From a kernel's file and a person's words to everything that its problem needs.

```
inferred = infer(Path("layer_norm.cl"), read_words(["rows=2048", "hidden=1024", "eps=1e-5"]))
inferred.questions      # empty: nothing has to be asked
```
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path

from kernelwright.analysis.analysis import Analysis, analyse
from kernelwright.analysis.polynomial import ONE
from kernelwright.errors import KernelwrightError, Location, SpecError, UsageError
from kernelwright.infer.arguments import FROM_MEMORY, ArrayReader
from kernelwright.infer.bounds import Bounds, Unbounded
from kernelwright.infer.c_types import dtype_of, struct_numbers
from kernelwright.infer.launch import UNGUARDED, LaunchReader
from kernelwright.infer.model import Inferred, InferredArgument, InferredLaunch, Question
from kernelwright.infer.sizes import guess_sizes, index_names, size_names
from kernelwright.infer.symbols import Symbols
from kernelwright.infer.text.compile_options import compile_options
from kernelwright.infer.text.groups import plain_groups
from kernelwright.infer.text.host import find_launch
from kernelwright.infer.text.instances import (
    GUESSED_TYPE,
    example_arguments,
    guessed_types,
    instance_text,
    launched_types,
    split_instance,
)
from kernelwright.infer.text.structs import structures_of, with_members
from kernelwright.infer.words import Words
from kernelwright.infer.work import MOST_BYTES, MOST_STEPS, steps_of
from kernelwright.problem.dtypes import DTYPES, Dtype, integer_range
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.includes import includes_in
from kernelwright.problem.source_scan import KernelParameter, KernelSignature, scan_kernels, used_words
from kernelwright.problem.toml.file import did_you_mean, read_text
from kernelwright.scaffold.guesses import argument_names
from kernelwright.scaffold.problem_folder import SHARED_ARRAY, refuse_header, refuse_impossible_values
from kernelwright.scaffold.signature import find_kernel
from kernelwright.source.language import LANGUAGE_OF_SUFFIX, Language
from kernelwright.source.lexer import masked, words_of
from kernelwright.source.normal.normal_form import normal_form

ONE_SIZE = "n"
"""The size of a kernel that takes none."""
ELEMENTS = 1 << 20

UNKNOWN_LAUNCH = "not known"

_HALVINGS = 16

_IN_BRACKETS = re.compile(r"\([^()]*\)")

_RESERVED = frozenset(("name", "weight"))


_SLIP = 0.75
"""From how much likeness on; a guess."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a person says beside the file."""

    words: Words
    entry: str | None = None
    grid: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    asks: bool = True
    """Whether what cannot be known or chosen is asked; else it is guessed and marked, for a person to correct."""
    halvings: int = 0
    """How often sizes that nobody says are halved, at least: where a launch was seen to take too long."""


def split_kernel(text: str) -> tuple[Path, str | None]:
    """`FILE::kernel` or `FILE::kernel<float, 4>` as a file and a kernel; a file alone as it is."""
    found = re.fullmatch(r"(.*?)::([A-Za-z_]\w*\s*(?:<.*>)?)", text, re.DOTALL)
    return (Path(found[1]), found[2]) if found else (Path(text), None)


def infer(file: Path, given: Given, *, text: str | None = None) -> Inferred:
    """Everything about one kernel of a file, with questions for what is not in it; `text`: in place of the file's.

    Raises:
        SpecError: the file is no kernel source, defines no such kernel or several, or one that takes or writes nothing
            that a problem could give it.
        UsageError: a word names nothing that the kernel takes, or does not fit.
    """
    language = LANGUAGE_OF_SUFFIX.get(file.suffix)
    if language is None or language == "triton":
        raise SpecError(
            f"cannot read a signature from {file}" + (", which is a folder" if file.is_dir() else ""),
            hint="give an OpenCL, CUDA or HIP source: .cl, .cu or .hip",
        )
    source = read_text(file, what="the kernel source") if text is None else text
    refuse_header(source, file)
    entry, said = (None, ()) if given.entry is None else split_instance(given.entry)
    options = {**given.words.texts, **given.words.types}
    signature = find_kernel(source, language, file=file, entry=entry, defines=options)
    instance = instance_text(source, language, signature.name, said)
    if instance is None and given.asks:
        raise SpecError(
            f"kernel {signature.name!r} is a template, and nothing says which instance is meant",
            hint=f"name its arguments: {file.name}::{signature.name}{example_arguments(source, signature.name)}",
            location=Location(file, signature.line),
        )
    notes: tuple[str, ...] = ()
    types = launched_types(source, language, signature.name, said)
    if instance is not None and instance != source:
        if not said and (guessed := guessed_types(source, language, signature.name)):
            kernel = f"{file.name}::{signature.name}"
            notes = (f"{' and '.join(guessed)}: taken for {GUESSED_TYPE}; name another type, as in {kernel}<half>",)
        source = instance
        signature = find_kernel(instance, language, file=file, entry=signature.name, defines=options)
    plain = plain_groups(source) if language == "cuda" and _is_line(source, signature, given, types) else source
    if plain != source:
        source, signature = plain, find_kernel(plain, language, file=file, entry=signature.name, defines=options)
    structures = structures_of(source, language)
    if signature.name in structures:
        source = with_members(source, language, {signature.name: structures[signature.name]})
        signature = find_kernel(source, language, file=file, entry=signature.name, defines=options)
        names = [name for name, _ in structures[signature.name][1].values()]
        notes = (*notes, f"each member of {' and '.join(names)} is an argument of its own")
    refuse_impossible_values(source, signature, language, file)
    macros, open_, told = compile_options(source, signature, language, given.words, file, asks=given.asks)
    notes = (*notes, *told)
    analysis = analyse(source, language, entry=signature.name, defines=macros, file=file, views=True)

    def found_by(analysis: Analysis) -> Inferred:
        for halvings in range(given.halvings, given.halvings + _HALVINGS):
            found = _Inference(
                file, source, language, signature, analysis, given, halvings, notes, types, macros, open_
            ).result()
            is_small = found.array_bytes <= MOST_BYTES and found.steps <= MOST_STEPS
            if is_small or not found.guessed_sizes or found.questions:
                break
        return found

    found = None if analysis.facts.opaque else found_by(analysis)
    if found is not None and not found.questions:
        return found
    normal = normal_form(source, language, signature.name, macros)
    if found is not None and normal == source:
        return found
    other = found_by(analyse(normal, language, entry=signature.name, defines=macros, file=file, views=True))
    return other if found is None or len(other.questions) < len(found.questions) else found


def _is_slip(name: str, said: str) -> bool:
    """Whether a name is so much like one that is said, too, that both mean the same."""
    return SequenceMatcher(None, name, said).ratio() >= _SLIP


def _is_line(source: str, signature: KernelSignature, given: Given, types: Mapping[str, str]) -> bool:
    """Whether blocks have one axis, as a person or the host's launch says."""
    names = [each.name for each in signature.parameters or ()]
    host = find_launch(source, signature.name, names, frozenset(given.words.numbers), types)
    return len(given.block or (host.block if host is not None else ())) == 1


class _Inference:
    """One kernel, step by step: by-value arguments, launch, arrays."""

    def __init__(
        self,
        file: Path,
        source: str,
        language: Language,
        signature: KernelSignature,
        analysis: Analysis,
        given: Given,
        halvings: int,
        instance_notes: tuple[str, ...],
        types: Mapping[str, str],
        macros: Mapping[str, str],
        open_types: Sequence[str],
    ) -> None:
        """`halvings`: of the sizes that nobody says; `instance_notes`: what is guessed of a template's instance.

        `types`: by name, what a type of the launching code is. `macros`: what compile options say; `open_types`: the
        types that they have to say.
        """
        self._instance_notes = instance_notes
        self._file = file
        self._source = source
        self._language = language
        self._signature = signature
        self._analysis = analysis
        self._given = given
        self._words = given.words
        self._macros = macros
        self._halvings = halvings
        self._parameters = signature.parameters or ()
        shown = argument_names(self._parameters)
        self._shown = {each.name: name for each, name in zip(self._parameters, shown, strict=True)}
        self._questions = [
            Question(f"{name}=TYPE", f"a compile option says what {name!r} is, or a header that is not beside the file")
            for name in open_types if name not in macros
        ]  # fmt: skip
        self._open_types = open_types
        self._guessed: set[str] = set()
        self._launch_sizes: dict[str, int] = {}
        """Sizes that a person says and no argument has: `rows` of a launch of as many blocks."""
        self._scalar_values: dict[str, str] = {}
        self._notes: dict[str, str] = {}
        self._dtypes = {each.name: self._dtype(each) for each in self._parameters}
        said = frozenset(self._words.numbers)
        self._host = find_launch(source, signature.name, [each.name for each in self._parameters], said, types)
        self._words = given.words.renamed(self._meant_by_host())
        defaults = {name: value.constant for name, value in analysis.facts.defaults.items()}
        self._symbols = Symbols(
            analysis.facts.atoms, {}, fixed={name: value for name, value in defaults.items() if value is not None}
        )

    def _meant_by_host(self) -> dict[str, str]:
        """By name of the host's code that no argument has, the argument that it is passed for; none that is said."""
        passed = {} if self._host is None else self._host.names
        own, said = {each.name for each in self._parameters}, self._given.words.names
        return {name: each for name, each in passed.items() if name not in own and each not in said}

    def result(self) -> Inferred:
        self._refuse_unknown_words()
        self._read_scalars()
        launch = self._launch()
        arguments: dict[str, InferredArgument] = {}
        steps = 1
        if launch is not None:
            self._require_alignment()
            reader = ArrayReader(
                self._analysis, self._language, {each.name: each for each in self._parameters if each.is_pointer},
                self._symbols, self._words, self._spare_behind(launch), self._given.asks,
            )  # fmt: skip
            arguments = reader.arguments(self._dtypes, self._shown)
            is_open = bool(self._ask_for_options()) or launch.origin == UNKNOWN_LAUNCH
            self._questions += [each for each in reader.questions if not is_open or each.why.endswith(FROM_MEMORY)
                                or not each.word.endswith("=ELEMENTS")]  # fmt: skip
            self._guessed |= reader.guessed_sizes
            self._ask_for_mixed_bytes(arguments)
            self._refuse_nothing_written(arguments)
            if not launch.shared_bytes:
                launch = self._with_shared_bytes(launch, reader.bounds())
            steps = steps_of(reader.bounds(), self._threads(launch))
        return Inferred(
            file=self._file,
            language=self._language,
            entry=self._signature.name,
            source=self._source,
            arguments=tuple(self._argument(each, arguments) for each in self._parameters),
            launch=launch or InferredLaunch(("1",), ("1",), UNKNOWN_LAUNCH, UNKNOWN_LAUNCH),
            sizes=dict(self._symbols.values),
            guessed_sizes=frozenset(self._guessed),
            questions=tuple(self._questions),
            steps=steps,
            halvings=self._halvings,
            notes=tuple(self._left_out()),
            options=tuple(f"-D{name}={text}" for name, text in self._macros.items()),
        )

    def _require_alignment(self) -> None:
        """Refuse sizes in bytes by which elements would not be aligned: `pitch=30` of rows of floats."""
        for value, size in self._analysis.facts.aligned:
            known = self._symbols.number(value)
            if known is not None and known % size:
                raise UsageError(
                    f"'{value}' counts bytes of numbers, so it is a multiple of {size}; {known} is none",
                    hint=f"say a multiple of {size}",
                )

    def _ask_for_mixed_bytes(self, arguments: Mapping[str, InferredArgument]) -> None:
        """Ask for bytes that the kernel reads as numbers of several types, as none of which they can be drawn."""
        for name, each in arguments.items():
            own = next(parameter.c_type for parameter in self._parameters if parameter.name == name)
            types = self._analysis.facts.viewed.get(name, frozenset()) - {""}
            is_mixed = each.dtype.item_bytes == 1 and len(types) > 1 and own not in types and each.role != "output"
            if is_mixed and not each.file and self._given.asks:
                why = f"its bytes are read as {' and '.join(sorted(types))}, so they cannot be drawn at random"
                self._questions.append(Question(f"{name}=FILE.npy", why))

    def _ask_for_options(self) -> list[Question]:
        """Ask for numbers in indices, loops and extents that only a compile option can say: `DK` of `-DDK=64`."""
        facts, code = self._analysis.facts, masked(self._source)
        if not self._given.asks or any(each.is_quoted for each in includes_in(self._source)):
            return []
        known = {*self._shown, *self._symbols.fixed, *self._symbols.values, *self._macros}
        names = [
            name
            for name in sorted(index_names(facts) & frozenset(words_of(code)) - known)
            if facts.atoms[name].kind == "size" and not re.search(rf"\b\w+\s+{name}\s*[=;]", code)
        ]
        asked = [Question(f"{name}=NUMBER", f"the file leaves {name!r} to a compile option") for name in names]
        self._questions += asked
        return asked

    def _threads(self, launch: InferredLaunch) -> int:
        texts = (*launch.grid, *launch.block)
        return math.prod(self._value(text, what="the launch") or 1 for text in texts)

    def _argument(self, parameter: KernelParameter, arrays: dict[str, InferredArgument]) -> InferredArgument:
        found = arrays.get(parameter.name)
        if found is not None and found.is_accumulated and self._is_zeroed(parameter.name):
            found = replace(found, values="zeros", bounds=None, file="")
        if found is not None:
            dtype_note = self._notes.get(parameter.name, "")
            return replace(found, note=found.note or dtype_note)
        shown, dtype = self._shown[parameter.name], self._dtypes[parameter.name]
        value = self._scalar_values.get(parameter.name, "0")
        return InferredArgument(shown, "scalar", dtype, value=value, note=self._notes.get(parameter.name, ""))

    def _is_zeroed(self, name: str) -> bool:
        """Whether the host's code sets an array to 0 before the launch, and a person says nothing else."""
        return self._host is not None and name in self._host.zeroed - {*self._words.files, *self._words.ranges}

    def _left_out(self) -> list[str]:
        kernels = scan_kernels(self._source, self._language)
        own, body = self._signature.name, self._signature.body
        taken = {each.name: [p.name for p in each.parameters or ()] or ["no parameters"] for each in kernels}
        lines = {each.name: each.line for each in kernels if each.name != own and each.body != body}
        others = {name: f"{name} (line {line}: {', '.join(taken[name])})" for name, line in lines.items()}
        kept = [f"left out, with the arguments that only they take: {', '.join(others.values())}"] if others else []
        return [*kept, *self._instance_notes]

    # -- by value ------------------------------------------------------------------------------------

    def _dtype(self, parameter: KernelParameter) -> Dtype:
        c_type = self._macros.get(parameter.c_type, parameter.c_type)
        found = dtype_of(c_type, self._analysis, self._language)
        if parameter.is_pointer and (found is None or found.item_bytes == 1):
            found = (
                dtype_of(self._analysis.facts.arrays[parameter.name].c_type, self._analysis, self._language) or found
            )
        if found is None and c_type in self._open_types:
            found = DTYPES["float32"]  # while it is asked
        if found is not None:
            return found
        struct = struct_numbers(parameter.c_type, self._analysis, self._language) if parameter.is_pointer else None
        if struct is not None:
            return struct[0]
        if parameter.c_type not in self._analysis.facts.template_parameters:
            raise SpecError(
                f"parameter {parameter.name!r} of {self._signature.name!r} is `{parameter.c_type}`, which is no dtype "
                "of a problem",
                hint="pass arrays of numbers, or of structs with members of one type; others as arrays of their own",
                location=Location(self._file, parameter.line),
            )
        self._notes[parameter.name] = f"the source's type is {parameter.c_type}"
        return DTYPES["float32"]

    def _refuse_unknown_words(self) -> None:
        known = [each.name for each in self._parameters]
        tables = [f"{each.name}_values" for each in self._parameters if each.is_pointer]
        launch = self._launch_names() | self._computed_of()
        pointers = {each.name for each in self._parameters if each.is_pointer}
        is_sizeless = not any(self._dtypes[each.name].is_integer for each in self._parameters if not each.is_pointer)
        own = [ONE_SIZE] if is_sizeless else []
        for name in self._words.names:
            if name not in {*known, *launch, *tables, *self._macros, *own}:
                meant = pointers if name not in self._words.numbers else {*known} - pointers
                slips = {each for each in meant if each not in self._words.names or _is_slip(name, each)}
                close = did_you_mean(name, [*sorted(slips), *launch])
                if close or not isinstance(self._words.numbers.get(name), int) or self._words.numbers[name] < 1:
                    raise self._unknown_word(name, close or "leave it out")
                self._launch_sizes[name] = int(self._words.numbers[name])
            if name not in self._words.numbers and name in known and name not in pointers:
                raise UsageError(f"{name!r} is passed by value, so it is one number", hint=f"say {name}=NUMBER")

    def _unknown_word(self, name: str, hint: str) -> UsageError:
        known = ", ".join(each.name for each in self._parameters)
        return UsageError(
            f"the kernel {self._signature.name!r} takes no argument {name!r}; it takes {known}", hint=hint
        )

    def _launch_names(self) -> frozenset[str]:
        """Names in a launch that is given or read: they may be sizes of their own."""
        texts = [*self._given.grid, *self._given.block]
        if self._host is not None:
            texts += [*self._host.grid, *self._host.block]
        names: set[str] = set()
        for text in texts:
            names |= Expression.parse(text).names
        return frozenset(names)

    def _computed_of(self) -> frozenset[str]:
        """Names of the host's code that it computes arguments of which nobody says."""
        computed = {} if self._host is None else self._host.computed
        names: set[str] = set()
        for text in (text for name, text in computed.items() if name not in self._words.numbers):
            with contextlib.suppress(KernelwrightError):
                names |= Expression.parse(text).names
        return frozenset(names)

    def _read_scalars(self) -> None:
        missing: list[KernelParameter] = []
        for each in self._parameters:
            if each.is_pointer:
                continue
            value, text = self._said(each)
            if value is None:
                missing.append(each)
            else:
                self._set(each, value, text)
        while len(open_ := [each for each in missing if not self._computed(each)]) < len(missing):
            missing = open_  # what is computed now may say more
        self._ask_or_guess(missing)
        if not any(not each.is_pointer and self._dtypes[each.name].is_integer for each in self._parameters):
            said = self._words.numbers.get(ONE_SIZE)
            if isinstance(said, int) and said >= 1:
                self._symbols.values[ONE_SIZE] = said

    def _said(self, parameter: KernelParameter) -> tuple[int | float | None, str]:
        """What a person says of a by-value argument, else what the host's code passes."""
        name = parameter.name
        if name in self._words.numbers:
            return self._words.numbers[name], self._words.texts.get(name, "")
        if self._host is not None:
            if name in self._host.literals:
                text = self._host.literals[name]
                return (int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)), text
            for own, passed in self._host.names.items():
                if passed == name and own in self._host.values:
                    return self._host.values[own], str(self._host.values[own])
        return None, ""

    def _computed(self, parameter: KernelParameter) -> bool:
        """Whether the host computes it from integers that are known; then it is set."""
        text = self._host.computed.get(parameter.name) if self._host is not None else None
        if text is None:
            return False
        text = re.sub(r"[A-Za-z_]\w*", lambda word: self._scalar_values.get(word[0], word[0]), text)
        with contextlib.suppress(KernelwrightError, ArithmeticError, ValueError):
            value = Expression.parse(text).evaluate({**self._words.numbers, **self._symbols.values})
            is_whole = self._dtypes[parameter.name].is_integer and isinstance(value, int)
            self._set(parameter, int(value) if is_whole else float(value), text)
            return True
        return False

    def _set(self, parameter: KernelParameter, value: float, text: str) -> None:
        name, dtype = parameter.name, self._dtypes[parameter.name]
        if not dtype.is_integer:
            self._scalar_values[name] = text or repr(value)
            return
        if dtype.kind != "bool" and not isinstance(value, int):
            raise UsageError(f"{name!r} is {parameter.c_type}, but {value!r} is no integer", hint=f"say {name}=INTEGER")
        low, high = integer_range(dtype) if dtype.kind != "bool" else (0, 1)
        if not low <= value <= high:
            raise UsageError(f"{name}={value} does not fit {parameter.c_type}: it holds {low} to {high}")
        shown = self._shown[name]
        if value < 1 or dtype.kind == "bool" or shown in _RESERVED:
            self._symbols.fixed[name] = int(value)
            self._scalar_values[name] = str(int(value))
        elif shown != name:
            self._symbols.derived[name] = shown, int(value)
            self._symbols.values[shown] = int(value)
            self._scalar_values[name] = shown
        else:
            self._symbols.values[name] = int(value)
            self._scalar_values[name] = name

    def _ask_or_guess(self, missing: Sequence[KernelParameter]) -> None:
        integers = [each.name for each in missing if self._dtypes[each.name].is_integer]
        chosen = size_names(integers, self._analysis.facts)
        for each in missing:
            if self._given.asks and each.name not in chosen:
                self._questions.append(
                    Question(f"{each.name}=NUMBER", f"`{each.c_type} {each.name}` is passed by value")
                )
        sizes = guess_sizes(integers, self._analysis.facts, self._halvings)
        for each in missing:
            dtype = self._dtypes[each.name]
            if dtype.kind == "bool":
                self._set(each, 1, "1")
                self._notes[each.name] = "nothing says its value"
            elif dtype.is_integer:
                self._set(each, min(sizes[each.name], integer_range(dtype)[1]), "")
                self._guessed.add(self._shown[each.name])
            else:
                self._set(each, 1.0, "1.0")
                self._notes[each.name] = "nothing says its value"

    def _spare(self) -> tuple[str, ...]:
        """By-value integers of at least 1 that the kernel's own text never names."""
        start, end = self._signature.body
        used = used_words(self._source[start:end], self._language)
        return tuple(
            each.name
            for each in self._parameters
            if not each.is_pointer and each.name in self._symbols.values and each.name not in used
        )

    def _spare_behind(self, launch: InferredLaunch) -> tuple[str, ...]:
        """The same without those that the grid counts, as long as others are left."""
        counted = {name for text in launch.grid for name in words_of(text)}
        spare = self._spare()
        return tuple(each for each in spare if each not in counted) or spare

    # -- launch --------------------------------------------------------------------------------------

    def _launch(self) -> InferredLaunch | None:
        reader = LaunchReader(self._analysis, self._signature, self._symbols, self._spare())
        if not self._symbols.values:
            self._symbols.values[ONE_SIZE] = ELEMENTS >> self._halvings
            self._guessed.add(ONE_SIZE)
            reader = LaunchReader(self._analysis, self._signature, self._symbols, (ONE_SIZE,))
        found = self._told(reader)
        if self._launch_sizes:
            found = self._by_launch_size(found)
        if isinstance(found, Question):
            if self._given.asks:
                self._questions.append(found)  # and what else is to be asked, for one block
            block, _ = reader.block()
            found = InferredLaunch(
                ("1",) * len(block), tuple(map(str, block)), UNKNOWN_LAUNCH, f"the grid: {found.why}"
            )
        array = reader.overrun(tuple(map(int, found.block)))
        is_said = bool(self._given.block) or (self._host is not None and bool(self._host.block))
        if array and self._given.asks and not is_said:
            why = f"threads of a block of {' x '.join(found.block)} leave {array!r} in local memory, or seem to"
            self._questions.append(Question("--block X,Y", why))
        elif array:
            found = replace(found, note=f"a block of these extents leaves {array!r} in local memory, or seems to")
        return found if self._settle(found) else None

    def _by_launch_size(self, found: InferredLaunch | Question) -> InferredLaunch | Question:
        """The launch with the size that no argument has as the extent that nothing else says.

        Raises:
            UsageError: there are several such sizes or extents, or none is missing.
        """
        (name, value), *others = self._launch_sizes.items()
        is_open = isinstance(found, Question) or UNGUARDED in found.note
        if is_open and not others:
            self._symbols.values[name] = value
            by_size = self._told(LaunchReader(self._analysis, self._signature, self._symbols, (name,)))
            grid = by_size.grid if isinstance(by_size, InferredLaunch) else ()
            axis = next((axis for axis, text in zip("xyz", grid, strict=False) if name in words_of(text)), "")
            if isinstance(by_size, InferredLaunch) and axis:
                told = f"{name} says how much there is along {axis}, which no guard does"
                return replace(by_size, note=by_size.note.replace(UNGUARDED, told))
        word = found.word if isinstance(found, Question) else ""
        hint = f"if the launch has so many blocks, say where: {word} with {name!r} in it" if word else "leave it out"
        raise self._unknown_word(name, hint)

    def _told(self, reader: LaunchReader) -> InferredLaunch | Question:
        """The launch as a person says it, as the host's code makes it, or as the kernel needs it."""
        host = self._host
        given_grid, given_block = self._given.grid, self._given.block
        numbers, note = reader.block()
        block = given_block or (host.block if host is not None else ())
        if block:
            values = [self._value(text, what="--block" if given_block else "the host's block") for text in block]
            if any(value is None for value in values):
                return Question("--block X,Y", f"the host's block {', '.join(block)} is in no argument")
            numbers, note = tuple(value for value in values if value is not None), ""
        for axis, extent in zip("xyz", (*numbers, 1, 1, 1)[:3], strict=True):
            self._symbols.fixed[f"block_size.{axis}"] = extent
        grid = given_grid or (host.grid if host is not None else ())
        if not grid:
            return reader.launch(numbers, note, is_block_given=bool(block))
        if (
            not given_grid and host is not None and not host.block
        ):  # OpenCL's global size, with a block left to the driver
            grid = tuple(f"ceil_div({text}, {extent})" for text, extent in zip(grid, numbers, strict=False))
        width = max(len(grid), len(numbers))
        texts = (*grid, *(("1",) * (width - len(grid))))
        origin = "from --grid" if given_grid else f"from the host's launch, line {host.line if host else 0}"
        shared = "" if host is None else host.shared_bytes
        return InferredLaunch(texts, tuple(map(str, (*numbers, 1, 1)[:width])), origin, note, shared)

    def _value(self, text: str, *, what: str) -> int | None:
        """An extent's value; None where it is in no argument and no word."""
        expression = Expression.parse(text)
        names = {**self._symbols.values, **self._host_sizes(expression)}
        if not expression.names <= names.keys():
            return None
        value = expression.evaluate(names)
        if isinstance(value, str | bool) or value != int(value) or value < 1:
            raise UsageError(f"{what} {text!r} is {value!r}, expected whole numbers of at least 1")
        return int(value)

    def _host_sizes(self, expression: Expression) -> dict[str, int]:
        """Names that are no arguments, but of which a person or the host's code says the value."""
        found = {}
        for name in expression.names - self._symbols.values.keys():
            said = self._words.numbers.get(name, self._host.values.get(name) if self._host is not None else None)
            if isinstance(said, int) and said >= 1:
                found[name] = said
        return found

    def _settle(self, launch: InferredLaunch) -> bool:
        """Give grid and block their values; False, with questions, where one has none."""
        for axis, extent in zip("xyz", (*launch.block, "1", "1", "1")[:3], strict=True):
            self._symbols.fixed[f"block_size.{axis}"] = int(extent)
        is_known = True
        for axis, text in zip("xyz", (*launch.grid, "1", "1", "1")[:3], strict=True):
            expression = Expression.parse(text)
            self._symbols.values.update(self._host_sizes(expression))
            for name in sorted(expression.names - self._symbols.values.keys()) if not self._given.asks else ():
                self._symbols.values[name] = ELEMENTS >> self._halvings
                self._guessed.add(name)
            self._enlarge_guesses(expression)
            value = self._value(text, what="the grid")
            if value is None:
                unknown = sorted(expression.names - self._symbols.values.keys())
                self._questions += [Question(f"{name}=NUMBER", f"the launch is in {name!r}") for name in unknown]
                is_known = False
                continue
            self._symbols.derived[f"grid_size.{axis}"] = (
                text if text.isalnum() or _IN_BRACKETS.fullmatch(text) else f"({text})",
                value,
            )
        return is_known

    def _enlarge_guesses(self, expression: Expression) -> None:
        """Double the sizes that nobody said until an extent has a block: `n // 128`."""
        guessed = expression.names & self._guessed
        for _ in range(_HALVINGS if guessed and expression.names <= self._symbols.values.keys() else 0):
            value = expression.evaluate(self._symbols.values)
            if isinstance(value, str) or value >= 1:
                break
            self._symbols.values.update({name: 2 * self._symbols.values[name] for name in guessed})

    def _with_shared_bytes(self, launch: InferredLaunch, bounds: Bounds) -> InferredLaunch:
        """Dynamic shared memory that nobody sized: as much as is touched, or one element a thread.

        It is a guess where the elements are bytes, or pointers of another type are made of the array.
        """
        if self._language == "opencl":
            return launch
        start, end = self._signature.body
        declared = SHARED_ARRAY.search(self._source[start:end])
        if declared is None:
            return launch
        dtype = dtype_of(" ".join(declared[1].split()), self._analysis, self._language)
        size = str(dtype.item_bytes if dtype is not None else 4)
        name = words_of(declared[0])[-1]
        touched = self._touched(name, bounds)
        text = f"{size} * ({touched})" if touched else " * ".join((size, *launch.block))
        note = launch.note
        if size == "1" or re.search(rf"\*\s*(?:\)|>\s*\()\s*[(&\s]*{name}\b", masked(self._source[start:end])):
            note = f"{note}; what {name!r} holds is not read, so shared_bytes may be too few".removeprefix("; ")
        return replace(launch, shared_bytes=text, note=note)

    def _touched(self, array: str, bounds: Bounds) -> str:
        """How many elements of an array are touched, in sizes; empty where that is not known."""
        found = []
        for each in self._analysis.facts.accesses:
            if each.array == array and each.space == "shared":
                try:
                    last = bounds.largest(each)
                except Unbounded:
                    return ""
                found.append((self._symbols.number(last) or 0, self._symbols.text(last + ONE)))
        return max(found, key=lambda each: each[0])[1] or "" if found else ""

    def _refuse_nothing_written(self, arguments: dict[str, InferredArgument]) -> None:
        if not any(each.role in ("output", "inout") for each in arguments.values()):
            raise SpecError(
                f"kernel {self._signature.name!r} writes to none of its arguments, so there is nothing to check",
                hint="a result goes to a pointer that is not const",
                location=Location(self._file, self._signature.line),
            )
