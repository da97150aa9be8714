"""The data of launches: inputs, how they lie in memory, what outputs may hold."""
