"""The tree as a drawing: a box a node, from the baseline on the left; a click on one opens what is known of it."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from kernelwright.evaluate.words import factor_text
from kernelwright.insights.step_table import told_total
from kernelwright.report.svg import element
from kernelwright.report.text import clean
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.tree.model import Node

BOX_PX = (168, 40)
STEP_PX = (206, 52)
EDGE_PX = 6
MOST_LABEL = 19


def tree_chart(result: OptimizeResult, path: set[int]) -> Markup:
    """The drawing; every node is a link to its details. Status and path are told by text, not by colour alone."""
    places = _places(result)
    width = max(x for x, _ in places.values()) + BOX_PX[0] + 2 * EDGE_PX
    height = max(y for _, y in places.values()) + BOX_PX[1] + 2 * EDGE_PX
    parts = [*_edges(result, places, path), *(_box(result, node, places, path) for node in result.tree)]
    return element(
        "svg",
        *parts,
        class_="tree-chart",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="group",
        aria_label="Tree of structures",
    )


def _places(result: OptimizeResult) -> dict[int, tuple[int, int]]:
    """Left upper corners: a column a generation, a row a leaf; a parent stands beside its first child."""
    places: dict[int, tuple[int, int]] = {}
    row = 0
    waiting: list[tuple[int, int]] = [(0, 0)]
    while waiting:
        index, depth = waiting.pop()
        places[index] = (EDGE_PX + depth * STEP_PX[0], EDGE_PX + row * STEP_PX[1])
        children = result.tree.children(index)
        waiting += [(child.index, depth + 1) for child in reversed(children)]
        row += not children
    return places


def _edges(result: OptimizeResult, places: dict[int, tuple[int, int]], path: set[int]) -> Iterator[Markup]:
    for node in result.tree:
        if node.parent is None:
            continue
        (x, y), (to_x, to_y) = places[node.parent], places[node.index]
        start_x, middle = x + BOX_PX[0], BOX_PX[1] // 2
        bend_x = (start_x + to_x) // 2
        line = f"M{start_x} {y + middle}C{bend_x} {y + middle} {bend_x} {to_y + middle} {to_x} {to_y + middle}"
        yield element("path", d=line, class_="edge onpath" if node.index in path else "edge")


def _box(result: OptimizeResult, node: Node, places: dict[int, tuple[int, int]], path: set[int]) -> Markup:
    x, y = places[node.index]
    name = "baseline" if node.parent is None else clean(node.label)
    label = f"{node.index} {name}"
    label = label if len(label) <= MOST_LABEL else f"{label[: MOST_LABEL - 1]}…"
    fastest = result.fastest
    is_fastest = fastest is not None and fastest.index == node.index and node.parent is not None
    classes = ["tree-node", node.status, *(["onpath"] if node.index in path else []), *(["fastest"] * is_fastest)]
    return element(
        "a",
        element("title", f"{name}: {clean(node.instruction)}"),
        element("rect", x=x, y=y, width=BOX_PX[0], height=BOX_PX[1], rx=7),
        element("text", label, x=x + 10, y=y + 17, class_="tree-label"),
        element("text", _second_line(result, node, is_fastest=is_fastest), x=x + 10, y=y + 32, class_="tree-value"),
        href=f"#node-{node.index}",
        class_=" ".join(classes),
        data_node=node.index,
    )


def _second_line(result: OptimizeResult, node: Node, *, is_fastest: bool) -> str:
    """What it came to over the baseline: compared where it was, else about, from the search."""
    if node.parent is None:
        return "1×, by definition"
    if node.failure is not None:
        return clean(f"{node.status}: {node.failure.reason or node.failure.stage}")[:26]
    if not node.best_value:
        return node.status
    total = told_total(result, node.index)
    told = factor_text(total.estimate, times="×") if total else f"≈ {factor_text(1 / node.best_value, times='×')}"
    predicted = f", predicted {factor_text(node.predicted_gain, times='×')}" if node.predicted_gain else ""
    return f"{told}{', fastest' if is_fastest else predicted}"
