"""Constants of a Triton kernel that say how its work is cut: into tiles of a loop, or into blocks of programs.

With another value of a tile the kernel reaches the same elements. Every use of such a constant is one of these:

- the step of a loop, `range(low, end, BLOCK)`, or what its turns are counted by, `range(tl.cdiv(end, BLOCK))`;
- places in a tile, `tl.arange(0, BLOCK)`, and a tile's size in `tl.zeros` and `tl.full`;
- where a turn's tile starts, `turn * BLOCK`, and how far a pointer goes on in the loop, `at += BLOCK * stride`.

And each access to a tile is in such a loop, with a mask that ends where the loop does. What a reduction makes of masked
elements is not seen here: whoever takes another value has to try it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

_ACCESSES = {"load": 1, "store": 2}
"""By function the position of its mask; what is atomic has it where a store has."""
_MADE_OF_A_SIZE = ("zeros", "full")
_OF_NUMBERS = (*_ACCESSES, "range", "static_range", "cdiv", "where", "min", "max", "minimum", "maximum", "sqrt", "to")
"""Functions none of whose numbers is an extent; `to` is a method."""


def tile_constants(text: str, kernel: str) -> tuple[str, ...]:
    """Arguments of a kernel that only cut its loops into tiles.

    Args:
        text: of a file that `read_triton` takes.
        kernel: the name of its function.
    """
    function = _function(text, kernel)
    return tuple(name for name in _arguments(function) if _Uses(function, name).are_tiles)


def block_constants(text: str, kernel: str) -> tuple[str, ...]:
    """Arguments that the number of a program is multiplied with: how much of something each program does, maybe.

    Args:
        text: of a file that `read_triton` takes.
        kernel: the name of its function.
    """
    function = _function(text, kernel)
    nodes = list(ast.walk(function))
    programs: set[str] = set()

    def is_of_a_program(node: ast.AST) -> bool:
        named = (each for each in ast.walk(node) if isinstance(each, ast.Name))
        called = (_called(each) for each in ast.walk(node))
        return any(each.id in programs for each in named) or "program_id" in called

    assigned = [each for each in nodes if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)]
    while more := {each.targets[0].id for each in assigned if is_of_a_program(each.value)} - programs:  # type: ignore[attr-defined]
        programs |= more
    products = [each for each in nodes if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult)]
    pairs = [pair for each in products for pair in ((each.left, each.right), (each.right, each.left))]
    names = {one.id for one, other in pairs if isinstance(one, ast.Name) and is_of_a_program(other)}
    return tuple(name for name in _arguments(function) if name in names)


def constant_uses(text: str, kernel: str) -> dict[str, Literal["extent", "case", "number"]]:
    """What a kernel's arguments are there: maybe extents of blocks, names of cases, or numbers in its arithmetic alone.

    An extent is a power of two; what goes to a function of the file, or gets another name, may be one. A case is told
    from others, `WIDTH == 4`.

    Args:
        text: of a file that `read_triton` takes.
        kernel: the name of its function.
    """
    function = _function(text, kernel)
    extents, cases = set[str](), set[str]()
    for node in (each for statement in function.body for each in ast.walk(statement)):
        if isinstance(node, ast.Call) and _called(node) not in _OF_NUMBERS:
            extents |= _names_in(*node.args, *(each.value for each in node.keywords))
        elif isinstance(node, ast.AnnAssign) or (isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)):
            extents |= _names_in(node)
        elif isinstance(node, ast.Compare) and all(isinstance(each, ast.Constant) for each in node.comparators):
            cases |= {node.left.id} if isinstance(node.left, ast.Name) else set()
    names = _arguments(function)
    return {each: "extent" if each in extents else "case" if each in cases else "number" for each in names}


def _names_in(*parts: ast.AST) -> set[str]:
    return {each.id for part in parts for each in ast.walk(part) if isinstance(each, ast.Name)}


def _function(text: str, kernel: str) -> ast.FunctionDef:
    functions = (each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef))
    return next(each for each in functions if each.name == kernel)


def _arguments(function: ast.FunctionDef) -> list[str]:
    return [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop with one turn a tile."""

    node: ast.For
    turn: str
    end: str
    is_counted: bool
    """Whether its variable is the number of the turn; else it is where the tile starts."""


