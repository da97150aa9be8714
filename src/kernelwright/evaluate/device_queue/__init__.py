"""One device and its processes: candidates are checked, measured and compared one after the other."""
