"""A graph becomes a program of few kernels; what cannot is refused by name, all of it at once."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from kernelwright.backend.base import BuildUnit, DeviceInfo
from kernelwright.backend.cuda.driver import load_nvrtc
from kernelwright.backend.registry import get_backend
from kernelwright.errors import SpecError
from kernelwright.modules.graph import Graph, read_graph
from kernelwright.modules.index import flattened, unflattened, variable
from kernelwright.modules.lowering import lower
from kernelwright.modules.problem_files import files_of
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.load.problem import load_problem
from kernelwright.template.header import parse_header
from kernelwright.template.load import load_template


def node(name: str, op: str, shape: list[int], dtype: str = "float32", **arguments: Any) -> dict[str, Any]:
    results = [{"shape": shape, "dtype": dtype}]
    return {"name": name, "op": op, "arguments": arguments, "results": results}


def graph(*nodes: dict[str, Any], shape: tuple[int, ...] = (6, 10), dtype: str = "float32") -> Graph:
    """Of one input `x`; the last node is what is returned."""
    values = {"low": -2.0, "high": 2.0, "deviation": 1.0}
    given = {"name": "x", "kind": "input", "target": "0", "shape": list(shape), "dtype": dtype, "values": values}
    return read_graph(
        {
            "inputs": [given],
            "nodes": list(nodes),
            "outputs": [{"ref": nodes[-1]["name"], "mutates": None}],
            "call": [{"ref": "x"}],
        }
    )


X = {"ref": "x"}
SCALE = node("scaled", "aten.mul.Tensor", [6, 10], self=X, other=0.5)
SOFTMAX = node("rows", "aten._softmax.default", [6, 10], self={"ref": "scaled"}, dim=-1, half_to_float=False)
SUM = node("total", "aten.sum.dim_IntList", [10], self={"ref": "scaled"}, dim=[0], keepdim=False)


def test_every_operator_that_is_not_lowered_is_named() -> None:
    first = node("sorted", "aten.sort.default", [6, 10], self=X)
    second = node("special", "aten.igamma.default", [6, 10], self={"ref": "sorted"})
    with pytest.raises(SpecError) as refused:
        lower(graph(first, SCALE, second))
    assert "sorted: aten.sort.default is not lowered yet" in refused.value.message
    assert "special: aten.igamma.default is not lowered yet" in refused.value.message
    assert "scaled" not in refused.value.message


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [((6, 10), "complex64", "complex64 is none of"), ((1 << 16, 1 << 15), "float32", "2147483648 elements")],
)
def test_a_tensor_that_no_kernel_can_take_is_refused(shape: tuple[int, ...], dtype: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        lower(graph(node("y", "aten.exp.default", list(shape), dtype, self=X), shape=shape, dtype=dtype))


def test_a_document_that_is_no_graph_is_refused() -> None:
    with pytest.raises(SpecError, match="no graph of a module"):
        read_graph({"inputs": [{"name": "x"}]})


def test_a_softmax_and_the_maps_before_it_are_one_kernel_without_scratch() -> None:
    program = lower(graph(SCALE, SOFTMAX))
    header = parse_header(program.text("opencl"), Path("program.cl"))
    assert program.entries == ("kernel_1",)
    assert header.scratch == ()
    assert program.kernels[0].nodes == ["rows"]
    assert header.steps[0].arguments == ("x", "out0")


def test_a_maximum_keeps_nan_and_a_softmax_needs_no_mark_of_it() -> None:
    """fmax passes over NaN, PyTorch's maximum does not."""
    most = node("most", "aten.amax.default", [6], self=X, dim=[1], keepdim=False)
    assert "? NAN : most_t1" in lower(graph(most)).text("opencl")
    assert "NAN" not in lower(graph(SCALE, SOFTMAX)).text("opencl")


