"""One process that runs OpenCL programs, for all tests of this area."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from opencl_runs import Job, Launch, Runner


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    """Runs jobs on the OpenCL CPU device; skips with the reason where there is none."""
    pytest.importorskip("pyopencl")
    made = Runner()
    source = "__kernel void f(__global float *x) { x[get_global_id(0)] = 1.0f; }"
    launch = Launch("f", (1, 1, 1), (4, 1, 1), ("x",))
    first = made.run(Job(source, (), (), (launch,), {"x": np.zeros(4, np.float32)}))
    if first.error:
        made.close()
        pytest.skip(f"needs an OpenCL CPU device: {first.error}")
    yield made
    made.close()
