"""The loop over structures: choose, propose, prove, tune, record; its settings, its agents."""
