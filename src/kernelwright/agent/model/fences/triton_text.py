"""What a model may write as a Triton file. All else is refused, by its line, before any process imports the file.

A Triton file is Python: importing it runs its module level, and Triton's interpreter runs the kernels' bodies as
Python too. So both are held to a list of what is allowed: two imports, constants, and `@triton.jit` functions of
arithmetic, control flow and calls of `tl`. The text is parsed here and never executed. How long a kernel takes and
which memory its pointers reach are limits of the worker that runs it, not of this fence.
"""

from __future__ import annotations

import ast
import builtins
import io
import re
import tokenize
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kernelwright.agent.model.anchors import Malformed
from kernelwright.agent.model.hostile import MOST_SOURCE_CHARACTERS
from kernelwright.template.header import strip_header

_MOST_DEPTH = 80
"""Levels of syntax; the deepest kernels that people write have 20."""

_IMPORTS = ("import triton", "import triton.language as tl")

_DTYPES = frozenset((
    "void", "int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float8e4b15",
    "float8e4b8", "float8e4nv", "float8e5", "float8e5b16", "float16", "bfloat16", "float32", "float64",
))  # fmt: skip
_MATH = frozenset((
    "abs", "ceil", "cos", "div_rn", "erf", "exp", "exp2", "fdiv", "floor", "fma", "log", "log2", "rsqrt", "sin", "sqrt",
    "sqrt_rn", "umulhi",
))  # fmt: skip
_FUNCTIONS = _MATH | frozenset((
    "add", "arange", "argmax", "argmin", "associative_scan", "assume", "atomic_add", "atomic_and", "atomic_cas",
    "atomic_max", "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor", "broadcast", "broadcast_to", "cast", "cat",
    "cdiv", "clamp", "constexpr", "cumprod", "cumsum", "debug_barrier", "dot", "dot_scaled", "expand_dims", "flip",
    "full", "gather", "histogram", "interleave", "join", "load", "load_tensor_descriptor", "make_block_ptr", "advance",
    "make_tensor_descriptor", "max", "max_constancy", "max_contiguous", "maximum", "min", "minimum", "mul",
    "multiple_of", "num_programs", "permute", "philox", "program_id", "rand", "rand4x", "randint", "randint4x", "randn",
    "randn4x", "range", "ravel", "reduce", "reshape", "sigmoid", "softmax", "sort", "split", "squeeze", "static_assert",
    "static_range", "store", "store_tensor_descriptor", "sub", "sum", "swizzle2d", "topk", "trans", "unsqueeze", "view",
    "where", "xor_sum", "zeros", "zeros_like",
))  # fmt: skip
_CALLABLE = frozenset((
    *(f"tl.{name}" for name in _FUNCTIONS), *(f"tl.math.{name}" for name in _MATH), "triton.cdiv",
    "triton.next_power_of_2",
))  # fmt: skip
_VALUES = frozenset((*(f"tl.{name}" for name in _DTYPES), "tl.PropagateNan.ALL", "tl.PropagateNan.NONE"))
_ANNOTATIONS = frozenset((*_VALUES, "tl.constexpr", "tl.tensor", "int", "float", "bool"))
_BUILTINS = frozenset(("range", "min", "max", "len", "int", "float"))
_RANGES = frozenset(("range", "tl.range", "tl.static_range"))
_METHODS = frozenset((
    "to", "cast", "sum", "max", "min", "argmax", "argmin", "reshape", "view", "trans", "permute", "broadcast_to",
    "expand_dims", "split", "abs", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "floor", "ceil",
    "sigmoid", "softmax", "cumsum", "cumprod", "flip", "sort", "ravel", "gather", "histogram", "reduce", "cdiv",
    "associative_scan", "advance", "load", "store", "logical_and", "logical_or", "xor_sum", "is_floating", "is_int",
    "is_fp8", "is_fp16", "is_bf16", "is_fp32", "is_fp64", "is_ptr",
))  # fmt: skip
_FIELDS = frozenset(("dtype", "element_ty", "shape", "T", "type", "value", "primitive_bitwidth", "numel"))

