"""The search over one template: ask, evaluate, record, tell; its budget, its finals."""
