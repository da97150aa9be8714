"""A program's host code as one text, and the words that it is run with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kernelwright.errors import Location
from kernelwright.problem.includes import includes_in
from kernelwright.problem.toml.file import read_text


@dataclass(frozen=True, slots=True)
class HostText:
    """A host file with the headers that it includes by quotes, and where each part is from."""

    text: str
    files: tuple[Path, ...]
    """The file of each line."""
    lines: tuple[int, ...]

    def location(self, line: int) -> Location:
        """Where a line of the text is, from 0."""
        line = min(line, len(self.files) - 1)
        return Location(self.files[line], self.lines[line])


def read_host(file: Path) -> HostText:
    """A file with what it includes by quotes in place, each header once; headers that are not there are left out."""
    lines: list[str] = []
    origins: list[tuple[Path, int]] = []
    seen: set[Path] = set()

    def take(path: Path) -> None:
        seen.add(path.resolve())
        text = path.read_bytes().decode("utf-8", "replace")  # comments may be in any encoding
        quoted = {each.line: each.name for each in includes_in(text) if each.is_quoted and not each.is_macro}
        for number, line in enumerate(text.split("\n"), 1):
            named = quoted.get(number)
            header = None if named is None else path.parent / named
            if header is not None and header.is_file():
                if header.resolve() not in seen and header.suffix != ".c":
                    take(header)
                continue
            lines.append("" if named is not None else line)
            origins.append((path, number))

    take(file)
    return HostText("\n".join(lines), tuple(path for path, _ in origins), tuple(number for _, number in origins))


def run_words(folder: Path) -> tuple[str, ...]:
    """The words behind the program in the line of its Makefile that runs it: `./$(program) 1024 10`."""
    makefile = folder / "Makefile"
    if not makefile.is_file():
        return ()
    found = re.search(r"^\t.*?\./\S+[ \t]+(.*)$", read_text(makefile, what="the Makefile"), re.MULTILINE)
    return tuple(found[1].split()) if found else ()
