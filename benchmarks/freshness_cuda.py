"""What fresh inputs cost on a CUDA device: drawing them anew, looking whether they are untouched, comparing results.

```
python benchmarks/freshness_cuda.py [--json FILE]
```
Bytes are those that a call reads and writes at least. Device time is of many calls in a row, by events. Host time is
what a call takes before it returns, the device being busy. The first table has what else comes between two launches.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelwright.backend.base import Buffer
from kernelwright.backend.cuda.errors import call
from kernelwright.backend.cuda.session import CudaSession
from kernelwright.backend.redraw import Closeness, Redraw, draw_of
from kernelwright.backend.registry import get_backend

MEGABYTES = (1, 16, 100, 500)
CALLS = 20
KINDS = {
    "float32": (Redraw("float", 4, 0x7FFFFF, 0x7F800000, 0, (1 << 32) - 1), b"\x12\x34\xc0\x3f", "float32"),
    "float32 bounded": (Redraw("float", 4, 0x7FFFFF, 0x7F800000, 1 << 31, 0xBF800000), b"\x12\x34\x40\x3f", "float32"),
    "float16": (Redraw("float", 2, 0x3FF, 0x7C00, 0, (1 << 16) - 1), b"\x12\x3e", "float16"),
    "int32": (Redraw("integers", 4, low=0, span=1000), b"\x12\0\0\0", "float32"),
    "permuted int32": (Redraw("permute", 4), b"\x12\0\0\0", "float32"),
}
"""How each is drawn, what its first values are, and as what results of that width are compared."""
LOCAL_BYTES = (256, 1024, 4096)


class Bench:
    """A session, and the largest buffers."""

    def __init__(self) -> None:
        self.device = get_backend("cuda").devices()[0]
        self.session = CudaSession(self.device, use_cupti=False)  # whose records leave the session's own kernels out
        self.byte_count = max(MEGABYTES) * 10**6
        self._buffers = [self.session.allocate(self.byte_count) for _ in range(2)]
        self._launch = 0

    def costs(self, action: Callable[[], None]) -> tuple[float, float]:
        """Microseconds of the device and of the host for one call."""
        action()
        self.session.synchronize()
        device_us = min(self.session.time_calls([action] * CALLS) for _ in range(3)) * 1e3 / CALLS
        host_us = []
        for _ in range(3):
            self.session.synchronize()
            start_s = time.perf_counter()
            for _ in range(CALLS):
                action()
            host_us.append((time.perf_counter() - start_s) * 1e6 / CALLS)
        self.session.synchronize()
        return device_us, min(host_us)

    def checks(self, name: str, megabytes: int) -> list[dict[str, Any]]:
        """The three calls on so much of one kind."""
        how, pattern, dtype = KINDS[name]
        session, (base, target) = self.session, self._buffers
        byte_count = megabytes * 10**6
        session.fill(base, pattern, byte_count)
        count = byte_count // how.item_bytes
        limit = Closeness(dtype, 0.1, 0.1)

        def draw() -> None:
            self._launch += 1
            session.redraw(base, target, how, draw_of(self._launch, "x", count, how), offset_bytes=0)

        last = draw_of(0, "x", count, how)

        def look() -> None:
            session.expect_redrawn(base, target, how, last, offset_bytes=0)

        def compare() -> None:
            session.expect_close(base, base, byte_count, limit, offset_bytes=0)

        reads = 1 if how.kind == "integers" else 2
        rows = []
        for what, action, factor in (
            ("redraw", draw, reads),
            ("expect_redrawn", look, reads),
            ("expect_close", compare, 2),
        ):
            session.redraw(base, target, how, last, offset_bytes=0)
            device_us, host_us = self.costs(action)
            rate = factor * byte_count / device_us / 1e3
            cells = {"kind": name, "MB": megabytes, "call": what}
            rows.append({**cells, "GB/s": rate, "device": device_us, "host": host_us})
        assert session.as_expected(), name
        return rows

    def others(self) -> list[dict[str, Any]]:
        """What else is done between launches."""
        session, driver = self.session, self.session._driver  # noqa: SLF001
        leftovers = session._leftovers  # noqa: SLF001

        def forget(byte_count: int) -> Callable[[], None]:
            def action() -> None:
                leftovers._local_bytes = byte_count  # noqa: SLF001
                leftovers.forget_local()

            return action

        def give_back(byte_count: int) -> Callable[[], None]:
            def action() -> None:
                session.free(session.allocate(byte_count))

            return action

        def ask() -> None:
            buffer: Buffer = self._buffers[0]
            session.expect_same(buffer, buffer, 16)
            session.as_expected()

        actions: list[tuple[str, Callable[[], None]]] = [
            ("flush_cache", session.flush_cache),
            ("persisting lines reset", lambda: call(driver.cuCtxResetPersistingL2Cache())),
            ("forget_local_memory (shared)", session.forget_local_memory),
            *((f"local memory, {each:,} bytes a thread", forget(each)) for each in LOCAL_BYTES),
            *((f"allocate and free {each} MB", give_back(each * 10**6)) for each in (1, 100)),
            ("expect_same of 16 bytes, as_expected", ask),
        ]
        rows = []
        for what, action in actions:
            try:
                device_us, host_us = self.costs(action)
            except Exception as error:  # one line of the table: the others are wanted too
                rows.append({"call": f"{what}: {error}"})
                continue
            rows.append({"call": what, "device": device_us, "host": host_us})
        return rows


def show(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """A table; times in microseconds."""
    width = max(len(str(row.get("call", ""))) for row in rows)
    print("  ".join(f"{column:<{width}}" if column == "call" else f"{column:>15}" for column in columns))
    for row in rows:
        cells = []
        for column in columns:
            value = row.get(column, "")
            text = f"{value:,.1f}" if isinstance(value, float) else str(value)
            cells.append(f"{text:<{width}}" if column == "call" else f"{text:>15}")
        print("  ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bench = Bench()
    others = bench.others()
    rows = []
    for name in KINDS:
        start_s = time.perf_counter()
        found = bench.checks(name, MEGABYTES[0])
        print(f"{name}: {time.perf_counter() - start_s:.2f} s with compiling or loading its kernels")
        rows += [*found, *(row for megabytes in MEGABYTES[1:] for row in bench.checks(name, megabytes))]
    print(bench.device.name, bench.device.driver, bench.session.read_state())
    show(others, ("call", "device", "host"))
    show(rows, ("kind", "MB", "call", "GB/s", "device", "host"))
    if options.json:
        options.json.write_text(json.dumps({"device": bench.device.name, "others": others, "rows": rows}))


if __name__ == "__main__":
    main()
