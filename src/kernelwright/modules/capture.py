"""The worker that imports a module: the only place where a person's module is executed for its graph.

It takes `{"file": PATH, "library": BOOL}` and answers the document that `graph.read_graph` reads.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelwright.errors import Location, ReferenceFailed
from kernelwright.modules.library import LIBRARY, VIEWS
from kernelwright.modules.operators.table import OPERATORS
from kernelwright.problem.user_code import blamed_on_user

FACTORY = f"{__name__}:make_capture"
SEED = 42
"""KernelBench's seed for weights."""
MOST_LOOKED_AT = 1 << 20
"""Elements, evenly spread, of which an example's deviation is taken."""
MOST_STEPS = 256
"""Of a recurrent layer, which is written out step by step: thousands take longer than an import may. A guess."""
MOST_WRITTEN_OUT = 4
"""Times that what is not lowered is written as other operators. A guess."""
_ATEN_NAMES = {
    "inp": "self", "a": "self", "b": "other", "dims": "dim", "dimensions": "dim", "pred": "condition", "shape": "size",
}  # fmt: skip
"""What arguments of `prims` are called in `aten`."""
_RANDOM = ("dropout", "rand", "bernoulli", "multinomial", "normal_")


def make_capture(argument: object) -> Callable[[object], object]:
    """The handler: a module's file to its graph.

    Args:
        argument: True: PyTorch is loaded at once, before the first file; what is missing is told with that file.
    """
    if argument:
        with contextlib.suppress(Exception):
            _export_something()
    return _asked


def _asked(job: Any) -> dict[str, Any]:
    return _captured(Path(str(job["file"])), library=bool(job["library"]))


def _export_something() -> None:
    """The first export of a process loads most of PyTorch's compiler, which takes seconds."""
    import torch

    torch.export.export(torch.nn.ReLU(), (torch.zeros(1),)).run_decompositions()


def _captured(file: Path, *, library: bool) -> dict[str, Any]:
    with blamed_on_user(file, doing="importing the module"):
        import torch

        sys.dont_write_bytecode = True
        sys.path.insert(0, str(file.parent))
        spec = importlib.util.spec_from_file_location("kernelwright_module", file)
        if spec is None or spec.loader is None:
            raise ReferenceFailed(f"{file.name} is not a Python file", location=Location(file))
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = loaded
        torch.manual_seed(SEED)
        spec.loader.exec_module(loaded)
        for name in ("Model", "get_inputs", "get_init_inputs"):
            if not hasattr(loaded, name):
                raise ReferenceFailed(
                    f"{file.name} defines no {name!r}",
                    hint="a module's file has Model, get_inputs and get_init_inputs, as KernelBench's files have",
                    location=Location(file),
                )
        model = loaded.Model(*loaded.get_init_inputs())
        inputs = list(loaded.get_inputs())
        _refuse_inputs(inputs, file)
        _refuse_long_recurrences(torch, model, file)
        whole = torch.export.export(model, tuple(inputs))
        table = torch.export.default_decompositions()
        if library:
            table.pop(torch.ops.aten.scaled_dot_product_attention.default, None)
        exported = _written_out(torch, whole, table, LIBRARY if library else ())
        if not library:
            return _document(exported, inputs, file)
        _part_biases(torch, exported)
        document = _document(exported, inputs, file)
        figures = _figures_of_calls(torch, exported, inputs)
        for node in document["nodes"]:
            node["values"] = figures.get(node["name"], {})
        return document


def _written_out(torch: Any, whole: Any, table: Any, library: Collection[str]) -> Any:
    """The module by operators that are lowered, where PyTorch knows how to write the others by those."""
    known = torch._decomp.decomposition_table  # noqa: SLF001 - has no public name
    exported = whole.run_decompositions(table)
    for _ in range(MOST_WRITTEN_OUT):
        targets = {each.target for each in exported.graph.nodes if each.op == "call_function"}
        found = {each: known[each] for each in targets if each in known and not _is_known(str(each), library)}
        if not found:
            break
        table = {**table, **found}
        exported = exported.run_decompositions(table)
    return exported


