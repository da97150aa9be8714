"""Parameters, constraints and the exact feasible set."""
