"""TOML with positions: every key and value knows its line and column."""
