"""Exact algebra: each rewrite gives the same function of random inputs and weights, and says so; others are left."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.cli.main import main
from kernelwright.modules.algebra import rewritten
from kernelwright.modules.graph import Graph, read_graph
from kernelwright.modules.library import LIBRARY, word
from kernelwright.modules.lowering import lower
from kernelwright.modules.problem_files import files_of, signature_of
from kernelwright.problem.load.problem import load_problem

Arrays = Mapping[str, Any]


def product(name: str, left: str, right: str, shape: tuple[int, int], bias: str | None = None) -> dict[str, Any]:
    if bias is None:
        return node(name, "aten.mm.default", shape, self=ref(left), mat2=ref(right))
    return node(name, "aten.addmm.default", shape, self=ref(bias), mat1=ref(left), mat2=ref(right), beta=1, alpha=1)


def node(name: str, op: str, shape: tuple[int, ...], **arguments: Any) -> dict[str, Any]:
    return {"name": name, "op": op, "arguments": arguments, "results": [{"shape": shape, "dtype": "float32"}]}


def ref(name: str) -> dict[str, str]:
    return {"ref": name}


def reduced(kind: str, of: str, dims: list[int], shape: tuple[int, ...], *, keepdim: bool) -> dict[str, Any]:
    op = {"sum": "aten.sum.dim_IntList", "mean": "aten.mean.dim"}[kind]
    return node("y", op, shape, self=ref(of), dim=dims, keepdim=keepdim, dtype=None)


def graph(inputs: Mapping[str, tuple[int, ...]], *nodes: dict[str, Any], outputs: tuple[str, ...] = ("y",)) -> Graph:
    values = {"low": -2.0, "high": 2.0, "deviation": 1.0}
    given = [
        {"name": name, "kind": "input", "target": str(place), "shape": shape, "dtype": "float32", "values": values}
        for place, (name, shape) in enumerate(inputs.items())
    ]
    returned = [{"ref": each, "mutates": None} for each in outputs]
    call = [ref(name) for name in inputs]
    returns = "tensor" if len(outputs) == 1 else "tuple"
    return read_graph({"inputs": given, "nodes": [*nodes], "outputs": returned, "call": call, "returns": returns})


def evaluated(found: Graph, inputs: Arrays) -> list[Any]:
    """The outputs in float64; checks each result's shape."""
    known = dict(inputs)
    for each in found.nodes:
        arguments = {name: known[value["ref"]] if isinstance(value, dict) else value
                     for name, value in each.arguments.items()}  # fmt: skip
        known[each.name] = np.asarray(OPERATORS[word(each)](arguments))
        assert known[each.name].shape == each.results[0].shape, each
    return [known[each.ref] for each in found.outputs]


