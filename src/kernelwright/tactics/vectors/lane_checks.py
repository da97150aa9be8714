"""Where lanes could go different ways: vector code asks first whether they all go the same one, and leaves if not."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelwright.source import nodes
from kernelwright.source.span import Span
from kernelwright.tactics.base import Unfit
from kernelwright.tactics.common.thread_queries import QUERY_VARIABLES
from kernelwright.tactics.vectors.lane_kinds import COMPARISONS, UNIFORM, LaneKinds


@dataclass
class LaneChecks(LaneKinds):
    """Kinds, and the checks that vector code of `VEC` lanes begins its statements with; one use."""

    vec: str = "VEC"
    early: dict[str, None] = field(default_factory=dict)
    """Checks that belong to the start of the vector code."""
    has_stored: bool = False
    checked: set[Span] = field(default_factory=set)
    """Quotients and remainders that are known to be asked for by lanes of one quotient alone."""

    def __post_init__(self) -> None:
        LaneKinds.__post_init__(self)
        self.data = self.source.encode("utf-8", "surrogatepass")

    def checks(self, node: nodes.Node) -> str:
        """Leave before a statement whose conditions are not the same in all lanes."""
        found = []
        for each in nodes.walk(node):
            if isinstance(each, nodes.Binary) and each.operator in COMPARISONS:
                left, right = self.kind(each.left), self.kind(each.right)
                if left.is_varying or right.is_varying or (left == UNIFORM == right):
                    continue
                found.append(self._check(each, self._text(each.left), self._text(each.right)))
            elif isinstance(each, nodes.Binary) and self.is_split(each):
                found.append(self._split_check(each))
        return "".join(dict.fromkeys(found))

    def _first_check(self, node: nodes.Loop, condition: nodes.Expression) -> str:
        """A loop whose index moves with the lane runs once, or never: the same for all lanes."""
        if not (isinstance(condition, nodes.Binary) and condition.operator in COMPARISONS):
            if self.kind(condition) != UNIFORM or any(
                isinstance(each, nodes.Name) and self.kinds.get(each.name, UNIFORM).step
                for each in nodes.walk(condition)
            ):
                raise Unfit("a loop's condition depends on the lane")
            return ""
        left, right = self.kind(condition.left), self.kind(condition.right)
        if left == UNIFORM == right:
            return ""
        first = self._text(condition.left)
        if isinstance(node.initial, nodes.Declaration):
            declarators = {each.name: each for each in node.initial.declarators}
            if not isinstance(condition.left, nodes.Name) or condition.left.name not in declarators:
                raise Unfit("a loop's condition depends on the lane")
            initial = declarators[condition.left.name].initial
            if initial is None:
                raise Unfit("a loop's index has no start")
            first = self._text(initial)
        return self._check(condition, first, self._text(condition.right))

    def _check(self, node: nodes.Binary, first: str, second: str) -> str:
        left, right = self.kind(node.left), self.kind(node.right)
        step = left.step - right.step
        if step == 0:
            return ""
        is_early = self.has_stored and self._is_known_at_once(node)
        if not self.give_up or (self.has_stored and not is_early):
            raise Unfit("lanes may go different ways after something was stored")
        integer = self.dialect.signed_64
        apart = f"(({integer})({first}) - ({integer})({second}))"
        reach = f"{step} * ({self.vec} - 1)"
        if node.operator in ("==", "!="):
            if abs(step) != 1:
                raise Unfit("an index is compared in a way that is not followed")
            low, high = (apart, f"{apart} + {reach}") if step > 0 else (f"{apart} + {reach}", apart)
            condition = f"{low} <= 0 && {high} >= 0"
        else:
            condition = f"(({first}) {node.operator} ({second})) != ({apart} + {reach} {node.operator} 0)"
        # Unsigned numbers wrap around; where they might, the distance is as large as their type.
        condition += f" || {apart} > 0x7fffff00 || {apart} < -0x7fffff00"
        text = f"if ({condition}) {{ {self.give_up} }}\n"
        if is_early:
            self.early[text] = None
            return ""
        return text

    def _split_check(self, node: nodes.Binary) -> str:
        """Leave where lanes have different quotients, or where a negative or a wrapping index makes them others."""
        is_early = self.has_stored and self._is_known_at_once(node)
        if not self.give_up or (self.has_stored and not is_early):
            raise Unfit("lanes may go different ways after something was stored")
        self.checked.add(node.place.span)
        index, size, reach = f"({self._text(node.left)})", f"({self._text(node.right)})", f"({self.vec} - 1)"
        wraps = f"{index} + {reach} < {index}"
        text = (
            f"if ({size} <= 0 || {index} < 0 || {wraps} || {index} % {size} + {reach} >= {size}) {{ {self.give_up} }}\n"
        )
        if is_early:
            self.early[text] = None
            return ""
        return text

    def _is_known_at_once(self, node: nodes.Binary) -> bool:
        """Whether a condition is made of the thread's place and parameters alone: it can be asked at the start."""
        own = {each.name for each in nodes.walk(node) if isinstance(each, nodes.Name)} - QUERY_VARIABLES
        return not any(name in self.declared for name in own)

    def _is_one_lane(self, node: nodes.Expression) -> bool:
        """Whether a condition holds for one lane at most: `threadIdx.x == 0`."""
        if not isinstance(node, nodes.Binary) or node.operator != "==":
            return False
        left, right = self.kind(node.left), self.kind(node.right)
        return not left.is_varying and not right.is_varying and abs(left.step - right.step) == 1

    def _raw(self, start: int, end: int) -> str:
        return self.data[start:end].decode("utf-8", "surrogatepass")

    def _text(self, node: nodes.Node) -> str:
        if not node.place.is_exact:
            raise Unfit("a macro makes a part of what would change")
        return self._raw(node.place.span.start, node.place.span.end)