def _is_known(name: str, library: Collection[str]) -> bool:
    """Whether an operator is lowered, is the library's, or is refused by its name."""
    word = name.split(".")[1] if "." in name else name
    return word in OPERATORS or word in library or any(each in name for each in _RANDOM)


def _part_biases(torch: Any, exported: Any) -> None:
    """A convolution's bias as an addition of its own, where a kernel reads the result and can add it in passing.

    The library adds it in a pass over the whole result.
    """
    graph = exported.graph_module.graph
    for node in [each for each in graph.nodes if each.target is torch.ops.aten.convolution.default]:
        bias = node.args[2]
        if bias is None or any(_is_call(each) or each.op == "output" for each in _readers(node)):
            continue
        shape = [*bias.meta["val"].shape, *[1] * (node.args[1].meta["val"].dim() - 2)]
        with graph.inserting_after(node):
            shaped = graph.call_function(torch.ops.aten.view.default, (bias, shape))
        with graph.inserting_after(shaped):
            total = graph.call_function(torch.ops.aten.add.Tensor, (node, shaped))
        shaped.meta["val"], total.meta["val"] = bias.meta["val"].view(shape), node.meta["val"]
        node.replace_all_uses_with(total, delete_user_cb=lambda user, total=total: user is not total)
        node.args = (*node.args[:2], None, *node.args[3:])
    exported.graph_module.recompile()


def _readers(node: Any) -> Iterator[Any]:
    """What reads a tensor, behind all views of it."""
    for each in node.users:
        if each.op == "call_function" and any(f"aten.{name}." in str(each.target) for name in VIEWS):
            yield from _readers(each)
        else:
            yield each


def _figures_of_calls(torch: Any, exported: Any, inputs: list[Any]) -> dict[str, dict[str, float]]:
    """What a library gives on the example, by the operator's name: the graph is run once, on a GPU where it can."""
    found: dict[str, dict[str, float]] = {}

    class _Watched(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, node: Any) -> Any:
            result = super().run_node(node)
            if node.op == "call_function" and _is_call(node):
                found[node.name] = _values(result)
            return result

    known = {**dict(exported.state_dict), **dict(exported.constants)}
    places = iter(inputs)
    given = [
        next(places) if each.kind.name == "USER_INPUT" else known[each.target]
        for each in exported.graph_signature.input_specs
    ]
    devices = ("cuda", "cpu") if torch.cuda.is_available() else ("cpu",)
    for device in devices:  # large convolutions take a CPU minutes; a graph may insist on it all the same
        try:
            with torch.no_grad():
                _Watched(exported.graph_module).run(*(_placed(each, device) for each in given))
        except RuntimeError:
            if device == devices[-1]:
                raise
            found.clear()
            continue
        break
    return found


def _placed(value: Any, device: str) -> Any:
    return value.to(device) if hasattr(value, "to") and value.dim() else value


def _is_call(node: Any) -> bool:
    return any(f"aten.{each}." in str(node.target) for each in LIBRARY)


def _refuse_inputs(inputs: list[Any], file: Path) -> None:
    for place, each in enumerate(inputs):
        if isinstance(each, list | tuple | dict):
            raise ReferenceFailed(
                f"get_inputs gives a {type(each).__name__} at place {place}, expected a tensor or a plain value",
                hint="give the tensors side by side",
                location=Location(file),
            )


def _refuse_long_recurrences(torch: Any, model: Any, file: Path) -> None:
    """Have the model's recurrent layers refuse long sequences when they are called: no later stage ends in time."""

    def refuse(layer: Any, given: tuple[Any, ...]) -> None:
        if not given or not torch.is_tensor(given[0]):
            return
        length = given[0].shape[1 if layer.batch_first and given[0].dim() > 2 else 0]
        steps = length * layer.num_layers * (2 if layer.bidirectional else 1)
        if steps > MOST_STEPS:
            raise ReferenceFailed(
                f"{type(layer).__name__} is written out step by step: {steps} steps, expected at most {MOST_STEPS}",
                hint="give get_inputs a shorter sequence, or leave this layer to PyTorch",
                location=Location(file),
            )

    for each in model.modules():
        if isinstance(each, torch.nn.RNNBase):
            each.register_forward_pre_hook(refuse)


