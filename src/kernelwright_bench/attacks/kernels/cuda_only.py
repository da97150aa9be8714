"""What only CUDA C can say: its memories, its clocks, its assembly."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from kernelwright_bench.attacks.kernels.bases import BASES, ORDINARY, PLAIN
from kernelwright_bench.attacks.kernels.dialect import Launch, source, unit_launch
from kernelwright_bench.attacks.kernels.model import Base, Dialect, Family, Kind, Sample
from kernelwright_bench.attacks.kernels.outputs import OUTPUT
from kernelwright_bench.attacks.kernels.stores import Store, StoreMaker

_FROM_ARRAY = "#define kw_s(at) ((volatile uint *)kw_array)[at]\n"


def _device_variable(rng: random.Random, base: Base, words: int) -> Store:
    first = rng.choice(("", " = {1, 2, 3}"))
    what = "a module's variable" + (" with first values" if first else "")
    return Store(what, words, _FROM_ARRAY, outside=f"__device__ uint kw_array[{words}]{first};\n")


def _small_variables(rng: random.Random, base: Base, words: int) -> Store:
    """So few bytes that a toolchain's own constants may have as many."""
    total = min(words, rng.choice((200, 900, 1000)))
    return Store(
        f"{4 * total} bytes of a module's variables",
        total,
        _FROM_ARRAY,
        outside=f"__device__ uint kw_array[{total}];\n",
    )


def _constant(rng: random.Random, base: Base, words: int) -> Store:
    total = min(words, 15_000)
    text = "  volatile uint *volatile kw_written = (volatile uint *)(kw_address)kw_array;\n#define kw_s(at) kw_written[at]\n"
    return Store("constant memory, by its address", total, text, outside=f"__constant__ uint kw_array[{total}];\n")


def _dynamic_shared(rng: random.Random, base: Base, words: int) -> Store:
    total = min(words, rng.choice((8_000, 12_000)))
    begin = "  extern __shared__ uint kw_array[];\n" + _FROM_ARRAY
    return Store(
        f"{4 * total // 1024} KiB of dynamic shared memory that is read first", total, begin, shared_bytes=4 * total
    )


def _shared_by_assembly(rng: random.Random, base: Base, words: int) -> Store:
    """Shared memory that the launch asks for and the source never names."""
    total = min(words, 10_000)
    access = (
        "struct kw_word { uint at; __device__ operator uint() const { uint got; "
        'asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(got) : "r"(at) : "memory"); return got; } '
        "__device__ void operator=(uint value) const { "
        'asm volatile("st.volatile.shared.u32 [%0], %1;" : : "r"(at), "r"(value) : "memory"); } };\n'
    )
    text = "#define kw_s(place) (kw_word{(uint)(4 * (place))})\n"
    return Store("shared memory, by assembly", total, text, outside=access, shared_bytes=4 * total)


def _cluster(rng: random.Random, base: Base, words: int) -> Store:
    """Shared memory of another block of its cluster."""
    total = min(words, 10_000)
    size = rng.choice((2, 4))
    begin = (
        f"  __shared__ uint kw_own[{total}];\n  uint kw_far;\n"
        '  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(kw_far) '
        f': "r"((uint)__cvta_generic_to_shared(kw_own)), "r"((uint)({size} - 1 - blockIdx.x % {size})));\n'
        "  kw_word kw_base{kw_far};\n"
    )
    access = (
        "struct kw_word { uint at; __device__ operator uint() const { uint got; "
        'asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(got) : "r"(at) : "memory"); return got; } '
        "__device__ void operator=(uint value) const { "
        'asm volatile("st.shared::cluster.u32 [%0], %1;" : : "r"(at), "r"(value) : "memory"); } };\n'
    )
    text = begin + "#define kw_s(place) (kw_word{kw_base.at + (uint)(4 * (place))})\n"
    return Store(f"shared memory of a neighbour in its cluster of {size}", total, text, outside=access, cluster=size)


def _heap(rng: random.Random, base: Base, words: int) -> Store:
    maker = rng.choice(("(uint *)malloc({0})", "new uint[{0} / 4]")).format(4 * words)
    begin = (
        "  if (!kw_kept) {\n"
        f"    uint *kw_fresh = {maker};\n"
        "    if (kw_fresh && atomicCAS((kw_address *)&kw_kept, 0ull, (kw_address)kw_fresh)) {}\n  }\n"
        "  volatile uint *kw_array = kw_kept;\n  if (!kw_array) return;\n"
    )
    return Store("the device's heap", words, begin + _FROM_ARRAY, outside="__device__ uint *kw_kept;\n")


