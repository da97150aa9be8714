"""How long feasible spaces take to build, beside other ways to build them."""
