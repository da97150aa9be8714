"""Who runs: the build pool, the device worker, the referee, timing and statistics."""
