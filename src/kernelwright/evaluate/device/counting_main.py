"""The process that Nsight Compute watches, `-m kernelwright.evaluate.device.counting_main FOLDER`: it launches once."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from kernelwright.evaluate.device.counting import JOB_FILE, CountJob, run_once

if __name__ == "__main__":
    job = pickle.loads((Path(sys.argv[1]) / JOB_FILE).read_bytes())  # noqa: S301 - written by `count`, in its own folder
    assert isinstance(job, CountJob)
    run_once(job)