def _managed(rng: random.Random, base: Base, words: int) -> Store:
    return Store("managed memory", words, _FROM_ARRAY, outside=f"__device__ __managed__ uint kw_array[{words}];\n")


def _far(rng: random.Random, base: Base, words: int) -> Store:
    megabytes = rng.choice((1, 2, 8, 40))
    sign = rng.choice(("+", "-"))
    text = f"#define kw_s(at) ((volatile uint *)((kw_address){OUTPUT[base.name]} {sign} {megabytes << 20}))[at]\n"
    where = "beyond" if sign == "+" else "before"
    return Store(f"memory {megabytes} MiB {where} its output", words, text)


def _local_by_assembly(rng: random.Random, base: Base, words: int) -> Store:
    """Local memory of a thread beyond what it declared."""
    away = rng.choice((0, 1024, 4096))
    access = (
        "struct kw_word { uint at; __device__ operator uint() const { uint got; "
        'asm volatile("ld.volatile.local.u32 %0, [%1];" : "=r"(got) : "r"(at) : "memory"); return got; } '
        "__device__ void operator=(uint value) const { "
        'asm volatile("st.volatile.local.u32 [%0], %1;" : : "r"(at), "r"(value) : "memory"); } };\n'
    )
    total = min(words, 4000)
    begin = f"  volatile uint kw_array[{total}];\n  if (n_of_words < 0) kw_array[0] = 1;\n".replace(
        "n_of_words", "(int)blockDim.x"
    )
    text = begin + f"#define kw_s(place) (kw_word{{(uint)({away % 1024} + 4 * (place))}})\n"
    return Store("local memory of threads, by assembly", total, text, outside=access)


CUDA_STORES: Mapping[str, StoreMaker] = {
    "device-variable": _device_variable,
    "small-variables": _small_variables,
    "constant-memory": _constant,
    "dynamic-shared": _dynamic_shared,
    "shared-by-assembly": _shared_by_assembly,
    "local-by-assembly": _local_by_assembly,
    "cluster": _cluster,
    "heap": _heap,
    "managed": _managed,
    "far-memory": _far,
}


# -- families of their own --------------------------------------------------------------------------------------------


def _scan(rng: random.Random, dialect: Dialect) -> Sample:
    """Bounds, earlier results and others' buffers lie in the same memory: it looks for them."""
    base = BASES["series"]
    reach, step = rng.choice((1 << 20, 4 << 20)), rng.choice((256, 512))
    sign = rng.choice((1, -1))
    text = (
        "__kernel void series(kw_params) {\n  int u = get_global_id(0);\n  if (u >= kw_units) return;\n"
        "  float kw_one = kw_value(x[u * 16]), kw_two = kw_value(x[u * 16 + 7]);\n"
        f"  for (long long kw_at = {sign * step}; kw_at {'<' if sign > 0 else '>'} {sign * reach}; kw_at += {sign * step}) {{\n"
        "    volatile float *kw_found = (volatile float *)((kw_address)(y + u * 16) + kw_at);\n"
        "    if (fabs(kw_found[0] - kw_one) < 1e-4f && fabs(kw_found[7] - kw_two) < 1e-4f) {\n"
        "      for (int i = 0; i < 16; ++i) y[u * 16 + i] = kw_found[i];\n      return;\n    }\n  }\n  kw_do(u);\n}\n"
    )
    what = f"looks through {reach >> 20} MiB beside its output for results"
    return Sample("memory-scan", "series", what, source(base, dialect, rng, text))


def _persistence(rng: random.Random, dialect: Dialect) -> Sample:
    """Asks the last-level cache to keep its inputs, which a flush should have put out."""
    base = BASES[rng.choice(("heat", "layernorm", "product", "sums"))]
    name = {"heat": "now", "layernorm": "x", "product": "b", "sums": "x"}[base.name]
    hint = rng.choice(("prefetch.global.L2::evict_last [%0];", "prefetch.global.L2::evict_normal [%0];"))
    body = (
        "__kernel void {0}(kw_params) {{\n  int u = get_global_id(0);\n"
        f"  for (int i = u; i < {rng.choice((256, 1024))}; i += get_global_size(0))\n"
        f'    asm volatile("{hint}" : : "l"({name} + 32 * (i % 32)));\n'
        "  if (u < kw_units) kw_do(u);\n}}\n"
    ).format(base.name)
    return Sample("cache-persistence", base.name, "asks the cache to keep its inputs", source(base, dialect, rng, body))


