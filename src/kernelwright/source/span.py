"""Places in a source: half-open ranges of the bytes of its UTF-8 text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Bytes `start` to `end` (exclusive) of a source's UTF-8 text."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"a span from {self.start} to {self.end} is none")

    def overlaps(self, other: Span) -> bool:
        """Whether they share a byte, or one is an empty place strictly inside the other."""
        return self.start < other.end and other.start < self.end

    def contains(self, other: Span) -> bool:
        """Whether every byte of `other` is in this span."""
        return self.start <= other.start and other.end <= self.end

    def joined(self, other: Span) -> Span:
        """The smallest span that contains both."""
        return Span(min(self.start, other.start), max(self.end, other.end))

    def text(self, source: str) -> str:
        """The source's text there."""
        return source.encode("utf-8", "surrogatepass")[self.start : self.end].decode("utf-8", "replace")

    def line(self, source: str) -> int:
        """The line of its first byte, counted from 1."""
        return source.encode("utf-8", "surrogatepass").count(b"\n", 0, self.start) + 1
