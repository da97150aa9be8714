"""A config: one value for each parameter of a template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernelwright.identity import content_id

Value = bool | int | float | str
"""What a parameter's value may be; strings name types, qualifiers or compile options."""


class Config(Mapping[str, Value]):
    """An immutable, hashable mapping from parameter name to value, in the template's parameter order.

    Two configs are equal when they hold the same names and values, whatever the order.
    """

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        self._values: dict[str, Value] = dict(values or {})
        self._hash: int | None = None

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._values.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config):
            return NotImplemented
        return self._values == other._values

    def __repr__(self) -> str:
        return "Config(" + ", ".join(f"{name}={value!r}" for name, value in self._values.items()) + ")"

    @property
    def id(self) -> str:
        """The content id of the values, whatever their order."""
        return content_id(dict(self._values))

    def replace(self, **changes: Value) -> Config:
        """A new config with `changes` applied."""
        return Config({**self._values, **changes})
