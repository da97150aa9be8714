"""One lane's code as code for a vector of lanes.

Neighbouring values of one index (a thread's or a loop's) are the lanes. Integers that only place things are kept for
lane 0: they must move by a known step from lane to lane. What is loaded with step 1 is a vector, and so is what is
made of it.
Where lanes would go different ways the vector code gives up, and its caller goes lane by lane.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright.source import nodes
from kernelwright.source.builtin_functions import is_cached_load, is_cached_store, vector_load, vector_store
from kernelwright.source.lexer import words_of
from kernelwright.source.span import Span
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.vectors.lane_checks import LaneChecks
from kernelwright.tactics.vectors.lane_kinds import UNIFORM, LaneKind
from kernelwright.tactics.vectors.lane_text import wide_name


@dataclass
class Vectorizer(LaneChecks):
    """Turns statements of one function into code for `VEC` lanes; one use."""

    leave: str = ""
    """What `return;` becomes; empty: it stays."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Accumulators, with their vector names."""
    mapped: dict[tuple[str, int], None] = field(default_factory=dict)
    """CUDA: functions that are called lane by lane, with their argument counts."""
    clones: dict[str, str] = field(default_factory=dict)
    """OpenCL: vector forms of the file's own functions, by name."""
    loaded: dict[str, tuple[str, Span]] = field(default_factory=dict)
    """By the text of a load: its element type and where it stands."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Loads that a register array keeps, by their text."""
    fills: frozenset[str] = frozenset()
    """Those that fill it."""
    vector_loads: int = 0
    vector_stores: int = 0

    # Statements

    def block(self, statements: Sequence[nodes.Statement]) -> str:
        """Several statements, with the blanks and comments between them."""
        if not statements:
            return ""
        parts = []
        at = self._start(statements[0])
        for each in statements:
            parts.append(self._raw(at, each.place.span.start))
            parts.append(self.statement(each))
            at = each.place.span.end
        return "".join(parts)

    def _start(self, node: nodes.Statement) -> int:
        """The first byte of a statement with the words before it that trees leave out: `__global`."""
        start = node.place.span.start
        for mark in reversed(self.tree.expanded.marks):
            is_before = mark.span.end <= start and not self.data[mark.span.end : start].strip()
            if is_before and mark.text.strip("_").isalpha():
                start = mark.span.start
        return start

    def statement(self, node: nodes.Statement) -> str:
        """One statement for all lanes.

        Raises:
            Unfit: it has no such form.
        """
        if not node.place.is_exact:
            raise Unfit("a macro makes whole statements")
        match node:
            case nodes.Declaration():
                return self.checks(node) + self._declaration(node)
            case nodes.Evaluate(expression=expression):
                return self.checks(expression) + self._evaluate(node, expression)
            case nodes.Block(statements=statements):
                return self._around(node, statements)
            case nodes.If():
                return self._if(node)
            case nodes.Loop():
                return self._loop(node)
            case nodes.Return(value=value):
                if value is None:
                    return self.leave or self._text(node)
                return self._around(node, (value,))
            case nodes.Jump():
                return self._text(node)
        raise Unfit("a statement that is not understood")

    def _around(self, node: nodes.Node, inner: Sequence[nodes.Node]) -> str:
        """The text of a node with those below it replaced."""
        parts, at = [], node.place.span.start
        for each in inner:
            if each.place.span.start < at:
                raise Unfit("a macro makes parts of statements")
            parts.append(self._raw(at, each.place.span.start))
            is_statement = isinstance(
                each, nodes.Declaration | nodes.Evaluate | nodes.Block | nodes.If | nodes.Loop | nodes.Return
                | nodes.Jump | nodes.OpaqueStatement
            )  # fmt: skip
            parts.append(self.statement(each) if is_statement else self.expression(each))  # type: ignore[arg-type]
            at = each.place.span.end
        parts.append(self._raw(at, node.place.span.end))
        return "".join(parts)

    def _declaration(self, node: nodes.Declaration) -> str:
        varying = [each for each in node.declarators if self.kinds.get(each.name, UNIFORM).is_varying]
        if not varying:
            return self._around(node, [each.initial for each in node.declarators if each.initial is not None])
        if any(each.is_pointer for each in node.declarators):
            raise Unfit("a declaration mixes pointers and numbers")
        first = node.declarators[0]
        prefix = self._raw(node.place.span.start, first.place.span.start)
        wide = self.wide_type(first.c_type)
        head = self._with_type(prefix, first, wide)
        head = re.sub(r"\b(?:constexpr|static)\s+", "", head)
        if len(varying) < len(node.declarators):
            heads = [head if each in varying else prefix for each in node.declarators]
            texts = [self._around(each, [] if each.initial is None else [each.initial]) for each in node.declarators]
            return " ".join(f"{own}{text};" for own, text in zip(heads, texts, strict=True))
        body = self._around(node, [each.initial for each in node.declarators if each.initial is not None])
        return head + body[len(prefix) :]

    def _with_type(self, text: str, declared: nodes.Declarator, wide: str) -> str:
        """The start of a declaration with another type; what it says may be a macro that stands for the type.

        Raises:
            Unfit: it is written in another way.
        """
        changed, count = re.subn(rf"(?<!\w){re.escape(declared.c_type)}(?!\w)", wide, text, count=1)
        if count:
            return changed
        macros = self.tree.expanded.macros
        for word in re.findall(r"[A-Za-z_]\w*", text):
            is_alias = word in self.tree.types and self.resolved(word) == declared.c_type
            if is_alias or (word in macros and self._meaning(word) == declared.c_type):
                return re.sub(rf"\b{word}\b", wide, text, count=1)
        raise Unfit(f"the type of {declared.name} is written in a way that is not understood")

    def _meaning(self, word: str) -> str:
        """What a macro without arguments stands for, through other macros; its words with a blank between them."""
        macros, words = self.tree.expanded.macros, [word]
        for _ in range(10):
            found = [w for each in words for w in (self._body(each) if each in macros else (each,))]
            if found == words:
                break
            words = found
        return " ".join(words)

    def _body(self, name: str) -> tuple[str, ...]:
        macro = self.tree.expanded.macros[name]
        return (name,) if macro.parameters is not None else tuple(t.text for t in macro.body if not t.is_blank)

    def wide_type(self, c_type: str) -> str:
        """The vector type of a scalar type."""
        if c_type == "auto":
            return "auto"
        return f"kw_{self._opencl_type(c_type)}" if self.dialect.is_opencl else f"kw_lanes<{c_type}>"

    def _evaluate(self, node: nodes.Evaluate, expression: nodes.Expression) -> str:
        match expression:
            case nodes.Assign(target=nodes.Name(name=name), operator=operator, value=value):
                self._refuse_assignment(name, operator, value)
                return self._around(node, (expression,))
            case nodes.Assign(target=target, operator=operator, value=value):
                return self._store(node, target, operator, value)
            case nodes.Call(function=name, arguments=arguments) if (shape := vector_store(name)) is not None:
                if shape[0] != 1:
                    raise Unfit("it already stores vectors")
                return self._store_half(name, arguments)
            case nodes.Call(function=name, arguments=(place, value)) if is_cached_store(name):
                if self.kind(place).step != 1:
                    raise Unfit("all lanes store at one place")
                return self._stored(self._pointed(place), self._wide(value))
            case nodes.Update(operand=nodes.Name()):
                return self._text(node)
            case nodes.Binary(operator=","):
                raise Unfit("a comma joins two effects")
        raise Unfit("a statement whose effect has no vector form")

    def _refuse_assignment(self, name: str, operator: str, value: nodes.Expression) -> None:
        """What C converts on the way into a variable, vectors do not.

        Raises:
            Unfit: the variable is an argument, which is one for all lanes, or has another type than its new value.
        """
        kind, own = self.kind(value), self.kinds.get(name, UNIFORM)
        if not kind.is_varying and not own.is_varying:
            return
        if name in self.types and name not in self.declared and name not in self.start:
            raise Unfit(f"{name} is an argument, and lanes would give it different values")
        if self.dialect.is_opencl and kind.is_varying and own.c_type not in ("", kind.c_type):
            raise Unfit(f"line {value.place.span.line(self.source)}: {name} is {own.c_type} and gets {kind.c_type}, "
                        "which vectors do not convert")  # fmt: skip

    def _store(self, node: nodes.Evaluate, target: nodes.Expression, operator: str, value: nodes.Expression) -> str:
        match target:
            case nodes.Element(base=nodes.Name(name=name), index=index) if name in self.arrays:
                if self.kind(index) != UNIFORM:
                    raise Unfit(f"{name} is indexed by the lane")
                return self._around(node, (target, value))
            case nodes.Element(base=base, index=index):
                step = self.steps(self.kind(base), self.kind(index))
            case nodes.Unary(operator="*", operand=operand):
                step = self.steps(self.kind(operand))
            case _:
                raise Unfit("it stores in a way that is not followed")
        if step != 1:
            raise Unfit("neighbouring lanes store at places that do not lie side by side")
        place = self._place(target)
        if narrow := self.narrow_type(self._element_type(target)):
            if operator != "=":
                raise Unfit(f"it changes {narrow} in place")
            return self._stored(place, self._narrow(value, narrow), narrow)
        text = self._wide(value)
        if operator != "=":
            text = f"{self._load(target, place, self._element_type(target))} {operator[:-1]} ({text})"
        return self._stored(place, text, self._element_type(target))

    def _stored(self, place: tuple[str, str], value: str, c_type: str = "") -> str:
        self.has_stored = True
        self.vector_stores += 1
        if self.dialect.is_opencl:
            own = self.narrow_type(c_type) or self._opencl_type(c_type)
            return f"*(__global kw_any_{own} *){_address(place)} = {value};"
        return f"kw_store({place[0]}, {place[1]}, {value});"

    def _narrow(self, node: nodes.Expression, c_type: str) -> str:
        """OpenCL: what becomes an integer below `int` as it is stored, as a vector of these.

        Raises:
            Unfit: it becomes something else before.
        """
        inner, ending = node, ""
        match node:
            case nodes.Call(function=name, arguments=(value,)):
                parts = re.fullmatch(r"convert_(u?(?:char|short))((?:_sat)?(?:_rt[ezpn])?)", name)
                if parts is not None:
                    inner, ending = value, parts[2]
                if parts is not None and parts[1] != c_type:
                    raise Unfit(f"it stores {parts[1]} as {c_type}")
            case nodes.Cast(operands=(value,)) if self.narrow_type(node.c_type) == c_type and not node.is_pointer:
                inner = value
        kind = self.kind(inner)
        if kind == UNIFORM:
            return f"(kw_{c_type})(({c_type})({self._text(node)}))"
        if kind.c_type not in ("int", "uint", "float", "double"):
            raise Unfit(f"it stores {kind.c_type or 'an index'} as {c_type}")
        spelled = f"KW_N(convert_{c_type})"
        return f"{f'KW_JOIN({spelled}, {ending})' if ending else spelled}({self._wide(inner)})"

    def _place(self, node: nodes.Expression) -> tuple[str, str]:
        """Pointer and index of an element; apart, because alignment of a pointer can be asked before a loop."""
        match node:
            case nodes.Element(base=base, index=index) if base.place.is_exact and index.place.is_exact:
                return self._text(base), self._text(index)
            case nodes.Unary(operator="*", operand=operand) if operand.place.is_exact:
                return self._text(operand), "0"
        return f"&({self._text(node)})", "0"

    def _pointed(self, node: nodes.Expression) -> tuple[str, str]:
        """What a pointer points to: `&x[i]`, or anything else."""
        if isinstance(node, nodes.Unary) and node.operator == "&":
            return self._place(node.operand)
        return self._text(node), "0"

    def _store_half(self, name: str, arguments: tuple[nodes.Expression, ...]) -> str:
        value, index, pointer = arguments
        if self.steps(self.kind(index), self.kind(pointer)) != 1:
            raise Unfit("neighbouring lanes store at places that do not lie side by side")
        self.has_stored = True
        self.vector_stores += 1
        rounding = name.removeprefix("vstore_half")
        place = f"({self._text(pointer)}) + ({self._text(index)})"
        stored = f"KW_JOIN(KW_N(vstore_half), {rounding})" if rounding else "KW_N(vstore_half)"
        return f"{stored}({self._wide(value)}, 0, {place});"

    def _load(self, node: nodes.Expression, place: tuple[str, str], c_type: str) -> str:
        self.vector_loads += 1
        if narrow := self.narrow_type(c_type):
            c_type, text = (
                "int",
                f"KW_N(convert_int)(*(__{self._space(node)} const kw_any_{narrow} *){_address(place)})",
            )
        elif self.dialect.is_opencl:
            c_type = self._opencl_type(c_type)
            text = f"(*(__{self._space(node)} const kw_any_{c_type} *){_address(place)})"
        else:
            text = f"kw_load({place[0]}, {place[1]})"
        return self._remembered(node, text, c_type)

    def _space(self, node: nodes.Expression) -> str:
        """OpenCL: the address space of a load, `global` or `constant`."""
        given = [(each.name, each.space) for function in self.tree.functions for each in function.parameters]
        given += [(each.declarator.name, each.space) for each in self.tree.arrays]
        return "constant" if (nodes.root_name(node), "constant") in given else "global"

    def _remembered(self, node: nodes.Expression, text: str, c_type: str) -> str:
        """A load, or what it was kept in."""
        self.loaded.setdefault(text, (c_type, node.place.span))
        kept = self.kept.get(text)
        if kept is None:
            return text
        return f"({kept} = {text})" if text in self.fills else kept

    def _wide(self, node: nodes.Expression) -> str:
        """An expression as a vector, also where it is the same in all lanes."""
        kind = self.kind(node)
        if kind.step:
            raise Unfit("the lane's index is used as a number")
        text = self.expression(node)
        if kind.is_varying:
            return text
        if not self.dialect.is_opencl:
            return f"kw_wide({text})"
        return text

    def _if(self, node: nodes.If) -> str:
        condition = self.kind(node.condition)
        if condition.is_varying:
            return self._chosen(node)
        checks = self.checks(node.condition)
        if self._is_one_lane(node.condition):  # lanes that agree are none of them the one: vectors have more than one
            return checks + (";" if node.no is None else self._braced(node.no))
        before = self.has_stored
        yes = self._raw(node.place.span.start, node.condition.place.span.start) + self.expression(node.condition)
        yes += self._raw(node.condition.place.span.end, node.yes.place.span.start) + self._braced(node.yes)
        if node.no is None:
            return checks + yes
        after_yes, self.has_stored = self.has_stored, before
        no = self._raw(node.yes.place.span.end, node.no.place.span.start) + self._braced(node.no)
        self.has_stored |= after_yes
        return checks + yes + no

    def _braced(self, node: nodes.Statement) -> str:
        """A statement that checks may come before, as one."""
        text = self.statement(node)
        return text if isinstance(node, nodes.Block) else f"{{ {text} }}"

    def _chosen(self, node: nodes.If) -> str:
        """`if (c) v = e;` as a choice."""
        yes = node.yes
        if isinstance(yes, nodes.Block) and len(yes.statements) == 1:
            yes = yes.statements[0]
        if node.no is None and isinstance(yes, nodes.Evaluate) and isinstance(yes.expression, nodes.Assign):
            assign = yes.expression
            if isinstance(assign.target, nodes.Name) and _is_loaded_anyway(assign.value, node.condition):
                name = self.expression(assign.target)
                value = self.expression(assign.value)
                if assign.operator != "=":
                    value = f"{name} {assign.operator[:-1]} ({value})"
                kind = self.kinds.get(assign.target.name, UNIFORM)
                return f"{name} = {self._select(self.expression(node.condition), value, name, kind.c_type)};"
        raise Unfit("lanes may go different ways, by a condition on data")

    def _select(self, condition: str, yes: str, no: str, c_type: str) -> str:
        if self.dialect.is_opencl:
            wide = f"kw_{c_type}"
            return f"(({condition}) ? ({wide})({yes}) : ({wide})({no}))"
        return f"kw_select({condition}, kw_wide({yes}), kw_wide({no}))"

    def _loop(self, node: nodes.Loop) -> str:
        checks = ""
        if isinstance(node.initial, nodes.Declaration):
            checks += self.checks(node.initial)
        inner: list[nodes.Node] = []
        if node.condition is not None:
            if self.kind(node.condition).is_varying:
                raise Unfit("a loop ends by a condition on data")
            checks += self._first_check(node, node.condition)
            inner.append(node.condition)
        if node.initial is not None and self._is_touched(node.initial):
            raise Unfit("a loop's start needs vectors")
        body = (
            self._around(node.body, node.body.statements)
            if isinstance(node.body, nodes.Block)
            else self._braced(node.body)
        )
        head = self._raw(node.place.span.start, node.body.place.span.start)
        tail = self._raw(node.body.place.span.end, node.place.span.end)
        return checks + head + body + tail

    def _is_touched(self, node: nodes.Node) -> bool:
        for each in nodes.walk(node):
            if isinstance(each, nodes.Name) and (
                each.name in self.renamed or self.kinds.get(each.name, UNIFORM).is_varying
            ):
                return True
            if isinstance(each, nodes.Element | nodes.Call) and self.kind(each).is_varying:
                return True
        return False

    # Expressions

    def expression(self, node: nodes.Expression) -> str:  # noqa: C901
        """One expression for all lanes.

        Raises:
            Unfit: it has no such form.
        """
        if node.place.span in self.narrowed:
            return f"{self._text(node)}f"
        if not self._is_touched(node):
            numbers = [each for each in nodes.walk(node) if each.place.span in self.narrowed]
            return self._around(node, numbers) if numbers else self._text(node)
        kind = self.kind(node)
        match node:
            case nodes.Name(name=name):
                return self.renamed.get(name, name)
            case nodes.Element(base=nodes.Name(name=name)) if name in self.arrays:
                return self._text(node)
            case nodes.Element() if kind.is_varying:
                return self._load(node, self._place(node), self._element_type(node))
            case nodes.Unary(operator="*") if kind.is_varying:
                return self._load(node, self._place(node), self._element_type(node))
            case nodes.Call():
                return self._call(node)
            case nodes.Conditional(condition=condition, yes=yes, no=no):
                return self._conditional(condition, yes, no, kind)
            case nodes.Cast(operands=(inner,)) if self.dialect.is_opencl:
                return f"KW_N(convert_{self._opencl_type(node.c_type)})({self.expression(inner)})"
            case nodes.Cast(operands=(inner,)):
                return f"kw_lanes<{node.c_type}>({self.expression(inner)})"
            case nodes.Binary(operator="&&" | "||") if kind.is_varying and _touches_memory(node.right):
                raise Unfit("whether something is loaded depends on data")
            case nodes.Binary(operator=operator, left=left, right=right) if self.is_mixed(node):
                return f"({self._as_float(left)} {operator} {self._as_float(right)})"
            case nodes.Assign(target=nodes.Name()) | nodes.Binary() | nodes.Unary():
                if not node.place.is_exact:
                    raise Unfit("a macro makes a part of what would change")
                return self._around(node, list(nodes.children(node)))
        raise Unfit("an expression that has no vector form")

    def _as_float(self, node: nodes.Expression) -> str:
        kind, text = self.kind(node), self.expression(node)
        return f"KW_N(convert_float)({text})" if kind.c_type in ("int", "uint") else f"({text})"

    def _conditional(
        self,
        condition: nodes.Expression,
        yes: nodes.Expression,
        no: nodes.Expression,
        kind: LaneKind,
    ) -> str:
        test, first, second = self.expression(condition), self.expression(yes), self.expression(no)
        if self.kind(condition).is_varying:
            if not _is_loaded_anyway(yes, condition) or not _is_loaded_anyway(no, condition):
                raise Unfit("whether something is loaded depends on data")
            return self._select(test, first, second, kind.c_type)
        if self.dialect.is_opencl:
            wide = f"kw_{kind.c_type}"
            return f"(({test}) ? ({wide})({first}) : ({wide})({second}))"
        return f"(({test}) ? kw_wide({first}) : kw_wide({second}))"

    def _call(self, node: nodes.Call) -> str:
        if not node.place.is_exact or not self._text(node).startswith(node.function):
            raise Unfit(f"{node.function} is called through a macro or a namespace")
        name, arguments = node.function, node.arguments
        if vector_load(name) is not None:
            self.vector_loads += 1
            text = f"KW_N(vload_half)(0, ({self._text(arguments[1])}) + ({self._text(arguments[0])}))"
            return self._remembered(node, text, "float")
        if is_cached_load(name):
            return self._load(node, self._pointed(arguments[0]), self._element_type(arguments[0]))
        if not self.dialect.is_opencl:
            said = self._with_template(node)
            self.mapped[said, len(arguments)] = None
            return f"{wide_name(said)}({', '.join(self._wide(each) for each in arguments)})"
        if name in self.functions:
            return self._clone_call(node)
        c_types = {kind.c_type for kind in map(self.kind, arguments) if kind.is_varying}
        wide = f"kw_{c_types.pop()}"
        if match := re.fullmatch(r"((?:convert|as)_\w+?)(_rt[ezpn])?", name):
            spelled = f"KW_N({match[1]})" if not match[2] else f"KW_JOIN(KW_N({match[1]}), {match[2]})"
            return f"{spelled}({self.expression(arguments[0])})"
        self._refuse_doubles(node, {wide[3:]})
        texts = [
            self.expression(each) if self.kind(each).is_varying else f"({wide})({self.expression(each)})"
            for each in arguments
        ]
        return f"{name}({', '.join(texts)})"

    def _with_template(self, node: nodes.Call) -> str:
        """The function with the template's arguments that a call says.

        Raises:
            Unfit: they are made of what only the kernel knows.
        """
        if not node.template_arguments:
            return node.function
        inside = [inner for each in node.template_arguments for inner in nodes.walk(each)]
        words = {word for name in inside if isinstance(name, nodes.Name) for word in words_of(name.name)}
        own: set[str] = set()
        for each in self.tree.kernels:
            own |= {parameter.name for parameter in each.template_parameters}
            own |= {parameter.name for parameter in each.parameters} | nodes.declared_names(each.body)
        if words & own or not all(isinstance(each, nodes.Name | nodes.Literal) for each in inside):
            raise Unfit(f"{node.function} is called with what only the kernel knows")
        given = (each.name if isinstance(each, nodes.Name) else self._text(each) for each in node.template_arguments)
        return f"{node.function}<{', '.join(given)}>"

    def _clone_call(self, node: nodes.Call) -> str:
        """A call of a vector form of one of the file's functions, which is made on the way."""
        function = self.functions[node.function]
        kinds = [self.kind(each) for each in node.arguments]
        name = f"kw_{node.function}" + "".join("v" if kind.is_varying else "u" for kind in kinds)
        if name not in self.clones:
            self.clones[name] = ""
            text = self._clone(name, function, kinds)
            del self.clones[name]  # what it calls itself was made after it, and must stand before it
            self.clones[name] = text
        elif not self.clones[name]:
            raise Unfit(f"{node.function} calls itself")
        return f"{name}({', '.join(self._wide(each) for each in node.arguments)})"

    def _clone(self, name: str, function: nodes.Function, kinds: list[LaneKind]) -> str:
        types = {p.name: p.c_type for p in function.parameters}
        for parameter, kind in zip(function.parameters, kinds, strict=True):
            if kind.is_varying and self._opencl_type(parameter.c_type) != kind.c_type:
                raise Unfit(f"{function.name} converts its arguments")
        inner = Vectorizer(
            self.source, self.dialect, self.tree, {}, types=types, clones=self.clones, vec=self.vec,
            start={p.name: kind for p, kind in zip(function.parameters, kinds, strict=True)},
        )  # fmt: skip
        returns = [each for each in nodes.walk(function.body) if isinstance(each, nodes.Return)]
        last = function.body.statements[-1] if function.body.statements else None
        if len(returns) != 1 or returns[0] is not last:
            raise Unfit(f"{function.name} returns from several places")
        inner.settle(function.body.statements)
        body = inner.block(function.body.statements)
        parameters = ", ".join(
            f"{self.wide_type(p.c_type) if kind.is_varying else p.c_type} {p.name}"
            for p, kind in zip(function.parameters, kinds, strict=True)
        )
        return f"static inline {self.wide_type(function.c_type)} {name}({parameters}) {{\n  {body}\n}}\n"


