"""What a cubin keeps between launches is read from its sections; variables get their first values before launches."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernelwright.backend.base import BinaryUnreadable, BuildUnit, DeviceInfo, LaunchFailed, StateVariable
from kernelwright.backend.cuda.cubin_state import (
    HEAP,
    SMALL_BYTES,
    CubinState,
    CubinVariable,
    read_cubin,
    readable_name,
)
from kernelwright.backend.cuda.driver import find_nvcc, load_nvrtc
from kernelwright.backend.cuda.errors import DriverCallFailed
from kernelwright.backend.cuda.handles import MemoryPool
from kernelwright.backend.cuda.module_memory import ModuleMemory
from kernelwright.backend.registry import get_backend

H100 = DeviceInfo("cuda", "cuda:0", "H100", "gpu", {"compute_capability": 90, "shared_memory_per_block": 232448})

# ---- cubins made here ----

SECTIONS = (
    "",
    ".shstrtab",
    ".strtab",
    ".symtab",
    ".nv.global",
    ".nv.global.init",
    ".nv.constant3",
)
BLANK, FILLED, CONSTANT, UNDEFINED = 4, 5, 6, 0
OBJECT, FUNCTION = 1, 2


def strings(names):
    """A table, and where each name is in it."""
    table, places = b"\0", {"": 0}
    for name in names:
        places.setdefault(name, len(table))
        table += name.encode() + b"\0"
    return table, places


def cubin(*symbols, global_bytes=64):
    """Symbols as (name, type, section, bytes)."""
    section_names, section_at = strings(SECTIONS)
    symbol_names, symbol_at = strings(name for name, *_ in symbols)
    table = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", symbol_at[name], kind, 0, section, 0, size) for name, kind, section, size in symbols
    )
    bodies = [b"", section_names, symbol_names, table, b"", bytes(16), bytes(16)]
    kinds, flags, links = (0, 3, 3, 2, 8, 1, 1), (0, 0, 0, 0, 3, 3, 2), (0, 0, 0, 2, 0, 0, 0)
    data, offsets = bytes(64), []
    for body in bodies:
        offsets.append(len(data))
        data += body + bytes(-len(body) % 8)
    start = len(data)
    for index, name in enumerate(SECTIONS):
        size = global_bytes if index == BLANK else len(bodies[index])
        fields = (section_at[name], kinds[index], flags[index], 0, offsets[index], size, links[index], 0, 8, 0)
        data += struct.pack("<IIQQQQIIQQ", *fields)
    head = (
        b"\x7fELF\x02\x01"
        + bytes(10)
        + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, start, 0, 64, 0, 0, 64, len(SECTIONS), 1)
    )
    return head + data[len(head) :]


def test_variables_without_a_first_value_are_kept_and_tables_are_set_back():
    state = read_cubin(cubin(("V", OBJECT, BLANK, 6400), ("T", OBJECT, FILLED, 16), ("C", OBJECT, CONSTANT, 16)))
    assert state.variables == (
        CubinVariable("V", 6400, is_table=False),
        CubinVariable("T", 16, is_table=True),
        CubinVariable("C", 16, is_table=True),
    )
    assert state.kept() == (StateVariable("V", 6400),)


def test_a_section_without_symbols_counts_as_a_whole():
    assert read_cubin(cubin(global_bytes=8192)).kept() == (StateVariable(".nv.global", 8192),)


@pytest.mark.parametrize("allocator", ["malloc", "_Znwm"])
def test_the_heap_is_kept(allocator):
    (kept,) = read_cubin(cubin((allocator, FUNCTION, UNDEFINED, 0), global_bytes=0)).kept()
    assert kept == StateVariable(HEAP, None)


def test_a_function_of_ones_own_called_malloc_is_not_the_heap():
    assert read_cubin(cubin(("malloc", FUNCTION, CONSTANT, 8), global_bytes=0)).kept() == ()


def test_what_libraries_leave_does_not_count_and_is_set_back_too():
    empty = [(f"_ZN4cuda{index}_E", OBJECT, BLANK, 1) for index in range(1000)]
    few = read_cubin(cubin(*empty, ("V", OBJECT, BLANK, SMALL_BYTES - 1000)))
    assert few.kept() == ()
    assert sum(not each.is_table for each in few.variables) == 1001, "which are set back before each launch"
    many = read_cubin(cubin(*empty, ("V", OBJECT, BLANK, SMALL_BYTES - 999)))
    assert len(many.kept()) == 1001


@given(st.integers(0, 900), st.binary(max_size=80))
@example(43, bytes.fromhex("000000008000000000000000000000000000010000"))  # its sections lie beyond 2^63
def test_damaged_files_are_told(length, junk):
    whole = cubin(("V", OBJECT, BLANK, 64))
    damaged = whole[:length] + junk
    with contextlib.suppress(BinaryUnreadable):
        read_cubin(damaged)
    with pytest.raises(BinaryUnreadable):
        read_cubin(junk)


@pytest.mark.parametrize(
    ("mangled", "words"),
    [
        ("V", "V"),
        ("_ZN2ns7counterE", "ns::counter"),
        ("_ZZ1fPKfPfiE5calls", "f::calls"),
        ("_Z", "_Z"),
        ("_Z9x", "_Z9x"),
    ],
)
def test_names_are_readable(mangled, words):
    assert readable_name(mangled) == words


# ---- what a compiler makes ----

SOURCE = """
#define HIDDEN(type, name) __device__ type name
#ifdef KEEPS
HIDDEN(float, V)[1024];
static __device__ float own[16];
namespace ns { __device__ int counter; __managed__ int managed; }
template <int N> __device__ int of_template;
#endif
__device__ const float table[4] = {1, 2, 3, 4};
static constexpr __device__ float other_table[4] = {5, 2, 3, 4};
__constant__ float constant[4];
extern "C" __global__ void f(const float *x, float *y, int n) {
#ifdef KEEPS
  static int calls;
#endif
  static const float local_table[4] = {3, 1, 4, 1};
  __shared__ float shared[32];
  int i = threadIdx.x;
  shared[i & 31] = x[i];
  __syncthreads();
#ifdef KEEPS
  V[i] += x[i]; own[i & 15] += x[i]; atomicAdd(&calls, 1); ns::counter++; ns::managed++; of_template<3>++;
#endif
#ifdef ALLOCATES
  float *more = (float *)malloc(n * sizeof(float)); if (more) more[n - 1] = x[0];
#endif
  if (n < 0) printf("%d %s", n, "words");
  y[i] = table[n & 3] + other_table[n & 3] + constant[n & 3] + local_table[n & 3] + shared[(i + 1) & 31];
#ifdef KEEPS
  y[i] += V[i] + own[i & 15];
#endif
#ifdef ALLOCATES
  if (more) { y[i] += more[n & 1]; if (n > 5) free(more); }
#endif
}
"""


@pytest.fixture(scope="module", params=["nvrtc", "nvcc"])
def compiled(request, tmp_path_factory):
    """What is found of the source with a macro defined."""
    has_it = load_nvrtc() is not None if request.param == "nvrtc" else find_nvcc() is not None
    if not has_it:
        pytest.skip(f"needs {request.param}")
    includes = "#include <cstdio>\n" if request.param == "nvcc" else ""

    def found(*macros):
        options = (f"--compiler={request.param}",)
        unit = BuildUnit("cuda", includes + SOURCE, "f.cu", tuple((each, "1") for each in macros), options, ("f",))
        return get_backend("cuda").compile(unit, H100, tmp_path_factory.mktemp("cubin")).state

    return found


def test_compiled_variables_are_found_wherever_they_were_written(compiled):
    kept = {each.name.rpartition("::")[2]: each.byte_count for each in compiled("KEEPS")}
    assert kept == {"V": 4096, "own": 16 * 4, "calls": 4, "counter": 4, "managed": 4, "of_template": 4}


def test_tables_constants_and_text_are_not_kept(compiled):
    assert compiled() == ()


def test_compiled_code_that_allocates_is_told(compiled):
    assert StateVariable(HEAP, None) in compiled("ALLOCATES")


# ---- setting back, with a driver that is played ----


class Memory:
    """A device's memory as a driver gives it, with a module whose variables lie in it."""

    def __init__(self, **variables):
        self.bytes = bytearray(8192)
        self.variables = variables
        self.free_from = 4096
        self.driver = SimpleNamespace(
            cuMemAlloc=self.allocate,
            cuMemFree=lambda _: (0,),
            cuMemcpyDtoDAsync=self.copy,
            cuMemsetD8Async=lambda *_: (0,),
        )

    def allocate(self, byte_count):
        self.free_from += byte_count
        return 0, self.free_from - byte_count

    def copy(self, target, source, byte_count, stream):
        self.bytes[target : target + byte_count] = self.bytes[source : source + byte_count]
        return (0,)

    def variable(self, name):
        if name not in self.variables:
            raise DriverCallFailed(500, "CUDA_ERROR_NOT_FOUND")
        return self.variables[name]


