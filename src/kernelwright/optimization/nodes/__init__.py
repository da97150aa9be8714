"""One node of the tree: its problem, its proof, its own run."""
