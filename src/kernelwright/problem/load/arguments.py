"""The arguments and tolerances of a problem file."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from kernelwright.errors import SpecError
from kernelwright.problem.checks import (
    check_expression,
    check_name,
    evaluate_extent,
    evaluate_on,
    file_beside,
)
from kernelwright.problem.dtypes import (
    DTYPES,
    Dtype,
    encode_scalar,
    find_dtype,
    integer_range,
    largest_finite,
    may_become,
)
from kernelwright.problem.model import Argument, Distribution, Fresh, Role, Tolerance, Workload
from kernelwright.problem.toml.file import TomlTable, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

DistributionKind = Literal["normal", "uniform", "integers", "constant", "file"]

_FILL_KEYS = ("distribution", "range", "scale", "file", "special", "fresh")
_KEYS = ("role", "dtype", "shape", "value", "distribution", "range", "scale", "file", "special", "fresh", "after")
MOST_EXTENTS = 32
"""An array has at most so many. NumPy ends at 64, and a reference may need axes of its own."""
MOST_BYTES = 2**46
"""The largest argument: 64 TiB, hundreds of times what devices have."""
_RANGE_FORM = "two numbers: [low, high]"


def read_arguments(root: TomlTable, workloads: Sequence[Workload], *, folder: Path) -> tuple[Argument, ...]:
    """The `[arguments]` in the kernel's order, each checked on every workload.

    Raises:
        SpecError: a key, role, dtype, shape, value or file is wrong, or there is no output.
    """
    table = root.table("arguments")
    if table is None:
        raise root.missing("arguments", expected="[arguments] with one line for each kernel parameter, in order")
    if not table.data:
        raise SpecError(
            "[arguments] is empty, expected one line for each kernel parameter, in order",
            hint='for example x = { role = "input", dtype = "float32", shape = ["n"] }',
            location=table.location,
        )
    arguments = tuple(read_argument(table, name, get_args(Role), folder=folder) for name in table)
    for argument in arguments:
        _check_on_workloads(argument, workloads)
        if argument.role != "scalar" and argument.name in workloads[0].sizes:
            raise SpecError(
                f"array argument {argument.name!r} has the name of a size",
                hint="rename one of them: the reference asks for both by name",
                location=argument.location,
            )
    _check_after(arguments, table)
    if not any(argument.role in ("output", "inout") for argument in arguments):
        raise SpecError(
            "no argument is an output, so there is nothing to check",
            hint='give the arguments that the kernel writes role = "output" (or "inout")',
            location=table.location,
        )
    return arguments


def read_argument(
    table: TomlTable, name: str, roles: Collection[Role], *, folder: Path, default_role: Role | None = None
) -> Argument:
    """One argument of `[arguments]`, or of a template's `[scratch]`; names in it are not checked yet.

    Raises:
        SpecError: a key, role, dtype, shape, value or file is wrong.
    """
    location = table.key_location(name)
    check_name(name, what="argument", location=location)
    entry = table.table(name)
    assert entry is not None
    entry.refuse_unknown(_KEYS, what=f"argument {name!r}", hints={"type": "did you mean 'dtype'?"})
    role = _read_role(entry, roles, default_role)
    dtype_name = entry.text("dtype")
    if dtype_name is None:
        raise entry.missing("dtype", expected='dtype = "float32", or another of ' + ", ".join(DTYPES))
    dtype = find_dtype(dtype_name, location=entry.value_location("dtype"))
    shape = entry.expressions("shape")
    if role == "scalar" and shape is not None:
        raise entry.error("shape", message=f"scalar {name!r} has a shape", hint="remove it, or change the role")
    if role != "scalar" and shape is not None and not shape:
        raise entry.error(
            "shape",
            message=f"the shape of {name!r} is empty, expected its extents in sizes",
            hint='for one element write shape = ["1"]; what is passed by value has role = "scalar" and no shape',
        )
    if shape is not None and len(shape) > MOST_EXTENTS:
        message = f"the shape of {name!r} has {len(shape)} extents, more than {MOST_EXTENTS}"
        raise entry.error("shape", MOST_EXTENTS, message=message, hint="join extents: only their product counts here")
    if role != "scalar" and shape is None:
        raise entry.missing("shape", expected='shape = ["n"], its extents in sizes, outermost first')
    distribution = _read_distribution(entry, role, dtype.name, folder=folder)
    value = entry.expression("value") if role == "scalar" else None
    if role == "scalar" and value is None:
        raise entry.missing("value", expected=f'value = "{name}", the scalar in sizes')
    special = _read_special(entry, dtype, distribution)
    fresh = _read_fresh(entry, role, distribution)
    after = tuple(entry.texts("after") or ())
    return Argument(name, role, dtype.name, shape or (), value, distribution, location, special, fresh, after)


def _check_after(arguments: Sequence[Argument], table: TomlTable) -> None:
    """What is made of outputs is an input, and they are outputs."""
    outputs = [each.name for each in arguments if each.role == "output"]
    for each in arguments:
        wrong = [name for name in each.after if name not in outputs]
        if wrong or (each.after and each.role != "input"):
            what = f"{wrong[0]!r} is no output" if wrong else f"{each.name!r} is {each.role}"
            raise SpecError(
                f"{each.name!r} comes after {', '.join(each.after)}, but {what}",
                hint="'after' names the outputs that something outside the kernels makes an input of",
                location=each.location,
            )


def _read_fresh(entry: TomlTable, role: Role, distribution: Distribution) -> Fresh:
    """What happens to the argument between timed launches; by default as much as its distribution allows."""
    given = entry.text("fresh")
    if given is None:
        return "redraw" if role in ("input", "inout") and distribution.kind not in ("constant", "file") else "keep"
    allowed: tuple[Fresh, ...] = get_args(Fresh)
    if distribution.kind in ("constant", "file"):
        allowed = ("keep",) if distribution.kind == "constant" else ("permute", "keep")
    for each in allowed:
        if each == given:
            return each
    raise entry.error(
        "fresh",
        message=f"fresh = {given!r} for an argument with distribution {distribution.kind!r}; expected one of "
        + ", ".join(allowed),
        hint=did_you_mean(given, allowed),
    )


def _read_special(entry: TomlTable, dtype: Dtype, distribution: Distribution) -> bool:
    """Whether the argument is fed special values too."""
    is_special = entry.flag("special") or False
    if is_special and (distribution.kind in ("constant", "file") or dtype.kind == "bool"):
        what = "bool" if dtype.kind == "bool" else f"filled from a {distribution.kind}"
        raise SpecError(
            f"'special' is for arguments that are drawn, and {entry.name} is {what}",
            hint="remove it",
            location=entry.key_location("special"),
        )
    return is_special


def _read_role(entry: TomlTable, roles: Collection[Role], default: Role | None) -> Role:
    role = entry.text("role") or default
    if role is None:
        raise entry.missing("role", expected="role = one of " + ", ".join(repr(each) for each in roles))
    for each in roles:
        if each == role:
            return each
    raise entry.error(
        "role",
        message=f"unknown role {role!r}; expected one of {', '.join(roles)}",
        hint=did_you_mean(role, roles),
    )


def _read_distribution(entry: TomlTable, role: Role, dtype: str, *, folder: Path) -> Distribution:
    """How an input is filled. Without a `distribution`, the other keys say it: a `file`, a `range`."""
    kind = _read_kind(entry, dtype)
    if role not in ("input", "inout"):
        for key in ("value", *_FILL_KEYS) if role != "scalar" else _FILL_KEYS:
            if key in entry and (key, role) != ("special", "output"):
                raise SpecError(
                    f"{key!r} is for arguments that are filled, and {entry.name} is {role}",
                    hint='remove it, or give the argument role = "input" or "inout"',
                    location=entry.key_location(key),
                )
        return Distribution()
    needed: Mapping[str, DistributionKind] = {"file": "file", "value": "constant", "scale": "normal"}
    for key, its_kind in needed.items():
        if key in entry and kind != its_kind:
            raise SpecError(
                f"{key!r} belongs to distribution = {its_kind!r}, and {entry.name} has {kind!r}",
                hint="remove one of them",
                location=entry.key_location(key),
            )
    if "range" in entry and kind not in ("uniform", "integers"):
        raise SpecError(
            f"'range' belongs to the distributions uniform and integers, and {entry.name} has {kind!r}",
            hint="remove one of them",
            location=entry.key_location("range"),
        )
    match kind:
        case "file":
            return Distribution("file", file=_read_data_file(entry, dtype, folder=folder))
        case "constant":
            return _read_constant(entry, dtype)
        case "normal":
            return Distribution("normal", high=_read_scale(entry))
        case _:
            bounds = _read_range(entry, dtype)
            return Distribution(kind, *(bounds or (None, None)))


def _read_kind(entry: TomlTable, dtype: str) -> DistributionKind:
    written = entry.text("distribution")
    kinds: tuple[DistributionKind, ...] = get_args(DistributionKind)
    if written is not None:
        for kind in kinds:
            if kind == written:
                break
        else:
            raise entry.error(
                "distribution",
                message=f"unknown distribution {written!r}; expected one of {', '.join(kinds)}",
                hint=did_you_mean(written, kinds),
            )
        if kind in ("normal", "uniform") and DTYPES[dtype].kind != "float":
            raise entry.error(
                "distribution",
                message=f"distribution {kind!r} is for floats, and {entry.name} is {dtype}",
                hint='write distribution = "integers"',
            )
        return kind
    if "file" in entry:
        return "file"
    if "value" in entry:
        return "constant"
    if DTYPES[dtype].kind != "float":
        return "integers"
    return "uniform" if "range" in entry else "normal"


def _read_range(entry: TomlTable, dtype: str) -> tuple[float, float] | None:
    bounds = entry.number_pair("range", expected=_RANGE_FORM)
    if bounds is None:
        return None
    low, high = bounds
    if low > high:
        raise entry.error("range", message=f"range [{low}, {high}] is empty", hint="write the smaller number first")
    for index, bound in enumerate(bounds):
        _check_fits(entry, ("range", index), bound, dtype)
    return low, high


def _read_constant(entry: TomlTable, dtype: str) -> Distribution:
    value = entry.number("value")
    if value is None:
        raise entry.missing("value", expected="value = 1.0, the constant that fills the array")
    _check_fits(entry, ("value",), value, dtype)
    return Distribution("constant", float(value), float(value))


def _read_scale(entry: TomlTable) -> float | None:
    scale = entry.number("scale")
    if scale is not None and scale <= 0:
        raise entry.error("scale", message=f"scale is {scale!r}, expected a number above 0")
    return scale


def _check_fits(entry: TomlTable, path: tuple[str | int, ...], value: float, name: str) -> None:
    dtype = DTYPES[name]
    if dtype.kind == "float":
        low, high = -largest_finite(dtype), largest_finite(dtype)
    else:
        low, high = integer_range(dtype)
    if not low <= value <= high:
        raise entry.error(*path, message=f"{value!r} is outside what {name} holds ({low:g} to {high:g})")


def _read_data_file(entry: TomlTable, dtype: str, *, folder: Path) -> Path:
    name = entry.text("file")
    if name is None:
        raise entry.missing("file", expected='file = "data.npy", a NumPy array with the shape of the argument')
    file = file_beside(entry, "file", name, folder=folder, what="a .npy file")
    try:
        header = _npy_header(file)
    except (ValueError, OSError) as error:
        raise entry.error(
            "file", message=f"{name!r} is not a .npy file: {error}", hint="write it with numpy.save"
        ) from None
    if not may_become(header.dtype, DTYPES[dtype]):
        raise entry.error(
            "file",
            message=f"{name!r} holds {header.dtype}, which is no {dtype}",
            hint=f"save the array as {dtype}"
            + (", its real and its imaginary part in files of their own" if header.dtype.kind == "c" else ""),
        )
    return file


def _npy_header(file: Path) -> np.ndarray[Any, np.dtype[Any]]:
    """The array of a `.npy` file for its shape and dtype; no data is read.

    Raises:
        ValueError: it is something else.
        OSError: it cannot be read.
    """
    array = np.load(file, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive of several")
    return array


def _check_on_workloads(argument: Argument, workloads: Sequence[Workload]) -> None:
    """Everything about an argument that sizes alone decide; the rest waits for the template's parameters."""
    sizes = workloads[0].sizes
    may_use_parameters = argument.role in ("scratch", "local", "scalar")
    for extent in argument.shape:
        what = f"shape of {argument.name!r}"
        if not may_use_parameters:
            check_expression(extent, sizes, what=what)
        if extent.names <= sizes.keys():
            for workload in workloads:
                evaluate_extent(extent, workload.sizes, what=what, workload=workload)
    if argument.shape and all(extent.names <= sizes.keys() for extent in argument.shape):
        for workload in workloads:
            _check_bytes(argument, workload)
    if argument.value is not None and argument.value.names <= sizes.keys():
        for workload in workloads:
            what = f"value of {argument.name!r}"
            value = evaluate_on(argument.value, workload.sizes, what=what, workload=workload)
            encode_scalar(argument.dtype, value, location=argument.value.location)
    if argument.distribution.file is not None:
        _check_data_shape(argument, argument.distribution.file, workloads)