_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift, ast.BitOr, ast.BitXor,
    ast.BitAnd,
)  # fmt: skip
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot)
_WORD = re.compile(r"[A-Za-z0-9_.,:<>=() +-]{0,80}")
"""Texts that options of `tl` and comparisons of constants need."""

_COOKIE = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
"""PEP 263: importing reads the file in this encoding, in which a comment may be code."""

_INSTEAD: Mapping[type[ast.AST], str] = {
    ast.Lambda: "write a @triton.jit function of the file",
    ast.NamedExpr: "assign in a statement of its own",
    ast.JoinedStr: "leave the text out",
    ast.ListComp: "write a loop over tl.static_range",
    ast.SetComp: "write a loop over tl.static_range",
    ast.DictComp: "write a loop over tl.static_range",
    ast.GeneratorExp: "write a loop over tl.static_range",
    ast.Import: "write the two imports at the top of the file, none elsewhere",
    ast.ImportFrom: "use only `import triton` and `import triton.language as tl`",
    ast.ClassDef: "write @triton.jit functions",
    ast.FunctionDef: "write it at the top level of the file, under @triton.jit",
    ast.AsyncFunctionDef: "write it as a plain function under @triton.jit",
    ast.Global: "pass the value as an argument",
    ast.Nonlocal: "pass the value as an argument",
    ast.Assert: "use tl.static_assert",
    ast.Starred: "write each argument out",
    ast.Dict: "use variables",
    ast.Pow: "multiply, shift, or use tl.exp2",
    ast.Break: "make it a condition of the loop",
    ast.Continue: "make it an if in the loop",
}
_ELSE = "write it with arithmetic, if, for, while and calls of tl"


def check_triton_source(source: str) -> None:
    """Nothing, for a model's Triton file that a worker may import.

    Raises:
        Malformed: it holds something that is not allowed, with its line and what to write instead.
    """
    problem = next(_problems(source), None)
    if problem is not None:
        raise Malformed(f"the Triton source is refused: {problem}")