def _document(exported: Any, inputs: list[Any], file: Path) -> dict[str, Any]:
    known = {**dict(exported.state_dict), **dict(exported.constants)}
    kinds = {"USER_INPUT": "input", "PARAMETER": "parameter", "BUFFER": "buffer"}
    found: list[dict[str, Any]] = []
    call: list[Any] = []
    constants: list[dict[str, Any]] = []
    for each in exported.graph_signature.input_specs:
        kind = kinds.get(each.kind.name)
        if kind == "input" and hasattr(each.arg, "value"):
            call.append(each.arg.value)
            continue
        if kind is None and each.target in known and known[each.target].numel() == 1:
            constants.append(_constant(each.arg.name, known[each.target]))
            continue
        if kind is None:
            raise ReferenceFailed(
                f"{each.target or each.arg} is {each.kind.name.lower()} of the module, not a parameter or a buffer",
                hint="register it with register_buffer",
                location=Location(file),
            )
        tensor = inputs[len(call)] if kind == "input" else known[each.target]
        name = f"x{len(call)}" if kind == "input" else f"p{len(found)}"
        if kind == "input":
            call.append({"ref": name})
        found.append({"name": name, "kind": kind, "target": each.target or str(len(call) - 1), "own": each.arg.name,
                      **_tensor(tensor), "values": _values(tensor)})  # fmt: skip
    names = {each.pop("own"): each["name"] for each in found}
    nodes = constants + [
        _node(node, names) for node in exported.graph.nodes if node.op == "call_function" and not _is_check(node)
    ]
    _refuse_random(nodes, file)
    _refuse_strides(exported.graph.nodes, file)
    _refuse_outputs(exported.graph_signature.output_specs, file)
    nodes, same = once_each(nodes)
    outputs = [
        {"ref": names.get(each.arg.name, same.get(each.arg.name, each.arg.name)), "mutates": each.target}
        for each in exported.graph_signature.output_specs
    ]
    returns = _returns(exported.call_spec.out_spec, file)
    return {"inputs": found, "nodes": nodes, "outputs": outputs, "call": call, "returns": returns}


