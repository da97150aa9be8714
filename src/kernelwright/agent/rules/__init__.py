"""The agent that needs no model: tactics applied by rules, with the same roles as one that asks a model."""