def test_a_scan_stores_each_step_in_its_loop_and_is_the_output_itself() -> None:
    text = lower(graph(SCALE, node("steps", "aten.cumsum.default", [6, 10], self={"ref": "scaled"}, dim=1))).text(
        "opencl"
    )
    assert text.count("__kernel void") == 1
    assert "    out0[i0 * 10 + k0] = own_out0;" in text


def test_a_part_of_what_is_joined_is_read_only_where_it_has_something() -> None:
    joined = node("both", "aten.cat.default", [6, 20], tensors=[X, X], dim=1)
    text = lower(graph(joined)).text("opencl")
    assert "= i0 % 20 < 10 ? x[(i0 / 20) * 10 + i0 % 20] : x[(i0 / 20) * 10 + i0 % 20 - 10];" in text


def test_a_place_that_a_tensor_names_is_read_within_the_tensor() -> None:
    places = node("places", "aten._to_copy.default", [6, 10], "int64", self=X)
    taken = node("taken", "aten.gather.default", [6, 10], self=X, dim=1, index={"ref": "places"})
    text = lower(graph(places, taken)).text("opencl")
    assert re.search(r"x\[\(\(i0 / 10\) \* 10\) \+ min\(max\(.* < 0 \? .* \+ 10 : .*, 0\), 9\)\];", text), text


def test_a_question_about_a_number_is_asked_of_its_own_type() -> None:
    """As a bool, NaN equals itself."""
    text = lower(graph(node("lost", "aten.isnan.default", [6, 10], "bool", self=X))).text("opencl")
    assert "(uchar)" not in text
    assert "x[i0] != 0" not in text


def test_places_of_a_maximum_are_computed_only_where_they_are_used() -> None:
    both = node("both", "aten.max.dim", [6], self=X, dim=1, keepdim=False)
    both["results"].append({"shape": [6], "dtype": "int64"})
    values = {"name": "values", "op": "getitem", "arguments": {"of": {"ref": "both"}, "index": 0}}
    first = {**values, "results": both["results"][:1]}
    assert lower(graph(both, first)).text("opencl").count("for (") == 1
    second = {
        **values,
        "name": "places",
        "arguments": {"of": {"ref": "both"}, "index": 1},
        "results": both["results"][1:],
    }
    assert lower(graph(both, first, second)).text("opencl").count("for (") == 2


def test_a_buffer_that_forward_changes_is_an_output_and_an_input_is_refused() -> None:
    def changed(kind: str) -> Graph:
        x = {"name": "x", "kind": kind, "target": "count", "shape": [6, 10], "dtype": "float32", "values": {}}
        outputs = [{"ref": "scaled", "mutates": "count"}, {"ref": "rows", "mutates": None}]
        return read_graph({"inputs": [x], "nodes": [SCALE, SOFTMAX], "outputs": outputs, "call": []})

    assert lower(changed("buffer")).outputs == ("out0", "out1")
    with pytest.raises(SpecError, match="count: forward changes this input"):
        lower(changed("input"))


def test_a_counter_that_forward_changes_is_not_always_what_it_was_first() -> None:
    values = {"low": 0.0, "high": 0.0, "deviation": 0.0}
    count = {"name": "p1", "kind": "buffer", "target": "count", "shape": [], "dtype": "int64", "values": values}
    place = {**count, "name": "p2", "target": "place"}
    more = node("more", "aten.add.Tensor", [], "int64", self={"ref": "p1"}, other={"ref": "p2"}, alpha=1)
    outputs = [{"ref": "more", "mutates": "count"}]
    counted = read_graph({"inputs": [count, place], "nodes": [more], "outputs": outputs, "call": []})
    text = files_of("counted", b"", counted, lower(counted))["problem.toml"].decode()
    assert "range = [0, 1000] }  # buffer count" in text
    assert "range = [0, 0] }  # buffer place" in text