class _Uses:
    """What a function does with one of its arguments."""

    def __init__(self, function: ast.FunctionDef, name: str) -> None:
        self._name = name
        self._nodes = [node for statement in function.body for node in ast.walk(statement)]
        self._parents = {child: node for node in self._nodes for child in ast.iter_child_nodes(node)}
        self._loops = [loop for node in self._nodes if (loop := self._loop(node)) is not None]
        self._values = list(self._assigned())
        self._tiles = self._names_of_tiles()

    @property
    def are_tiles(self) -> bool:
        """Whether they are all as the module says, and there is a loop."""
        uses = (node for node in self._nodes if isinstance(node, ast.Name) and node.id == self._name)
        return (
            bool(self._loops)
            and all(self._is_of_a_tile(use) for use in uses)
            and all(self._starts_tiles(loop) for loop in self._loops)
            and all(self._is_masked(node) for node in self._nodes if self._reaches_a_tile(node))
        )

    # What is there

    def _loop(self, node: ast.AST) -> _Loop | None:
        if not (isinstance(node, ast.For) and isinstance(node.target, ast.Name) and _called(node.iter) == "range"):
            return None
        assert isinstance(node.iter, ast.Call)
        given = node.iter.args
        if len(given) == 3 and self._is_it(given[2]):
            return _Loop(node, node.target.id, ast.unparse(given[1]), is_counted=False)
        begins_at_0 = len(given) == 1 or (len(given) == 2 and ast.unparse(given[0]) == "0")
        turns = given[-1] if given else None
        if begins_at_0 and isinstance(turns, ast.Call) and _called(turns) == "cdiv" and self._is_last(turns):
            return _Loop(node, node.target.id, ast.unparse(turns.args[0]), is_counted=True)
        return None

    def _assigned(self) -> Iterator[tuple[str, ast.expr, bool]]:
        """Names, what they are given, and whether that is added to what they were."""
        for node in self._nodes:
            if isinstance(node, ast.Assign):
                targets = (name for each in node.targets for name in ast.walk(each) if isinstance(name, ast.Name))
                yield from ((each.id, node.value, False) for each in targets)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                yield node.target.id, node.value, True

    def _names_of_tiles(self) -> frozenset[str]:
        """Names of what has an element for each place in a tile, or came from such."""
        found: set[str] = set()
        self._tiles = frozenset(found)
        while more := {name for name, value, _ in self._values if self._has_a_tile(value)} - found:
            found |= more
            self._tiles = frozenset(found)
        return self._tiles

    # What is asked of it

    def _is_it(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self._name

    def _is_last(self, call: ast.Call) -> bool:
        """Whether it is the last argument, where none has a name."""
        return bool(call.args) and not call.keywords and self._is_it(call.args[-1])

    def _has_a_tile(self, node: ast.AST) -> bool:
        return any(
            (isinstance(each, ast.Name) and each.id in self._tiles)
            or (isinstance(each, ast.Call) and _called(each) == "arange" and self._is_last(each))
            for each in ast.walk(node)
        )

    def _is_of_a_tile(self, use: ast.Name) -> bool:
        parent = self._parents[use]
        if isinstance(parent, ast.Call):
            is_of_a_loop = any(
                parent in (each.node.iter, *ast.iter_child_nodes(each.node.iter)) for each in self._loops
            )
            return is_of_a_loop or (_called(parent) == "arange" and ast.unparse(parent.args[0]) == "0")
        if isinstance(parent, ast.Tuple | ast.List):
            return _called(self._parents.get(parent)) in _MADE_OF_A_SIZE
        return self._is_a_start(parent) or self._is_an_advance(use)

    def _is_a_start(self, node: ast.AST) -> bool:
        """Of a counted loop's tile, `turn * BLOCK`."""
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
            return False
        others = [each for each in (node.left, node.right) if not self._is_it(each)]
        loop = self._around(node)
        return loop is not None and loop.is_counted and [ast.unparse(each) for each in others] == [loop.turn]

    def _is_an_advance(self, use: ast.AST) -> bool:
        """Of a tile's place or pointer, `at += BLOCK * stride`, once a turn."""
        node = use
        while isinstance(self._parents[node], ast.BinOp) and isinstance(self._parents[node].op, ast.Mult):  # type: ignore[attr-defined]
            node = self._parents[node]
        to = self._parents[node]
        if not (isinstance(to, ast.AugAssign) and isinstance(to.op, ast.Add) and isinstance(to.target, ast.Name)):
            return False
        return to.target.id in self._tiles and any(to in each.node.body for each in self._loops)

    def _starts_tiles(self, loop: _Loop) -> bool:
        """Whether the loop's variable only says where its tile starts, or how much is left from there."""
        starts = [loop.turn]
        for name in starts:
            uses = (node for node in self._nodes if isinstance(node, ast.Name) and node.id == name)
            for use in (each for each in uses if isinstance(each.ctx, ast.Load)):
                around = self._around(use)
                if around is not loop:
                    if around is None or not self._begins_anew(name, around):
                        return False
                    continue
                start = self._parents[use] if loop.is_counted and name == loop.turn else use
                alias = self._alias(start, loop) if start is use or self._is_a_start(start) else None
                if alias is None:
                    return False
                starts += [alias] if alias and alias not in starts else []
        return True

    def _begins_anew(self, name: str, loop: _Loop) -> bool:
        """Whether another loop gives a name a value of its own."""
        inside = {id(node) for node in ast.walk(loop.node)}
        return name == loop.turn or any(id(value) in inside for given, value, _ in self._values if given == name)

    def _alias(self, node: ast.AST, loop: _Loop) -> str | None:
        """A name that is given a tile's start; empty where it goes into places or what is left; None: neither."""
        parent = self._parents[node]
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Sub) and parent.right is node:
            return "" if ast.unparse(parent.left) == loop.end else None
        while isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add):
            node, parent = parent, self._parents[parent]
        if self._has_a_tile(node):
            return ""
        if isinstance(parent, ast.Assign) and parent.value is node and isinstance(parent.targets[0], ast.Name):
            return parent.targets[0].id
        return None

    def _around(self, node: ast.AST) -> _Loop | None:
        """The innermost loop over tiles that holds a node."""
        while node in self._parents:
            node = self._parents[node]
            found = next((each for each in self._loops if each.node is node), None)
            if found is not None:
                return found
        return None

    # Accesses

    def _reaches_a_tile(self, node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call) and _mask_place(node) > 0 and bool(node.args) and self._has_a_tile(node.args[0])
        )

    def _is_masked(self, call: ast.AST) -> bool:
        assert isinstance(call, ast.Call)
        loop, place = self._around(call), _mask_place(call)
        named = next((each.value for each in call.keywords if each.arg == "mask"), None)
        mask = named if named is not None else call.args[place] if len(call.args) > place else None
        return loop is not None and mask is not None and self._ends_with(loop, mask, depth=4)

    def _ends_with(self, loop: _Loop, mask: ast.expr, depth: int) -> bool:
        """Whether a mask is false from the loop's end on."""
        if isinstance(mask, ast.BinOp) and isinstance(mask.op, ast.BitAnd):
            return any(self._ends_with(loop, each, depth) for each in (mask.left, mask.right))
        if isinstance(mask, ast.Subscript):
            return self._ends_with(loop, mask.value, depth)
        if isinstance(mask, ast.Name):
            given = [value for name, value, is_more in self._values if name == mask.id and not is_more]
            inside = [each for each in given if self._around(each) is loop] or given
            return depth > 0 and bool(inside) and all(self._ends_with(loop, each, depth - 1) for each in inside)
        if not (isinstance(mask, ast.Compare) and len(mask.ops) == 1):
            return False
        low, high = mask.left, mask.comparators[0]
        if isinstance(mask.ops[0], ast.Gt):
            low, high = high, low
        elif not isinstance(mask.ops[0], ast.Lt):
            return False
        return self._has_a_tile(low) and self._is_end(loop, high)

    def _is_end(self, loop: _Loop, node: ast.expr) -> bool:
        if ast.unparse(node) == loop.end:
            return True
        is_rest = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and ast.unparse(node.left) == loop.end
        return is_rest and isinstance(node, ast.BinOp) and any(
            isinstance(each, ast.Name) and each.id == loop.turn for each in ast.walk(node.right)
        )  # fmt: skip


def _called(node: ast.AST | None) -> str:
    """The last part of the name of what is called; empty where nothing is."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _mask_place(call: ast.Call) -> int:
    name = _called(call)
    return 2 if name.startswith("atomic_") else _ACCESSES.get(name, 0)