def argument_bytes(argument: Argument, workload: Workload) -> int:
    """How large an array is on one workload; 0 for a scalar, and where its shape is in a template's parameters.

    Raises:
        SpecError: an extent has no value there, or is no positive integer.
    """
    if not argument.shape or not all(extent.names <= workload.sizes.keys() for extent in argument.shape):
        return 0
    what = f"shape of {argument.name!r}"
    extents = [evaluate_extent(extent, workload.sizes, what=what, workload=workload) for extent in argument.shape]
    return math.prod(extents) * DTYPES[argument.dtype].item_bytes


def _check_bytes(argument: Argument, workload: Workload) -> None:
    """Refuse what no machine can hold; what this one cannot hold is for the run to find."""
    byte_count = argument_bytes(argument, workload)
    if byte_count > MOST_BYTES:
        raise SpecError(
            f"{argument.name!r} has {byte_count:.3g} bytes on workload {workload.name!r}, more than any device holds",
            hint="correct the shape or the sizes",
            location=argument.shape[0].location or argument.location,
        )


def _check_data_shape(argument: Argument, file: Path, workloads: Sequence[Workload]) -> None:
    found = _npy_header(file).shape
    for workload in workloads:
        what = f"shape of {argument.name!r}"
        expected = tuple(
            evaluate_extent(extent, workload.sizes, what=what, workload=workload) for extent in argument.shape
        )
        if found != expected:
            raise SpecError(
                f"{file.name} has the shape {found}, and {argument.name!r} is {expected} on workload {workload.name!r}",
                hint="a file fits workloads of one shape only",
                location=argument.location,
            )