def once_each(nodes: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The nodes without those that repeat an earlier one, and by the name of each of these that one's.

    Steps of a recurrence turn the same weights again and again.
    """
    known: dict[str, str] = {}
    same: dict[str, str] = {}
    kept = []
    for node in nodes:
        own = {**node, "arguments": _renamed(node["arguments"], same)}
        first = known.setdefault(repr((own["op"], own["arguments"], own["results"])), own["name"])
        if first == own["name"]:
            kept.append(own)
        else:
            same[own["name"]] = first
    return kept, same


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            key: names.get(each, each) if key == "ref" and isinstance(each, str) else _renamed(each, names)
            for key, each in value.items()
        }
    return [_renamed(each, names) for each in value] if isinstance(value, list) else value


def _refuse_outputs(specs: Any, file: Path) -> None:
    for each in specs:
        if hasattr(each.arg, "value"):
            raise ReferenceFailed(
                f"forward returns {each.arg.value!r} beside tensors",
                hint="return the tensors alone",
                location=Location(file),
            )


def _refuse_strides(nodes: Any, file: Path) -> None:
    """Strides count in memory: what they mean is known where that is a whole tensor in row-major order."""
    for node in nodes:
        if "aten.as_strided." not in str(node.target):
            continue
        source = node.args[0].meta["val"]
        if not source.is_contiguous() or source.storage_offset() or source.untyped_storage().nbytes() != source.nbytes:
            raise ReferenceFailed(
                f"{node.name} takes strides of a part of a tensor, or of one that is not in row-major order",
                hint="call contiguous() before as_strided()",
                location=Location(file),
            )


def _constant(name: str, tensor: Any) -> dict[str, Any]:
    """A number that the module makes a tensor of, as the operator that fills with it."""
    shape = _tensor(tensor)
    arguments = {"size": shape["shape"], "fill_value": _plain(tensor.item(), {}), "dtype": {"dtype": shape["dtype"]}}
    return {"name": name, "op": "aten.full.default", "arguments": arguments, "results": [_tensor(tensor)]}


def _returns(structure: Any, file: Path) -> str:
    kind = "tensor" if structure.is_leaf() else structure.type.__name__
    if kind not in ("tensor", "tuple", "list") or any(not each.is_leaf() for each in _children(structure)):
        raise ReferenceFailed(
            f"forward returns {structure}, expected a tensor, or a tuple or a list of tensors",
            hint="return the tensors side by side",
            location=Location(file),
        )
    return kind


def _children(structure: Any) -> list[Any]:
    """Newer PyTorch has a method for it, and warns of the field."""
    return list(structure.children() if hasattr(structure, "children") else structure.children_specs)


def _refuse_random(nodes: list[dict[str, Any]], file: Path) -> None:
    for node in nodes:
        if any(word in node["op"] for word in _RANDOM) or node["arguments"].get("dropout_p"):
            is_dropout = "dropout" in node["op"] or node["arguments"].get("dropout_p")
            raise ReferenceFailed(
                f"{node['name']} ({node['op']}) draws random numbers, so no result of the module is right",
                hint="set the dropout's p to 0, or call eval() on it in the constructor"
                if is_dropout
                else "have forward take these numbers as an argument",
                location=Location(file),
            )


def _tensor(tensor: Any) -> dict[str, Any]:
    return {"shape": [int(extent) for extent in tensor.shape], "dtype": str(tensor.dtype).removeprefix("torch.")}


def _values(tensor: Any) -> dict[str, float]:
    """The example's figures, by which inputs of tests are drawn."""
    if not tensor.numel() or tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() == 1):
        return {}  # lowering refuses such types, and PyTorch knows no minimum of them
    numbers = tensor.detach().flatten()
    some = numbers[:: -(-len(numbers) // MOST_LOOKED_AT)].double()
    low, high, deviation = numbers.min().item(), numbers.max().item(), some.std(correction=0).item()
    return {
        name: each for name, each in (("low", low), ("high", high), ("deviation", deviation)) if math.isfinite(each)
    }


def _is_check(node: Any) -> bool:
    """Whether it gives nothing: PyTorch's own check of a tensor's shape or type, which the fixed shapes fulfil."""
    return node.meta.get("val") is None and not node.users


def _node(node: Any, names: Mapping[str, str]) -> dict[str, Any]:
    results = node.meta["val"]
    results = results if isinstance(results, tuple | list) else [results]
    if not hasattr(node.target, "_schema"):
        arguments = {"of": _plain(node.args[0], names), "index": node.args[1]}
        return {"name": node.name, "op": "getitem", "arguments": arguments, "results": [_tensor(results[0])]}
    schema = node.target._schema.arguments  # noqa: SLF001 - what the operator's arguments are called
    given = {each.name: each.default_value for each in schema if each.has_default_value()}
    given |= {each.name: value for each, value in zip(schema, node.args, strict=False)}
    given |= node.kwargs
    given = by_aten_names(str(node.target), given)
    arguments = {name: _plain(value, names) for name, value in given.items()}
    tensors = [_tensor(each) for each in results if each is not None]
    return {"name": node.name, "op": str(node.target), "arguments": arguments, "results": tensors}


def by_aten_names(op: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """An operator's arguments, those of `prims` with the names that `aten` gives them: decompositions end in both."""
    return {_ATEN_NAMES.get(name, name) if op.startswith("prims.") else name: value for name, value in given.items()}


def _plain(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each, names) for each in value]
    if hasattr(value, "op") and hasattr(value, "name"):
        return {"ref": names.get(value.name, value.name)}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    return {"dtype": str(value).removeprefix("torch.")}