def _address(place: tuple[str, str]) -> str:
    """A pointer and an index as one pointer, in parentheses."""
    pointer, index = place
    return f"({pointer})" if index == "0" else f"(({pointer}) + ({index}))"


def types_in(wide: Sequence[Vectorizer], subject: Subject) -> set[str]:
    """The scalar types of what lanes hold and of the kernel's arrays, of which vectors may be needed."""
    held = {kind.c_type for lanes in wide for kind in lanes.kinds.values() if kind.is_varying and kind.c_type}
    return {"float"} | held | {array.c_type for array in subject.analysis.facts.arrays.values()}


def functions_for(wide: Sequence[Vectorizer]) -> list[str]:
    """Functions of the file in their forms for vectors, each once, in the order in which they may stand."""
    return list({name: text for lanes in wide for name, text in lanes.clones.items() if text}.values())


def _is_loaded_anyway(value: nodes.Expression, condition: nodes.Expression) -> bool:
    """Whether everything that a value loads is loaded by the condition too."""
    loaded = [each for each in nodes.walk(condition) if _touches_memory(each)]
    return all(
        any(nodes.same(each, other) for other in loaded)
        for each in nodes.walk(value)
        if isinstance(each, nodes.Element | nodes.Call | nodes.Unary) and _touches_memory(each)
        and not any(_touches_memory(child) for child in nodes.children(each))
    )  # fmt: skip


def _touches_memory(node: nodes.Node) -> bool:
    return any(
        isinstance(each, nodes.Element)
        or (isinstance(each, nodes.Unary) and each.operator == "*")
        or (isinstance(each, nodes.Call) and (vector_load(each.function) is not None or is_cached_load(each.function)))
        for each in nodes.walk(node)
    )
