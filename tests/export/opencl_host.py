"""A host that knows nothing but an exported header: launches the kernels through OpenCL. Run as a process of its own.

Usage: opencl_host.py LIBRARY SOURCE DATA.npz NAME=SIZE...   (the library was compiled from the header and a few lines)
The environment's BUILD_OPTIONS, where it is set, is built with instead of what the header says.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import numpy as np
import pyopencl as cl

from kernelwright.backend.opencl.cpu.processor import name_processor

OUTPUT, LOCAL, SCALAR = 1, 4, 5


class Argument(ctypes.Structure):
    """`kernelwright_argument` of the header."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_char_p),
        ("role", ctypes.c_int),
        ("bytes", ctypes.c_longlong),
        ("value", ctypes.c_ubyte * 8),
    )


def launch_type(most: int) -> type[ctypes.Structure]:
    """`kernelwright_NAME_launch`, whose number of arguments depends on the problem."""

    class Launch(ctypes.Structure):
        _fields_ = (
            ("entry", ctypes.c_char_p),
            ("grid", ctypes.c_longlong * 3),
            ("block", ctypes.c_longlong * 3),
            ("shared_bytes", ctypes.c_longlong),
            ("cluster", ctypes.c_longlong * 3),
            ("is_cooperative", ctypes.c_int),
            ("argument_count", ctypes.c_int),
            ("arguments", Argument * most),
        )

    return Launch


def main() -> None:
    """Build with the header's options, bind its arguments, launch its grids, and store the outputs."""
    library, source, data_file, *sizes = sys.argv[1:]
    header = ctypes.CDLL(library)
    most = header.most_arguments()
    launch_of = header.launch_of
    launch_of.restype = launch_type(most)
    header.build_options.restype = ctypes.c_char_p
    values = (ctypes.c_longlong * len(sizes))(*(int(size.partition("=")[2]) for size in sizes))
    options = header.build_options(values)
    assert options is not None, "the header supports these sizes"
    options = os.environ.get("BUILD_OPTIONS", options.decode())
    context = cl.create_some_context(interactive=False)
    name_processor(context.devices[0].int_ptr)
    queue = cl.CommandQueue(context)
    program = cl.Program(context, Path(source).read_text(encoding="utf-8")).build(options.split())
    arrays = dict(np.load(data_file))
    buffers: dict[str, cl.Buffer] = {}
    outputs: dict[str, int] = {}
    for step in range(header.step_count()):
        launch = launch_of(step, values)
        kernel = cl.Kernel(program, launch.entry.decode())
        for place in range(launch.argument_count):
            argument = launch.arguments[place]
            name = argument.name.decode()
            if argument.role == SCALAR:
                kernel.set_arg(place, bytes(argument.value[: argument.bytes]))
            elif argument.role == LOCAL:
                kernel.set_arg(place, cl.LocalMemory(argument.bytes))
            else:
                if name not in buffers:
                    buffers[name] = cl.Buffer(context, cl.mem_flags.READ_WRITE, argument.bytes)
                    if name in arrays:
                        assert arrays[name].nbytes == argument.bytes, name
                        cl.enqueue_copy(queue, buffers[name], arrays[name])
                if argument.role == OUTPUT:
                    outputs[name] = argument.bytes
                kernel.set_arg(place, buffers[name])
        block = tuple(launch.block)
        cl.enqueue_nd_range_kernel(queue, kernel, tuple(g * b for g, b in zip(launch.grid, block, strict=True)), block)
    results = {}
    for name, count in outputs.items():
        results[name] = np.empty(count, np.uint8)
        cl.enqueue_copy(queue, results[name], buffers[name])
    queue.finish()
    np.savez(data_file, **results)


if __name__ == "__main__":
    main()
