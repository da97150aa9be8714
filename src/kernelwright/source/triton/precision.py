"""Whether a Triton file multiplies matrices of float32 in TF32, as `tl.dot` does where nothing else is said.

The types of the two factors are those of the arrays that they are loaded from, unless they are converted. Factors have
one type, so one that is known tells the other's. Nothing is executed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelwright.source.triton.reading import full_name, imported_names, parsed

_PRECISION_PLACE, _ALLOWED_PLACE = 3, 4
"""Of `input_precision` and `allow_tf32` among the arguments of `tl.dot`."""
_SAME = ("trans", "permute", "reshape", "view", "broadcast_to", "expand_dims", "join", "where", "maximum", "minimum")
"""Functions and methods whose results have their arguments' type."""
_DEEPEST = 20


def multiplies_in_tf32(text: str, file: Path, dtypes: Mapping[str, str]) -> bool:
    """Whether some `tl.dot` of float32 says nothing of its precision, or asks for TF32.

    A precision that is a variable is none that the file asks for; factors of types that are not known are no float32.

    Args:
        text: of the file.
        file: for messages.
        dtypes: by parameter of a kernel, what its array holds.

    Raises:
        SpecError: the text is no Python, with its line.
    """
    tree = parsed(text, file)
    names = imported_names(tree)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        reader = _Reader(names, dtypes, _assigned(function))
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and full_name(call.func, names) == "triton.language.dot" and _is_open(call):
                factors = [reader.dtype(each, 0) for each in _factors(call)]
                if "float32" in factors and set(factors) <= {"float32", ""}:
                    return True
    return False


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
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
            found.setdefault(each.targets[0].id, []).append(each.value)
    return found


@dataclass(frozen=True, slots=True)
class _Reader:
    """Tells the types of values in one function."""

    names: Mapping[str, str]
    dtypes: Mapping[str, str]
    assigned: Mapping[str, list[ast.expr]]

    def dtype(self, node: ast.AST, depth: int) -> str:
        """A value's type; empty for one that is not known."""
        if depth > _DEEPEST:
            return ""
        match node:
            case ast.Name(id=name):
                found = {self.dtype(each, depth + 1) for each in self.assigned.get(name, ())}
                return found.pop() if len(found) == 1 else ""
            case ast.Call(func=ast.Attribute(value=value, attr="to"), args=[kind, *_]):
                return self._named(kind, depth)
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=arguments):
                function = full_name(node, self.names)
                if function == "triton.language.load":
                    return self._array(node, depth)
                if name in _SAME:
                    method = [] if function.startswith("triton.") else [value]
                    return self._same([*method, *arguments], depth)
            case ast.Attribute(value=value, attr="T"):
                return self.dtype(value, depth + 1)
            case ast.BinOp(left=left, right=right):
                return self._same([left, right], depth)
        return ""

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

    def _array(self, load: ast.AST, depth: int) -> str:
        """What the array of a load holds, where its pointer is made of one."""
        arguments = load.args if isinstance(load, ast.Call) else []
        waiting: list[ast.AST] = list(arguments[:1])
        seen, found = set[str](), set[str]()
        while waiting and len(seen) < 64:
            for each in ast.walk(waiting.pop()):
                if isinstance(each, ast.Name) and each.id not in seen:
                    seen.add(each.id)
                    found |= {self.dtypes[each.id]} if each.id in self.dtypes else set()
                    waiting += self.assigned.get(each.id, ()) if each.id not in self.dtypes else ()
        del depth
        return found.pop() if len(found) == 1 else ""