def read_tolerances(root: TomlTable, arguments: Sequence[Argument]) -> Mapping[str, Tolerance]:
    """The `[tolerance]` table: by output, `rtol`, `atol` and why.

    Raises:
        SpecError: an argument that is no output, or a negative or missing tolerance.
    """
    table = root.table("tolerance")
    outputs = [argument.name for argument in arguments if argument.role in ("output", "inout")]
    tolerances: dict[str, Tolerance] = {}
    for name in table or ():
        assert table is not None
        if name not in outputs:
            raise SpecError(
                f"tolerance for {name!r}, which is no output; outputs are {', '.join(outputs)}",
                hint=did_you_mean(name, outputs),
                location=table.key_location(name),
            )
        entry = table.table(name)
        assert entry is not None
        tolerances[name] = _read_tolerance(entry)
    return tolerances


def _read_tolerance(entry: TomlTable) -> Tolerance:
    entry.refuse_unknown(("rtol", "atol", "because"), what="a tolerance")
    if "rtol" not in entry and "atol" not in entry:
        raise entry.missing("rtol", expected='rtol = 1e-3, atol = 1e-3, because = "why that is right"')
    parts = []
    for key in ("rtol", "atol"):
        value = entry.number(key) or 0.0
        if value < 0:
            raise entry.error(key, message=f"{key} is {value!r}, expected a number of at least 0")
        parts.append(float(value))
    return Tolerance(parts[0], parts[1], entry.text("because") or "")