class Module:
    """A loaded cubin."""

    def __init__(self, memory, *variables):
        self.variable = memory.variable
        self.state = CubinState(variables, uses_heap=False)


T = CubinVariable("T", 8, is_table=True)


def module_memory(memory):
    return ModuleMemory(memory.driver, None, MemoryPool(memory.driver, None))


def test_what_a_launch_left_is_gone_before_the_next():
    memory = Memory(T=(64, 8), V=(128, 4))
    memory.bytes[64:72] = b"original"
    kept = module_memory(memory)
    module = Module(memory, T, CubinVariable("V", 4, is_table=False))
    for _ in range(2):
        kept.before_launch(module)
        memory.bytes[64:72], memory.bytes[128:132] = b"results!", b"more"
        kept.forget()
        assert (memory.bytes[64:72], memory.bytes[128:132]) == (b"original", bytes(4))


def test_a_module_that_was_not_launched_is_left_alone():
    memory = Memory(T=(64, 8))
    kept, module = module_memory(memory), Module(memory, T)
    kept.before_launch(module)
    kept.forget()
    memory.bytes[64:72] = b"filled 2"
    kept.forget()
    assert memory.bytes[64:72] == b"filled 2"


def test_a_variable_that_the_driver_does_not_find_is_refused_unless_no_one_can_write_it():
    kept = module_memory(memory := Memory())
    with pytest.raises(LaunchFailed, match=r"'T' cannot be given its first value .*__constant__") as failure:
        kept.before_launch(Module(memory, T))
    assert failure.value.reason == "keeps-state"
    kept.before_launch(Module(memory, replace(T, name="$str"), replace(T, byte_count=1)))
    kept.forget()
