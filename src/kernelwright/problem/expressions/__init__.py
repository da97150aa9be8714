"""The small language of shapes, launches and constraints: its grammar, and its evaluators."""