def test_what_later_kernels_read_is_scratch() -> None:
    """A column's sum is read by other columns' work-items when each row divides by all of them."""
    shared = node("shared", "aten.div.Tensor", [6, 10], self={"ref": "scaled"}, other={"ref": "total"})
    over_rows = node("sums", "aten.sum.dim_IntList", [6], self={"ref": "shared"}, dim=[1], keepdim=False)
    program = lower(graph(SCALE, SUM, shared, over_rows))
    header = parse_header(program.text("opencl"), Path("program.cl"))
    assert [step.entry for step in header.steps] == ["kernel_1", "kernel_2"]
    assert [each.name for each in header.scratch] == ["t1"]


@pytest.mark.parametrize("nodes", [(SCALE,), (SCALE, SOFTMAX), (SCALE, SUM)])
def test_the_files_of_a_program_are_a_problem_in_both_languages(nodes: tuple[Any, ...], tmp_path: Path) -> None:
    whole = graph(*nodes)
    files = files_of("my module", b"import torch\n", whole, lower(whole))
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert load_template(load_problem(tmp_path)).language == "opencl"
    text = files["problem.toml"].decode().replace('kernel = "program.cl"', 'kernel = "program.cu"')
    (tmp_path / "problem.toml").write_text(text)
    assert load_template(load_problem(tmp_path)).language == "cuda"


def test_the_text_for_cuda_compiles(tmp_path: Path) -> None:
    if load_nvrtc() is None:
        pytest.skip("needs NVRTC: pip install 'kernelwright[cuda]'")
    device = DeviceInfo("cuda", "cuda:0", "H100", "gpu", {"compute_capability": 90, "shared_memory_per_block": 232448})
    compare = node("positive", "aten.gt.Scalar", [6, 10], "bool", self={"ref": "rows"}, other=0.1)
    chosen = node("y", "aten.where.self", [6, 10], condition={"ref": "positive"}, self={"ref": "rows"}, other=X)
    source = lower(graph(SCALE, SOFTMAX, compare, chosen)).text("cuda")
    unit = BuildUnit("cuda", source, "program.cu", (), ("--compiler=nvrtc",), ("kernel_1",))
    assert get_backend("cuda").compile(unit, device, tmp_path).unit == unit


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_types_of_16_bits_are_computed_with_as_floats_and_compile(dtype: str, tmp_path: Path) -> None:
    scaled = node("scaled", "aten.mul.Tensor", [6, 10], dtype, self=X, other=0.5)
    rows = node("rows", "aten._softmax.default", [6, 10], dtype, self={"ref": "scaled"}, dim=-1, half_to_float=False)
    program = lower(graph(scaled, rows, dtype=dtype))
    assert "float own_t1" in program.text("opencl")
    if load_nvrtc() is None:
        pytest.skip("needs NVRTC: pip install 'kernelwright[cuda]'")
    device = DeviceInfo("cuda", "cuda:0", "H100", "gpu", {"compute_capability": 90, "shared_memory_per_block": 232448})
    unit = BuildUnit("cuda", program.text("cuda"), "program.cu", (), ("--compiler=nvrtc",), ("kernel_1",))
    assert get_backend("cuda").compile(unit, device, tmp_path).unit == unit


def test_indices_are_simplified_to_what_they_are() -> None:
    shape = (3, 4, 5)
    places = [variable(f"i{axis}", extent) for axis, extent in enumerate(shape)]
    flat = variable("flat", 60)
    assert flattened(unflattened(flat, shape), shape) == flat
    assert unflattened(flattened(places, shape), shape) == tuple(places)
    halves = unflattened(flattened(places, shape), (6, 10))
    for numbers in itertools.product(*(range(extent) for extent in shape)):
        known = dict(zip(("i0", "i1", "i2"), numbers, strict=True))
        place = numbers[0] * 20 + numbers[1] * 5 + numbers[2]
        assert [_value(each.text(), known) for each in halves] == [place // 10, place % 10]


def _value(text: str, known: dict[str, int]) -> int:
    return int(Expression.parse(text.replace("/", "//")).evaluate(known))