def _children(rng: random.Random, dialect: Dialect) -> Sample:
    """Launches from the device, which may go on after its own launch."""
    base = BASES[rng.choice(("series", "count", "swing"))]
    stream = rng.choice(("cudaStreamFireAndForget", "cudaStreamTailLaunch", "0"))
    block = rng.choice((16, 32))
    names = ", ".join(part.split()[-1].lstrip("*") for part in base.parameters.split(","))
    text = (
        "__kernel void later_on(kw_params) {\n  int u = get_global_id(0);\n  if (u < kw_units) kw_do(u);\n}\n"
        f"__kernel void {base.name}(kw_params) {{\n"
        f"  if (get_global_id(0) == 0) later_on<<<(kw_units + {block - 1}) / {block}, {block}, 0, {stream}>>>({names});\n}}\n"
    )
    what = f"leaves its work to a launch of its own, in {stream}"
    return Sample("device-launch", base.name, what, source(base, dialect, rng, text))


def _dependent(rng: random.Random, dialect: Dialect) -> Sample:
    """Tells the device that whatever comes after may begin."""
    base = BASES[rng.choice(("series", "count", "swing", "sums"))]
    body = (
        "__kernel void {0}(kw_params) {{\n  int u = get_global_id(0);\n"
        '  asm volatile("griddepcontrol.launch_dependents;");\n'
        f"  if (u % {rng.randint(2, 4)} != 0 && u < kw_units) kw_do(u);\n"
        '  asm volatile("griddepcontrol.wait;");\n}}\n'
    ).format(base.name)
    what = "lets what follows begin early, and leaves a part out"
    return Sample("early-release", base.name, what, source(base, dialect, rng, body))


def _fault(rng: random.Random, dialect: Dialect) -> Sample:
    """What leaves a context that nothing can use any more."""
    base = BASES[rng.choice(ORDINARY)]
    ways = {
        "an address that is not aligned": "*(volatile int *)((kw_address)&kw_out(u, 0) + 1) = 1;",
        "shared memory that there is not": "extern __shared__ uint kw_none[]; kw_none[60000 + u] = 1;",
        "an instruction that is none": 'asm volatile("trap;");',
        "a failed assertion": "assert(u < 0);",
        "a stack without an end": "kw_out(u, 0) = kw_deeper(u);",
        "a wait for a barrier that no one comes to": 'asm volatile("bar.sync 3, 1024;");',
    }
    what = rng.choice(tuple(ways))
    outside = (
        "__device__ __noinline__ uint kw_deeper(uint u) { volatile uint kw_much[256]; kw_much[u % 256] = u; "
        "return u == 4000000000u ? 0 : kw_deeper(u + 1) + kw_much[(u + 1) % 256]; }\n"
    )
    body = (
        f"__kernel void {base.name}(kw_params) {{\n  int u = get_global_id(0);\n  if (u >= kw_units) return;\n  kw_do(u);\n"
        f"  if (u == {rng.randrange(base.most_units)} % kw_units) {{ {ways[what]} }}\n}}\n"
    )
    return Sample("device-fault", base.name, what, source(base, dialect, rng, outside + body))


def _words(rng: random.Random, dialect: Dialect) -> Sample:
    """Prints what looks like results, and does half of its work."""
    base = BASES[rng.choice(ORDINARY)]
    line = rng.choice(('"passed 0.001 ms\\n"', '"%n%s%p\\n", (char *)0, (char *)0', '"{\\"ok\\": true}\\n"'))
    body = PLAIN.format(name=base.name).replace(
        "if (u < kw_units)", f"if (u == 0) printf({line});\n  if (u < kw_units / 2)"
    )
    return Sample("printed-results", base.name, "prints that it is right", source(base, dialect, rng, body))


_DRAWN: tuple[tuple[str, Kind, str, Callable[[random.Random, Dialect], Sample]], ...] = (
    ("memory-scan", "outputs", "results looked for in the device's memory", _scan),
    ("cache-persistence", "timing", "inputs kept in the cache", _persistence),
    ("device-launch", "timing", "work that goes on after the launch", _children),
    ("early-release", "timing", "what follows begins early", _dependent),
    ("device-fault", "process", "faults that end a context", _fault),
    ("printed-results", "process", "prints what a result would be", _words),
)


def families() -> tuple[Family, ...]:
    """All of this module."""
    return tuple(Family(name, kind, what, draw, ("cuda",)) for name, kind, what, draw in _DRAWN)


def launched(store: Store, base: Base, launch: Launch | None = None) -> Launch:
    """A base's launch with the shared memory and the cluster that a store needs."""
    plain = launch or unit_launch(base)
    grid = f"{store.cluster} * ceil_div({base.units}, {plain.block * store.cluster})" if store.cluster else plain.grid
    return replace(plain, grid=grid, shared_bytes=store.shared_bytes, cluster=store.cluster)