def convolution(given: Arrays) -> Any:
    """Slow: each weight at each place, of any number of axes, with one group."""
    x, weight, is_turned = given["input"], given["weight"], given["transposed"]
    steps, padding, dilation = given["stride"], given["padding"], given["dilation"]
    rank = x.ndim - 2
    taps = weight.shape[2:]
    if is_turned:
        whole = [(x.shape[2 + a] - 1) * steps[a] + dilation[a] * (taps[a] - 1) + 1 for a in range(rank)]
        out = np.zeros((x.shape[0], weight.shape[1], *whole))
        for place in itertools.product(*map(range, x.shape[2:])):
            for tap in itertools.product(*map(range, taps)):
                to = tuple(place[a] * steps[a] + tap[a] * dilation[a] for a in range(rank))
                out[:, :, *to] += x[:, :, *place] @ weight[:, :, *tap]
        out = out[:, :, *(slice(padding[a], whole[a] - padding[a]) for a in range(rank))]
    else:
        x = np.pad(x, [(0, 0), (0, 0), *((each, each) for each in padding)])
        places = [(x.shape[2 + a] - dilation[a] * (taps[a] - 1) - 1) // steps[a] + 1 for a in range(rank)]
        out = np.zeros((x.shape[0], weight.shape[0], *places))
        for place in itertools.product(*map(range, places)):
            for tap in itertools.product(*map(range, taps)):
                at = tuple(place[a] * steps[a] + tap[a] * dilation[a] for a in range(rank))
                out[:, :, *place] += x[:, :, *at] @ weight[:, :, *tap].T
    bias = given["bias"]
    return out if bias is None else out + bias.reshape(-1, *[1] * rank)


OPERATORS: Mapping[str, Any] = {
    "mm": lambda given: given["self"] @ given["mat2"],
    "addmm": lambda given: given["beta"] * given["self"] + given["alpha"] * (given["mat1"] @ given["mat2"]),
    "sum": lambda given: given["self"].sum(axis=tuple(given["dim"]), keepdims=given["keepdim"]),
    "mean": lambda given: given["self"].mean(axis=tuple(given["dim"]), keepdims=given["keepdim"]),
    "mul": lambda given: given["self"] * given["other"],
    "div": lambda given: given["self"] / given["other"],
    "add": lambda given: given["self"] + given["alpha"] * given["other"],
    "sub": lambda given: given["self"] - given["alpha"] * given["other"],
    "reshape": lambda given: given["self"].reshape(given["shape"]),
    "alias": lambda given: given["self"],
    "permute": lambda given: given["self"].transpose(given["dims"]),
    "convolution": convolution,
}


def agrees(own: Graph, seed: int, *, times: int = 1) -> tuple[str, ...]:
    """The labels, once the rewritten graph was seen to be the same function, and to be lowered."""
    found, labels = rewritten(own)
    numbers = np.random.default_rng(seed)
    for _ in range(times):
        inputs = {each.name: numbers.normal(size=each.tensor.shape) for each in own.inputs}
        for one, other in zip(evaluated(found, inputs), evaluated(own, inputs), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    assert lower(found).kernels
    again, more = rewritten(found)
    assert (again, more) == (found, ())
    return tuple(each.partition(": ")[2] for each in labels)


def linear(
    rows: int, depth: int, columns: int, *after: dict[str, Any], with_bias: bool, outputs: tuple[str, ...]
) -> Graph:
    inputs = {"x": (rows, depth), "w": (depth, columns), **({"b": (columns,)} if with_bias else {})}
    first = product("p", "x", "w", (rows, columns), "b" if with_bias else None)
    return graph(inputs, first, *after, outputs=outputs)


EXTENT = st.integers(2, 6)


@given(
    EXTENT, EXTENT, EXTENT, st.booleans(), st.booleans(), st.sampled_from(["sum", "mean"]), st.sampled_from([0, 1, -1])
)
def test_a_sum_or_a_mean_of_a_product_is_a_product_of_sums(
    rows: int, depth: int, columns: int, with_bias: bool, keepdim: bool, kind: str, dim: int
) -> None:
    kept = [rows, columns]
    kept[dim] = 1
    shape = tuple(kept) if keepdim else (columns,) if dim == 0 else (rows,)
    own = linear(
        rows, depth, columns, reduced(kind, "p", [dim], shape, keepdim=keepdim), with_bias=with_bias, outputs=("y",)
    )
    (label,) = agrees(own, rows + depth)
    assert ("rows" if dim == 0 else "columns") in label


@given(EXTENT, EXTENT, EXTENT, EXTENT, st.booleans(), st.booleans())
def test_two_products_are_one_only_where_that_is_cheaper(
    rows: int, depth: int, middle: int, columns: int, first: bool, second: bool
) -> None:
    inputs = {"x": (rows, depth), "v": (depth, middle), "w": (middle, columns), "a": (middle,), "b": (columns,)}
    own = graph(
        inputs,
        product("p", "x", "v", (rows, middle), "a" if first else None),
        product("y", "p", "w", (rows, columns), "b" if second else None),
    )
    labels = agrees(own, rows + middle)
    apart = rows * middle * (depth + columns)
    joined = depth * columns * (middle + rows) + (middle * columns if first else 0)
    assert bool(labels) == (joined < apart)


def chained(rows: int, columns: int, steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Operators on `p` in a row, the last of which gives `q`."""
    names = ["p", *(f"s{place}" for place in range(len(steps) - 1)), "q"]
    shift = {"add": {"alpha": 1}, "sub": {"alpha": 1}}
    return [
        node(names[place + 1], f"aten.{op}.Tensor", (rows, columns), self=ref(names[place]),
             other=ref(other) if isinstance(other, str) else other, **shift.get(op, {}))
        for place, (op, other) in enumerate(steps)
    ]  # fmt: skip


STEPS = st.one_of(
    st.tuples(st.sampled_from(["add", "sub"]), st.sampled_from(["row", "column", "one", "number", 3, -0.5])),
    st.tuples(st.sampled_from(["mul", "div"]), st.sampled_from([2, -0.25])),
)


@given(
    EXTENT, EXTENT, EXTENT, st.booleans(), st.sampled_from(["sum", "mean"]), st.sampled_from([0, 1]),
    st.lists(STEPS, min_size=1, max_size=3),
)  # fmt: skip
def test_a_sum_of_a_product_that_is_scaled_and_shifted_is_a_product_of_sums(
    rows: int, depth: int, columns: int, with_bias: bool, kind: str, dim: int, steps: list[tuple[str, Any]]
) -> None:
    kept = (columns,) if dim == 0 else (rows,)
    total = reduced(kind, "q", [dim], kept, keepdim=False)
    own = linear(rows, depth, columns, *chained(rows, columns, steps), total, with_bias=with_bias, outputs=("y",))
    terms = {"row": (columns,), "column": (rows, 1), "one": (1, 1), "number": ()}
    given = {each.name: each.tensor.shape for each in own.inputs}
    read = {name: shape for name, shape in terms.items() if name in [other for _, other in steps]}
    own = replace(own, inputs=graph({**given, **read}).inputs)
    labels = agrees(own, rows + depth)
    assert f"the sum of a product's {'rows' if dim == 0 else 'columns'}" in " ".join(labels)
    assert all(each.results[0].shape != (rows, columns) for each in rewritten(own)[0].nodes)


@pytest.mark.parametrize(
    "step", [("mul", "row"), ("div", 0), ("mul", math.inf), ("add", math.nan), ("add", "all"), ("pow", 2)]
)
def test_a_sum_of_a_product_that_is_changed_otherwise_is_left_as_it_is(step: tuple[str, Any]) -> None:
    total = reduced("sum", "q", [1], (4,), keepdim=False)
    own = linear(4, 5, 6, *chained(4, 6, [("add", 1), step]), total, with_bias=True, outputs=("y",))
    given = {each.name: each.tensor.shape for each in own.inputs}
    own = replace(own, inputs=graph({**given, "row": (6,), "all": (4, 6)}).inputs)
    assert rewritten(own)[1] == ()


@given(
    EXTENT,
    EXTENT,
    EXTENT,
    st.booleans(),
    st.sampled_from(["mul", "div"]),
    st.floats(-4, 4).filter(lambda c: abs(c) > 0.1),
)
def test_a_factor_goes_into_the_weight_where_that_is_smaller(
    rows: int, depth: int, columns: int, with_bias: bool, op: str, factor: float
) -> None:
    scaled = node("y", f"aten.{op}.Tensor", (rows, columns), self=ref("p"), other=factor)
    own = linear(rows, depth, columns, scaled, with_bias=with_bias, outputs=("y",))
    assert bool(agrees(own, rows + depth)) == (depth < rows)


@given(st.permutations([0, 1, 2]))
def test_transposes_that_undo_each_other_are_left_out(order: list[int]) -> None:
    shape = (2, 3, 4)
    turned = tuple(shape[each] for each in order)
    back = [order.index(each) for each in range(3)]
    pair = (
        node("p", "aten.permute.default", turned, self=ref("x"), dims=order),
        node("y", "aten.permute.default", shape, self=ref("p"), dims=back),
    )
    own = graph({"x": shape}, *pair)
    assert agrees(own, 1) == ()  # it is no algebra
    assert [word(each) for each in rewritten(own)[0].nodes] == ["alias"]
    again = {**pair[1], "arguments": {"self": ref("p"), "dims": order}}
    shape_again = tuple(turned[each] for each in order)
    again["results"] = [{"shape": shape_again, "dtype": "float32"}]
    own = graph({"x": shape}, pair[0], again)
    assert agrees(own, 1) == ()
    assert (len(rewritten(own)[0].nodes) == 1) == (order == back)


def convolved(
    *, with_bias: bool, transposed: bool, stride: int = 1, padding: int = 0, spread: int = 1, groups: int = 1
) -> tuple[dict[str, tuple[int, ...]], dict[str, Any], tuple[int, ...]]:
    """Inputs, node and shape of a convolution of 3 channels to 4, of 2 taps, over 5 by 6 places."""
    inputs: dict[str, tuple[int, ...]] = {"x": (2, 3, 5, 6), "w": (3, 4, 2, 2) if transposed else (4, 3, 2, 2)}
    inputs |= {"b": (4,)} if with_bias else {}
    if transposed:
        places = tuple((each - 1) * stride + spread + 1 - 2 * padding for each in (5, 6))
    else:
        places = tuple((each + 2 * padding - spread - 1) // stride + 1 for each in (5, 6))
    shape = (2, 4, *places)
    arguments = {"stride": [stride] * 2, "padding": [padding] * 2, "dilation": [spread] * 2, "transposed": transposed}
    arguments |= {"output_padding": [0, 0], "groups": groups, "bias": ref("b") if with_bias else None}
    return inputs, node("p", "aten.convolution.default", shape, input=ref("x"), weight=ref("w"), **arguments), shape


@given(
    st.booleans(),
    st.booleans(),
    st.sampled_from(["sum", "mean"]),
    st.integers(1, 2),
    st.integers(0, 1),
    st.integers(1, 2),
)
def test_a_sum_of_channels_is_a_convolution_with_summed_filters(
    with_bias: bool, transposed: bool, kind: str, stride: int, padding: int, spread: int
) -> None:
    inputs, made, shape = convolved(
        with_bias=with_bias, transposed=transposed, stride=stride, padding=padding, spread=spread
    )
    total = reduced(kind, "p", [1], (2, 1, *shape[2:]), keepdim=True)
    assert agrees(graph(inputs, made, total), stride)
    apart = node("q", "aten.add.Tensor", shape, self=ref("p"), other=ref("c"), alpha=1)
    later = {**total, "arguments": {**total["arguments"], "self": ref("q")}}
    for bias in ((4, 1, 1), (1, 4, 1, 1), (2, 4, 1, 1)):
        assert len(agrees(graph({**inputs, "c": bias}, made, apart, later), stride)) == 2
    alike = {**inputs, "c": shape}
    assert agrees(graph(alike, made, apart, later), stride) == ()


@given(st.booleans(), st.sampled_from(["sum", "mean"]), st.integers(1, 2), st.integers(0, 1), st.booleans())
def test_a_sum_of_places_of_a_transposed_convolution_is_a_product_where_nothing_is_cut_off(
    with_bias: bool, kind: str, stride: int, padding: int, keepdim: bool
) -> None:
    inputs, made, shape = convolved(with_bias=with_bias, transposed=True, stride=stride, padding=padding)
    total = reduced(kind, "p", [2, -1], (2, 4, 1, 1) if keepdim else (2, 4), keepdim=keepdim)
    assert bool(agrees(graph(inputs, made, total), stride)) == (padding == 0)
    apart = node("q", "aten.add.Tensor", shape, self=ref("p"), other=ref("c"), alpha=1)
    later = {**total, "arguments": {**total["arguments"], "self": ref("q")}}
    for bias in ((4, 1, 1), (2, 1, 1, shape[-1])):
        assert len(agrees(graph({**inputs, "c": bias}, made, apart, later), stride)) == (2 if padding == 0 else 0)


def test_rewrites_of_the_same_operator_do_not_take_each_others_names() -> None:
    """The last two weights become one, then all three."""
    inputs = {"x": (4, 8), "u": (8, 2), "v": (2, 20), "w": (20, 1)}
    products = [product("p", "x", "u", (4, 2)), product("q", "p", "v", (4, 20)), product("y", "q", "w", (4, 1))]
    assert len(agrees(graph(inputs, *products), 5)) == 2


def test_new_names_are_free() -> None:
    inputs = {"x": (4, 5), "w": (5, 6), "y_r0_w": (4,)}
    total = reduced("sum", "p", [1], (4,), keepdim=False)
    own = graph(inputs, product("p", "x", "w", (4, 6)), {**total, "name": "q"},
                node("q_r0_p", "aten.mul.Tensor", (4,), self=ref("y_r0_w"), other=2),
                node("y", "aten.add.Tensor", (4,), self=ref("q"), other=ref("q_r0_p"), alpha=1))  # fmt: skip
    assert agrees(own, 3)
    names = [*(each.name for each in own.inputs), *(each.name for each in rewritten(own)[0].nodes)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("changed", ["float16", "bfloat16", "w", "b", "y"])
def test_only_wide_floats_of_one_dtype_are_rewritten(changed: str) -> None:
    """Halves may overflow where their sum does not; other dtypes would change what is computed."""
    total = reduced("sum", "p", [1], (4,), keepdim=False)
    own = linear(4, 5, 6, total, with_bias=True, outputs=("y",))
    assert rewritten(own)[1]
    dtype = changed if "float" in changed else "float64"
    are_all = "float" in changed
    inputs = tuple(
        replace(each, tensor=replace(each.tensor, dtype=dtype)) if are_all or each.name == changed else each
        for each in own.inputs
    )
    nodes = tuple(
        replace(each, results=(replace(each.results[0], dtype=dtype),)) if are_all or each.name == changed else each
        for each in own.nodes
    )
    assert rewritten(replace(own, inputs=inputs, nodes=nodes)) == (replace(own, inputs=inputs, nodes=nodes), ())


def test_a_tensor_without_elements_is_left_as_it_is() -> None:
    inputs, made, shape = convolved(with_bias=True, transposed=True)
    empty = {**made, "results": [{"shape": (0, *shape[1:]), "dtype": "float32"}]}
    total = reduced("sum", "p", [2, 3], (0, 4), keepdim=False)
    assert rewritten(graph({**inputs, "x": (0, *inputs["x"][1:])}, empty, total))[1] == ()


@pytest.mark.parametrize(
    ("op", "factor"),
    [("div", 0), ("div", 0.0), ("mul", math.inf), ("mul", math.nan), ("mul", 10**400), ("mul", True),
     ("mul", {"float": "inf"}), ("mul", ref("c"))],
)  # fmt: skip
def test_a_factor_that_is_no_plain_number_stays_where_it_is(op: str, factor: Any) -> None:
    scaled = node("y", f"aten.{op}.Tensor", (9, 6), self=ref("p"), other=factor)
    inputs = {"x": (9, 5), "w": (5, 6), "c": ()}
    assert rewritten(graph(inputs, product("p", "x", "w", (9, 6)), scaled))[1] == ()


def test_what_something_else_reads_is_left_as_it_is() -> None:
    total = reduced("sum", "p", [1], (4,), keepdim=False)
    assert agrees(linear(4, 5, 6, total, with_bias=True, outputs=("y", "p")), 3) == ()


@pytest.mark.parametrize("changed", [{"alpha": 2}, {"beta": 0.5}], ids=["alpha", "beta"])
def test_a_product_with_factors_of_its_own_is_left_as_it_is(changed: dict[str, float]) -> None:
    own = linear(4, 5, 6, reduced("sum", "p", [1], (4,), keepdim=False), with_bias=True, outputs=("y",))
    first = replace(own.nodes[0], arguments={**own.nodes[0].arguments, **changed})
    assert agrees(replace(own, nodes=(first, *own.nodes[1:])), 3) == ()


def test_groups_a_maximum_and_a_map_between_are_left_as_they_are() -> None:
    inputs, made, shape = convolved(with_bias=False, transposed=False, groups=3)
    total = reduced("sum", "p", [1], (2, 1, *shape[2:]), keepdim=True)
    assert rewritten(graph(inputs, made, total))[1] == ()
    most = node("y", "aten.amax.default", (4,), self=ref("p"), dim=[1], keepdim=False)
    assert rewritten(linear(4, 5, 6, most, with_bias=True, outputs=("y",)))[1] == ()
    bent = node("q", "aten.relu.default", (4, 6), self=ref("p"))
    own = linear(4, 5, 6, bent, reduced("sum", "q", [1], (4,), keepdim=False), with_bias=True, outputs=("y",))
    assert rewritten(own)[1] == ()


@pytest.mark.parametrize("library", [(), LIBRARY])
def test_the_program_says_what_was_rewritten(library: tuple[str, ...], tmp_path: Path) -> None:
    bent = node("z", "aten.relu.default", (4,), self=ref("y"))
    own = linear(4, 5, 6, reduced("sum", "p", [1], (4,), keepdim=False), bent, with_bias=True, outputs=("z",))
    found, labels = rewritten(own)
    for name, data in files_of("summed", b"", found, lower(found, library=library), algebra=labels).items():
        (tmp_path / name).write_bytes(data)
    assert f"# Exact algebra, {labels[0]}." in (tmp_path / "problem.toml").read_text()
    signature = signature_of(load_problem(tmp_path).reference)
    assert signature is not None
    assert signature["algebra"] == [*labels]


def test_the_flag_is_for_modules(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "a.cl").write_text("__kernel void a(__global float *x) { x[get_global_id(0)] = 1; }")
    with pytest.raises(SystemExit) as left:
        main(["init", "a.cl", "--algebra"])
    assert left.value.code == 2
    assert "--algebra is for a PyTorch module" in capsys.readouterr().err
