"""One thread's scalar code: arithmetic, index arithmetic, what the compiler is told."""