def _problems(source: str) -> Iterator[str]:
    if len(source) > MOST_SOURCE_CHARACTERS:
        yield f"it has {len(source)} characters, at most {MOST_SOURCE_CHARACTERS} are taken"
        return
    source = source.replace("\r\n", "\n")
    yield from _lines(source)  # behind these, every reader of the text finds the same lines and letters
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes; they are no matter of whoever runs this process
            tree = ast.parse(source)
            letters = list(_odd_letters(source))
    except SyntaxError as error:
        yield f"line {error.lineno or 1} is no Python ({error.msg}): send a whole file that Python can read"
        return
    except (ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        yield f"it cannot be read as Python ({type(error).__name__}): write shorter expressions"
        return
    yield from letters
    yield from _without_header(source, tree)
    too_deep = _too_deep(tree)
    if too_deep is not None:
        yield f"line {too_deep} nests more than {_MOST_DEPTH} levels: assign parts to variables"
        return
    yield from _module(tree)


def _without_header(source: str, tree: ast.Module) -> Iterator[str]:
    """A header is only ever comments: one that begins in a text would end that text elsewhere once it is taken out."""
    rest = strip_header(source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            is_same = rest == source or ast.dump(ast.parse(rest)) == ast.dump(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        is_same = False
    if not is_same:
        yield "its header stands inside a text: write it as comments at the top of the file"


def _lines(source: str) -> Iterator[str]:
    for number, line in enumerate(source.split("\n"), 1):
        for character in line:
            if character != "\t" and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
                yield f"line {number} holds the invisible character U+{ord(character):04X}: remove it"
        # Triton finds a function by its first line that begins with `def name(`; a joined line hides the right one.
        if line.endswith("\\"):
            yield f"line {number} ends with a backslash: put what is longer than a line in brackets"
        cookie = _COOKIE.match(line) if number <= 2 else None
        if cookie is not None and cookie[1].lower() not in ("utf-8", "utf8"):
            yield f"line {number} names the encoding {cookie[1]!r}: leave it out, the file is UTF-8"


def _odd_letters(source: str) -> Iterator[str]:
    """Letters outside of comments that look like others, or that Python reads as others."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT and not token.string.isascii():
            odd = next(each for each in token.string if not each.isascii())
            line = token.start[0] + token.string[: token.string.index(odd)].count("\n")
            yield f"line {line} holds {odd!r} (U+{ord(odd):04X}) outside of a comment: write code in ASCII"


def _too_deep(tree: ast.AST) -> int | None:
    """The line of a node below the deepest level that is read."""
    level: list[tuple[ast.AST, int]] = [(tree, 1)]
    for _ in range(_MOST_DEPTH):
        level = [
            (child, getattr(child, "lineno", line)) for node, line in level for child in ast.iter_child_nodes(node)
        ]
    return level[0][1] if level else None


# The module level: what importing the file runs


def _module(tree: ast.Module) -> Iterator[str]:
    body = tree.body[1:] if tree.body and _is_text(tree.body[0]) else tree.body
    functions = [each.name for each in body if isinstance(each, ast.FunctionDef)]
    constants = [name for each in body if (name := _constant_name(each)) is not None]
    for each in body:
        match each:
            case ast.Import():
                if ast.unparse(each) not in _IMPORTS:
                    yield _said(each, f"has `{ast.unparse(each)}`: allowed are `{'` and `'.join(_IMPORTS)}`")
            case ast.FunctionDef():
                yield from _new_name(each, each.name)
                yield from _jit_function(each, frozenset(functions), frozenset(constants))
            case ast.Assign() | ast.AnnAssign() if (name := _constant_name(each)) is not None:
                yield from _new_name(each, name)
                yield from _module_constant(each)
            case _:
                hint = _INSTEAD.get(type(each), "the top level has imports, constants and @triton.jit functions only")
                yield _said(each, f"has {_kind(each)}, which is not allowed: {hint}")
    yield from (f"{name!r} is defined twice: name them apart" for name in _repeated([*functions, *constants]))


def _constant_name(node: ast.stmt) -> str | None:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return None


def _module_constant(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    if isinstance(node, ast.AnnAssign):
        yield from _annotation(node.annotation)
    value = node.value
    if isinstance(value, ast.Call) and _dotted(value.func) == "tl.constexpr" and not value.keywords:
        value = value.args[0] if len(value.args) == 1 else value
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    for part in parts:
        if part is None or not _is_constant(part):
            yield _said(
                node, "gives a constant no plain value: write a number, a word, a dtype, or tl.constexpr of one"
            )


def _is_constant(node: ast.expr) -> bool:
    """Whether its value is surely had at once: a literal, a dtype, or arithmetic of number literals."""
    match node:
        case ast.Constant():
            return not list(_literal(node))
        case ast.Attribute():
            return _dotted(node) in _VALUES
    return _is_number(node)


def _is_number(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=int() | float()):
            return not list(_literal(node))
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _is_number(operand)
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.FloorDiv() | ast.Mod()):
            return _is_number(node.left) and _is_number(node.right)
    return False


def _new_name(node: ast.stmt, name: str) -> Iterator[str]:
    if name in ("tl", "triton") or name.startswith("__") or hasattr(builtins, name):
        yield _said(node, f"gives {name!r}, a name of Python or Triton, another meaning: name it otherwise")


# Functions


@dataclass(frozen=True, slots=True)
class _Scope:
    """What names mean in a function."""

    functions: AbstractSet[str]
    """All of the file."""
    values: AbstractSet[str]
    """Parameters, variables, and constants of the file."""


def _jit_function(node: ast.FunctionDef, functions: AbstractSet[str], constants: AbstractSet[str]) -> Iterator[str]:
    if [_dotted(each) for each in node.decorator_list] != ["triton.jit"]:
        yield _said(node, f"defines {node.name!r} with other decorators than @triton.jit: give it this one alone")
    if getattr(node, "type_params", ()):
        yield _said(node, f"gives {node.name!r} type parameters: leave them out")
    arguments = node.args
    if arguments.vararg or arguments.kwarg:
        yield _said(node, f"gives {node.name!r} a * argument: name every argument")
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for each in named:
        yield from _bound(each, each.arg, functions)
        yield from _annotation(each.annotation)
    yield from _annotation(node.returns)
    for default in filter(None, [*arguments.defaults, *arguments.kw_defaults]):
        if not _is_constant(default) and not (isinstance(default, ast.Name) and default.id in constants):
            yield _said(default, "has a default that is no constant: write a number, a word or a constant of the file")
    body = node.body[1:] if _is_text(node.body[0]) else node.body
    stored = (each for part in body for each in ast.walk(part) if isinstance(each, ast.Name))
    variables = {each.id for each in stored if isinstance(each.ctx, ast.Store)}
    yield from _statements(body, _Scope(functions, {*constants, *variables, *(each.arg for each in named)}))


def _bound(node: ast.AST, name: str, functions: AbstractSet[str]) -> Iterator[str]:
    """A name of a parameter or variable: what is called by name keeps its meaning."""
    if name.startswith("__") or name in functions | _BUILTINS | {"tl", "triton"}:
        yield _said(node, f"gives {name!r} another meaning: name the variable otherwise")


def _annotation(node: ast.expr | None) -> Iterator[str]:
    is_none = isinstance(node, ast.Constant) and node.value is None
    if node is not None and not is_none and _dotted(node) not in _ANNOTATIONS:
        yield _said(node, f"has the annotation `{_shown(node)}`: write tl.constexpr, a dtype of tl, or none")


def _statements(body: Iterable[ast.stmt], scope: _Scope) -> Iterator[str]:
    for each in body:
        yield from _statement(each, scope)


def _statement(node: ast.stmt, scope: _Scope) -> Iterator[str]:
    match node:
        case ast.Pass() | ast.Return(value=None):
            pass
        case ast.Expr(value=ast.Call() as value) | ast.Return(value=ast.expr() as value):
            yield from _expression(value, scope)
        case ast.Assign():
            for target in node.targets:
                yield from _target(target, scope)
            yield from _expression(node.value, scope)
        case ast.AugAssign():
            yield from _target(node.target, scope)
            yield from _operator(node, node.op)
            yield from _expression(node.value, scope)
        case ast.AnnAssign():
            yield from _target(node.target, scope)
            yield from _annotation(node.annotation)
            yield from _expression(node.value, scope) if node.value is not None else ()
        case ast.If() | ast.While() | ast.For():
            yield from _controlled(node, scope)
        case _:
            yield _refused(node)


def _controlled(node: ast.If | ast.While | ast.For, scope: _Scope) -> Iterator[str]:
    if isinstance(node, ast.For):
        yield from _target(node.target, scope)
        if not isinstance(node.iter, ast.Call) or _dotted(node.iter.func) not in _RANGES:
            yield _said(node, "loops over something else than a range: use range, tl.range or tl.static_range")
        yield from _expression(node.iter, scope)
    else:
        yield from _expression(node.test, scope)
    if node.orelse and not isinstance(node, ast.If):
        yield _said(node, "has a loop with an else: put what follows the loop behind it")
    yield from _statements([*node.body, *node.orelse], scope)


def _target(node: ast.expr, scope: _Scope) -> Iterator[str]:
    match node:
        case ast.Name():
            yield from _bound(node, node.id, scope.functions)
        case ast.Tuple():
            for each in node.elts:
                yield from _target(each, scope)
        case _:
            yield _said(node, f"assigns to `{_shown(node)}`: assign to variables, write memory with tl.store")


# Expressions


def _expression(node: ast.expr, scope: _Scope) -> Iterator[str]:
    match node:
        case ast.Constant():
            yield from _literal(node)
        case ast.Name():
            yield from _name(node, scope)
        case ast.Attribute():
            yield from _attribute(node, scope)
        case ast.Call():
            yield from _call(node, scope)
        case ast.Compare():
            for comparison in node.ops:
                if not isinstance(comparison, _COMPARISONS):
                    yield _refused(comparison, node)
            yield from _each([node.left, *node.comparators], scope)
        case ast.BinOp():
            yield from _operator(node, node.op)
            yield from _each([node.left, node.right], scope)
        case ast.UnaryOp() | ast.BoolOp() | ast.IfExp() | ast.Subscript() | ast.Slice() | ast.Tuple() | ast.List():
            yield from _each((part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)), scope)
        case _:
            yield _refused(node)


def _each(parts: Iterable[ast.expr], scope: _Scope) -> Iterator[str]:
    for part in parts:
        yield from _expression(part, scope)


def _operator(node: ast.AST, operator: ast.operator) -> Iterator[str]:
    if not isinstance(operator, _OPERATORS):
        yield _refused(operator, node)


def _literal(node: ast.Constant) -> Iterator[str]:
    match node.value:
        case None | bool() | float():
            pass
        case int(value):
            if abs(value) >= 2**64:
                yield _said(node, "has a number of more than 64 bits: write a smaller one")
        case str(value):
            if not _WORD.fullmatch(value):
                yield _said(node, f"has the text {value[:40]!r}: a text is plain words of ASCII, at most 80 characters")
        case value:
            yield _said(node, f"has a value of type {type(value).__name__}: use numbers")


def _name(node: ast.Name, scope: _Scope) -> Iterator[str]:
    if node.id not in scope.values and node.id not in scope.functions:
        yield _said(node, f"uses {node.id!r}, which nothing here defines: use what the file defines")


def _attribute(node: ast.Attribute, scope: _Scope) -> Iterator[str]:
    name = _dotted(node)
    if name in _VALUES:
        return
    if _is_of_triton(node):
        yield _said(node, f"has `{name}`, which is not allowed here: dtypes are values, functions are only called")
        return
    if node.attr not in _FIELDS:
        yield _said(node, f"has the attribute .{node.attr}: allowed are {', '.join(sorted(_FIELDS))}")
    yield from _expression(node.value, scope)


def _call(node: ast.Call, scope: _Scope) -> Iterator[str]:
    name = _dotted(node.func)
    if isinstance(node.func, ast.Name):
        if node.func.id not in scope.functions | _BUILTINS:
            yield _said(node, f"calls {node.func.id!r}: call tl.* or a @triton.jit function of the file, by its name")
    elif _is_of_triton(node.func):
        if name not in _CALLABLE:
            yield _said(node, f"calls `{name}`, which is not allowed: write it with other functions of tl")
    elif isinstance(node.func, ast.Attribute):
        if node.func.attr not in _METHODS:
            yield _said(node, f"calls the method .{node.func.attr}: call a function of tl")
        yield from _expression(node.func.value, scope)
    else:
        yield _said(node, f"calls `{_shown(node.func)}`: call functions by their names")
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg.startswith("_"):
            yield _said(node, f"passes `{keyword.arg or '**'}`: name the options that Triton documents")
    yield from _each([*node.args, *(keyword.value for keyword in node.keywords)], scope)


def _is_of_triton(node: ast.expr) -> bool:
    """Whether it is a part of a module of Triton, and no field or method of one of its dtypes."""
    name = _dotted(node) or ""
    is_of_dtype = isinstance(node, ast.Attribute) and _dotted(node.value) in _VALUES
    return name.startswith(("tl.", "triton.")) and not is_of_dtype


# Words


def _dotted(node: ast.AST | None) -> str | None:
    """`a.b.c` as it is written; None for anything else."""
    parts = list[str]()
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _repeated(names: Iterable[str]) -> Iterator[str]:
    seen = set[str]()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)


def _refused(node: ast.AST, place: ast.AST | None = None) -> str:
    return _said(place or node, f"has {_kind(node)}, which is not allowed: {_INSTEAD.get(type(node), _ELSE)}")


def _kind(node: ast.AST) -> str:
    """`a named expr` of `NamedExpr`: what the syntax is called."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).lower()
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _shown(node: ast.AST) -> str:
    try:
        text = " ".join(ast.unparse(node).split())
    except (ValueError, RecursionError):  # a hexadecimal number too long to be shown
        return "…"
    return text if len(text) <= 40 else f"{text[:39]}…"


def _said(node: ast.AST, words: str) -> str:
    return f"line {getattr(node, 'lineno', 1)} {words}"
