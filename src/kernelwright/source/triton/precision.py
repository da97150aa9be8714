"""Whether a Triton file multiplies matrices of float32 in TF32, as `tl.dot` does where nothing else is said.

The types of the two factors are those of the arrays that they are loaded from, unless they are converted. Factors have
one type, so one that is known tells the other's. Nothing is executed.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelwright.source.triton.reading import full_name, imported_names, parsed, triton_kernel

_PRECISION_PLACE, _ALLOWED_PLACE = 3, 4
"""Of `input_precision` and `allow_tf32` among the arguments of `tl.dot`."""
_SAME = ("trans", "permute", "reshape", "view", "broadcast_to", "expand_dims", "join", "where", "maximum", "minimum")
"""Functions and methods whose results have their arguments' type."""
_DEEPEST = 20
_MOST_CALLED = 256
"""Functions with what they are given that are looked into."""


def multiplies_in_tf32(text: str, file: Path, entry: str, dtypes: Mapping[str, str]) -> bool:
    """Whether some `tl.dot` of float32 says nothing of its precision, or asks for TF32.

    A precision that is a variable is none that the file asks for; factors of types that are not known are no float32.
    Only the launched kernel counts, and functions of the file that it calls, with what they are given.

    Args:
        text: of the file.
        file: for messages.
        entry: the launched kernel.
        dtypes: by parameter of that kernel, what its array holds.

    Raises:
        SpecError: the text is no Python, with its line.
    """
    tree = parsed(text, file)
    names = imported_names(tree)
    functions = {each.name: each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
    waiting: list[_Called] = [(entry, frozenset(dtypes.items()), frozenset())]
    seen = set(waiting)
    while waiting and len(seen) < _MOST_CALLED:
        name, arrays, values = waiting.pop()
        function = functions.get(name)
        if function is None:
            continue
        reader = _Reader(names, dict(arrays), _assigned(function), dict(values))
        calls = [each for each in ast.walk(function) if isinstance(each, ast.Call)]
        if any(_is_in_tf32(each, reader) for each in calls):
            return True
        found = (_called(each, functions, reader) for each in calls)
        called = {each for each in found if each is not None} - seen
        seen |= called
        waiting += called
    return False


def parameter_dtypes(
    text: str, file: Path, entry: str, given: Sequence[str], constants: Collection[str]
) -> Mapping[str, str]:
    """By parameter of a kernel, the type of the launch's argument in its place.

    Args:
        text: of the file.
        file: for messages.
        entry: the kernel.
        given: the types of the launch's arguments, in order.
        constants: what is fixed for a build beside `tl.constexpr` parameters; a launch gives none of them.

    Raises:
        SpecError: the text is no Python, or has no such kernel.
    """
    parameters = triton_kernel(text, file, entry).parameters
    taken = [each.name for each in parameters if not each.is_constexpr and each.name not in constants]
    return dict(zip(taken, given, strict=False))


_Types = frozenset[tuple[str, str]]
_Called = tuple[str, _Types, _Types]
"""A function, and by parameter what its arrays hold and what its values are."""


def _is_in_tf32(call: ast.Call, reader: _Reader) -> bool:
    if full_name(call.func, reader.names) != "triton.language.dot" or not _is_open(call):
        return False
    factors = [reader.dtype(each, 0) for each in _factors(call)]
    return "float32" in factors and set(factors) <= {"float32", ""}


def _called(call: ast.Call, functions: Mapping[str, ast.FunctionDef], reader: _Reader) -> _Called | None:
    """What a call of one of the file's functions gives to it."""
    function = functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
    if function is None:
        return None
    parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    given = dict(zip(parameters, call.args, strict=False)) | {
        each.arg: each.value for each in call.keywords if each.arg
    }
    arrays = ((name, reader.array(each)) for name, each in given.items())
    values = ((name, reader.dtype(each, 0)) for name, each in given.items())
    return function.name, frozenset(each for each in arrays if each[1]), frozenset(each for each in values if each[1])


def _factors(call: ast.Call) -> list[ast.expr]:
    named = [each.value for each in call.keywords if each.arg in ("input", "other", "lhs", "rhs")]
    return [*call.args[:2], *named][:2]


def _is_open(call: ast.Call) -> bool:
    """Whether a call leaves its precision open, or asks for TF32."""
    given = {each.arg: each.value for each in call.keywords}
    if None in given or any(isinstance(each, ast.Starred) for each in call.args):
        return False
    places = {"input_precision": _PRECISION_PLACE, "allow_tf32": _ALLOWED_PLACE}
    given |= {name: call.args[place] for name, place in places.items() if len(call.args) > place}
    said = {name: each.value if isinstance(each, ast.Constant) else each for name, each in given.items()}
    precision, allowed = said.get("input_precision"), said.get("allow_tf32")
    if precision is not None:
        return precision == "tf32"
    return allowed is None or allowed is True


def _assigned(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for each in ast.walk(function):
        if isinstance(each, ast.Assign):
            for name, value in (pair for target in each.targets for pair in _pairs(target, each.value)):
                found.setdefault(name, []).append(value)
    return found


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """What each name of a target becomes; a part of something that is not written out has no known type."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        is_paired = len(parts) == len(target.elts) and not any(
            isinstance(each, ast.Starred) for each in (*parts, *target.elts)
        )
        values = parts if is_paired else [ast.Tuple([value], ast.Load())] * len(target.elts)
        for inner, part in zip(target.elts, values, strict=True):
            yield from _pairs(inner, part)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Tells the types of values in one function."""

    names: Mapping[str, str]
    dtypes: Mapping[str, str]
    assigned: Mapping[str, list[ast.expr]]
    values: Mapping[str, str]
    """By parameter that is a value, its type."""
    known: dict[str, str] = field(default_factory=dict)
    """The types of names that were looked up; empty for one that is being looked up."""

    def dtype(self, node: ast.AST, depth: int) -> str:
        """A value's type; empty for one that is not known."""
        if depth > _DEEPEST:
            return ""
        match node:
            case ast.Name(id=name):
                return self._variable(name, depth)
            case ast.Call(func=ast.Attribute(value=value, attr="to"), args=[kind, *_]):
                return self._named(kind, depth)
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=arguments):
                function = full_name(node, self.names)
                if function == "triton.language.load":
                    return self.array(arguments[0]) if arguments else ""
                if name in _SAME:
                    method = [] if function.startswith("triton.") else [value]
                    return self._same([*method, *arguments], depth)
            case ast.Attribute(value=value, attr="T"):
                return self.dtype(value, depth + 1)
            case ast.BinOp(left=left, right=right):
                return self._same([left, right], depth)
        return ""

    def _variable(self, name: str, depth: int) -> str:
        if name not in self.known:
            self.known[name] = ""
            found = {self.dtype(each, depth + 1) for each in self.assigned.get(name, ())}
            found |= {self.values[name]} if name in self.values else set()
            self.known[name] = found.pop() if len(found) == 1 else ""
        return self.known[name]

    def _same(self, nodes: list[ast.expr], depth: int) -> str:
        found = {self.dtype(each, depth + 1) for each in nodes} - {""}
        return found.pop() if len(found) == 1 else ""

    def _named(self, node: ast.AST, depth: int) -> str:
        """What `tl.float32`, `x.dtype` or `x_ptr.dtype.element_ty` is."""
        match node:
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id=name), attr="dtype"), attr="element_ty"):
                return self.dtypes.get(name, "")
            case ast.Attribute(value=value, attr="dtype"):
                return self.dtype(value, depth + 1)
        full = full_name(node, self.names)
        return full.removeprefix("triton.language.") if full.startswith("triton.language.") else ""

    def array(self, pointer: ast.AST) -> str:
        """What the array holds that a pointer is made of."""
        waiting = [pointer]
        seen, found = set[str](), set[str]()
        while waiting and len(seen) < 64:
            for each in ast.walk(waiting.pop()):
                if isinstance(each, ast.Name) and each.id not in seen:
                    seen.add(each.id)
                    found |= {self.dtypes[each.id]} if each.id in self.dtypes else set()
                    waiting += self.assigned.get(each.id, ()) if each.id not in self.dtypes else ()
        return found.pop() if len(found) == 1 else ""
