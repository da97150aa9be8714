"""A graph becomes a program of few kernels; what cannot is refused by name, all of it at once."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import pytest

from kernelwright.backend.base import BuildUnit, DeviceInfo
from kernelwright.backend.cuda.driver import load_nvrtc
from kernelwright.backend.registry import get_backend
from kernelwright.errors import SpecError
from kernelwright.modules.capture import by_aten_names, once_each
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
    with pytest.raises(SpecError, match=reason) as refused:
        lower(graph(node("y", "aten.exp.default", list(shape), dtype, self=X), shape=shape, dtype=dtype))
    assert (refused.value.hint == "give get_inputs other sizes") == ("elements" in reason)


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


@pytest.mark.parametrize(
    ("shape", "counts"),
    [
        ((2, 1 << 15), [1024, 2]),
        ((1, 1 << 20), [16384, 256, 1]),
        ((1, 1 << 23), [131072, 2048, 32, 1]),
        ((300, 1 << 15), [300]),
        ((2, 1000), [2]),
        ((2, 16411), [2]),
    ],
)
def test_few_long_rows_are_reduced_in_parts_that_lie_side_by_side(shape: tuple[int, int], counts: list[int]) -> None:
    total = node("total", "aten.sum.dim_IntList", [shape[0]], self=X, dim=[1], keepdim=False)
    program = lower(graph(total, shape=shape))
    assert [each.count for each in program.kernels] == counts
    if len(counts) > 1:
        assert f"k0 * {counts[0] // shape[0]} + i1];" in program.text("opencl")


@pytest.mark.parametrize(
    ("shape", "counts"),
    [((1024, 8192), [1 << 17, 8192]), ((640, 300), [3000, 300]), ((128, 8192), [8192]), ((1024, 1 << 16), [1 << 16])],
)
def test_columns_that_do_not_fill_a_gpu_are_reduced_in_parts(shape: tuple[int, int], counts: list[int]) -> None:
    total = node("total", "aten.sum.dim_IntList", [shape[1]], self=X, dim=[0], keepdim=False)
    program = lower(graph(total, shape=shape))
    assert [each.count for each in program.kernels] == counts
    if len(counts) > 1:
        assert f"+= x[k0 * {counts[0]} + i0 * {shape[1]} + i1];" in program.text("cuda"), "neighbours read neighbours"


def test_a_gpu_starts_large_launches_in_wide_blocks() -> None:
    for rows, block in ((6, 64), (1 << 17, 256)):
        program = lower(graph(node("y", "aten.exp.default", [rows, 2], self=X), shape=(rows, 2)))
        assert f'block     = ["{block}"]' in program.text("cuda")
        assert 'block     = ["64"]' in program.text("opencl")


def test_reductions_of_a_row_that_need_no_result_of_each_other_share_their_loop() -> None:
    """The variance of long rows is made of two sums, that of short ones of the mean first."""
    for length, loops in ((1 << 17, 1), (1 << 10, 2)):
        program = lower(
            graph(node("spread", "aten.var.correction", [300], self=X, dim=[1], keepdim=False), shape=(300, length))
        )
        assert program.entries == ("kernel_1",)
        assert program.text("opencl").count("for (") == loops


def test_what_holds_for_a_row_is_computed_once_for_it() -> None:
    norm = node("norm", "aten.native_layer_norm.default", [6, 10], input=X, normalized_shape=[10], eps=1e-5)
    first = node("first", "getitem", [6, 10], of={"ref": "norm"}, index=0)
    text = lower(graph(norm, first)).text("opencl")
    last = text.rpartition("for (")[2]
    assert "sqrt" in text
    assert "sqrt" not in last
    assert " / " not in last


def test_an_operand_that_a_form_names_twice_is_computed_once() -> None:
    bent = node("bent", "aten.relu.default", [6, 10], self={"ref": "scaled"})
    assert lower(graph(SCALE, bent)).text("opencl").count("x[i0]") == 1


def test_what_stands_under_a_condition_is_not_computed_outside_of_it() -> None:
    """A silu reads its operand twice, and beyond the edge there is none."""
    bent = node("bent", "aten.mul.Tensor", [6, 10], self=X, other={"ref": "curve"})
    curve = node("curve", "aten.sigmoid.default", [6, 10], self=X)
    wide = node("wide", "aten.constant_pad_nd.default", [6, 13], self={"ref": "bent"}, pad=[2, 1], value=0.0)
    program = lower(graph(curve, bent, wide))
    assert program.entries == ("kernel_1",)
    (line,) = (each for each in program.text("opencl").splitlines() if "x[" in each)
    assert re.fullmatch(r"  out0\[i0\] = i0 % 13 - 2 >= 0 && i0 % 13 - 2 < 10 \? .*x\[.* : 0.0f;", line), line


@pytest.mark.parametrize("op", ["aten.constant_pad_nd.default", "aten.cat.default"])
def test_a_long_chain_of_squares_under_a_condition_is_not_written_out(op: str) -> None:
    squares = [node("s0", "aten.mul.Tensor", [6, 10], self=X, other=X)]
    for number in range(1, 24):
        before = {"ref": f"s{number - 1}"}
        squares.append(node(f"s{number}", "aten.mul.Tensor", [6, 10], self=before, other=before))
    last = {"ref": "s23"}
    given = {"self": last, "pad": [2, 1], "value": 0.0} if "pad" in op else {"tensors": [last, X], "dim": 1}
    wide = node("wide", op, [6, 13] if "pad" in op else [6, 20], **given)
    assert len(lower(graph(*squares, wide)).text("opencl")) < 6000


def test_a_long_row_whose_parts_have_no_fitting_divisor_is_lowered() -> None:
    """1031 parts of 64 elements: a prime, so the second level of the sum stays whole."""
    total = node("total", "aten.sum.dim_IntList", [1], self=X, dim=[1], keepdim=False)
    assert lower(graph(total, shape=(1, 65984))).entries


def test_windows_that_share_nothing_are_reduced_without_a_copy() -> None:
    def pooled(step: int) -> int:
        bent = node("bent", "aten.tanh.default", [1, 1, 8, 8], self=X)
        size = (8 - 2) // step + 1
        most = node("most", "aten.max_pool2d_with_indices.default", [1, 1, size, size], self={"ref": "bent"},
                    kernel_size=[2, 2], stride=[step, step])  # fmt: skip
        first = node("first", "getitem", [1, 1, size, size], of={"ref": "most"}, index=0)
        return len(lower(graph(bent, most, first, shape=(1, 1, 8, 8))).kernels)

    assert (pooled(2), pooled(1)) == (1, 2)


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
    assert "own_t2" not in lower(graph(both, first)).text("opencl")
    second = {
        **values,
        "name": "places",
        "arguments": {"of": {"ref": "both"}, "index": 1},
        "results": both["results"][1:],
    }
    text = lower(graph(both, first, second)).text("opencl")
    assert "out0[i0] = own_t2;" in text
    assert text.count("for (") == 1  # both need the row, and neither needs the other


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
    floor = node("floor", "aten.div.Tensor_mode", [6, 10], self={"ref": "y"}, other=0.1, rounding_mode="floor")
    source = lower(graph(SCALE, SOFTMAX, compare, chosen, floor)).text("cuda")
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
    for first in range(3):
        inner = 60 // math.prod(shape[:first])
        assert flattened(unflattened(flat, shape)[first:], shape[first:]) == (flat % inner if first else flat)
    halves = unflattened(flattened(places, shape), (6, 10))
    for numbers in itertools.product(*(range(extent) for extent in shape)):
        known = dict(zip(("i0", "i1", "i2"), numbers, strict=True))
        place = numbers[0] * 20 + numbers[1] * 5 + numbers[2]
        assert [_value(each.text(), known) for each in halves] == [place // 10, place % 10]


def _value(text: str, known: dict[str, int]) -> int:
    return int(Expression.parse(text.replace("/", "//")).evaluate(known))


def test_floors_of_quotients_of_floats_are_those_of_exact_quotients() -> None:
    """A rounded quotient may be the next whole number, as 0.6 / 0.1 is in single precision."""
    floor = node("y", "aten.div.Tensor_mode", [6, 10], self=X, other=0.1, rounding_mode="floor")
    text = lower(graph(floor)).text("opencl")
    assert "fmod(x[i0], 0.1f)" in text or "fmod(v0_0, 0.1f)" in text
    assert "floor(x[i0] / 0.1f)" not in text


def recurrence(steps: int) -> Graph:
    """A state and what a step shows of it, as in an LSTM: both are made of long formulas, and the state stays."""
    nodes, shown, state = [node("w", "aten.mul.Tensor", [10, 10], self=X, other=0.1)], X, X

    def add(name: str, op: str, columns: int = 5, **arguments: Any) -> dict[str, str]:
        nodes.append(node(name, f"aten.{op}", [10, columns], **arguments))
        return {"ref": name}

    state = shown = add("first", "slice.Tensor", self=X, dim=1, start=0, end=5)
    turned = add("rows", "slice.Tensor", 10, self={"ref": "w"}, dim=0, start=0, end=5)
    for each in range(steps):
        product = add(f"product{each}", "mm.default", 10, self=shown, mat2=turned)
        part = add(f"part{each}", "slice.Tensor", self=product, dim=1, start=0, end=5)
        gate = add(f"gate{each}", "slice.Tensor", self=product, dim=1, start=5, end=10)
        for depth in range(16):
            gate = add(f"gate{each}_{depth}", "tanh.default", self=add(f"u{each}_{depth}", "sin.default", self=gate))
        state = add(
            f"state{each}", "add.Tensor", self=add(f"o{each}", "mul.Tensor", self=gate, other=state), other=part
        )
        shown = add(f"shown{each}", "tanh.default", self=state)
    return graph(*nodes, shape=(10, 10))


def test_the_state_of_a_recurrence_is_stored_beside_what_a_step_shows_and_read_by_the_next_one() -> None:
    """Else each step would compute all steps before it again."""
    program = lower(recurrence(6))
    assert len(program.kernels) == 1 + 2 * 6, "a product and a map for each step, and the weights"
    header = parse_header(program.text("opencl"), Path("program.cl"))
    maps = program.text("opencl").split("__kernel void ")[5::2]
    assert len(maps) == 5, "from the second step on"
    assert max(map(len, maps)) < 1.1 * len(maps[0])
    assert all(each.count("sin(") == 16 for each in maps), "what is shown takes the state at hand"
    assert max(len(each.arguments or ()) for each in header.steps) <= 4


@pytest.mark.parametrize(("lines", "count"), [(4, 1), (64, 2)])
def test_a_turned_factor_is_put_in_order_where_many_lines_read_it(lines: int, count: int) -> None:
    turned = node("t", "aten.permute.default", [10, 6], self=X, dims=[1, 0])
    first = node("a", "aten.full.default", [lines, 10], size=[lines, 10], fill_value=2.0)
    product = node("y", "aten.mm.default", [lines, 6], self={"ref": "a"}, mat2={"ref": "t"})
    program = lower(graph(turned, first, product))
    assert len(program.kernels) == count, "the constant factor is nowhere"


def test_a_slice_is_a_factor_as_it_lies() -> None:
    part = node("s", "aten.slice.Tensor", [6, 5], self=X, dim=1, start=2, end=7)
    weights = node("w", "aten.slice.Tensor", [5, 10], self=X, dim=0, start=0, end=5)
    product = node("y", "aten.mm.default", [6, 10], self={"ref": "s"}, mat2={"ref": "w"})
    assert len(lower(graph(part, weights, product)).kernels) == 1


def test_an_operator_that_is_repeated_is_lowered_once() -> None:
    first, again = ({**SCALE, "name": name} for name in ("one", "two"))
    after = node("sum", "aten.add.Tensor", [6, 10], self={"ref": "one"}, other={"ref": "two"})
    nodes, same = once_each([first, again, after])
    assert [each["name"] for each in nodes] == ["one", "sum"]
    assert same == {"two": "one"}
    assert nodes[1]["arguments"] == {"self": {"ref": "one"}, "other": {"ref": "one"}}


def test_what_decompositions_leave_in_prims_is_lowered_by_its_names_in_aten() -> None:
    given = by_aten_names("prims.var.default", {"inp": X, "dims": [1], "correction": 0.0})
    assert given == {"self": X, "dim": [1], "correction": 0.0}
    assert by_aten_names("aten.where.self", {"a": X}) == {"a": X}
    wide = by_aten_names("prims.broadcast_in_dim.default", {"a": {"ref": "v"}, "shape": [6, 10]})
    nodes = (
        node("v", "prims.var.default", [6], **given),
        node("y", "prims.broadcast_in_dim.default", [6, 10], **wide, broadcast_dimensions=[0]),
    )
    (kernel,) = lower(graph(*nodes)).kernels
    assert kernel.count == 6


def test_how_far_an_index_goes_for_a_step_of_a_variable() -> None:
    row, col = variable("row", 8), variable("col", 6)
    flat = row * 6 + col
    assert (flat.step_of("row"), flat.step_of("col"), flat.step_of("other")) == (6, 1, 0)
    assert (flat // 4).step_of("row") is None
    assert ((row // 2) * 12 + col).step_of("col") == 1
