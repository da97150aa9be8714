"""The folder that an agent works in, frozen at the start: what is measured is what stood there then.

An agent that rewrites a reference or a tolerance in its folder changes nothing that is measured here. Runs lie in a
folder of their own, outside of the agent's.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from kernelwright.errors import UserError
from kernelwright.problem.toml.file import did_you_mean
from kernelwright.source.language import LANGUAGE_OF_SUFFIX
from kernelwright.store.files import explain
from kernelwright.store.run_folder import is_run

MOST_BYTES = 256 << 20
MOST_FILES = 5_000
EXPORTS = "exports"

_SKIPPED = frozenset((EXPORTS, "runs", "__pycache__", "node_modules"))


class Workspace:
    """A folder of problems and kernels, copied when it is opened."""

    def __init__(self, root: Path) -> None:
        """Copy every regular file; links are left out, and hidden folders, runs and exports.

        Raises:
            UserError: it is no folder, or holds too much.
            StoreError: it cannot be copied.
        """
        if not root.is_dir():
            raise UserError(f"{root} is no folder", hint="say the folder that holds the kernels")
        self.root = root.resolve()
        self.private = Path(tempfile.mkdtemp(prefix="kernelwright-mcp-"))
        self._frozen = self.private / "frozen"
        try:
            self._copy()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the copy, and everything else that was kept privately."""
        shutil.rmtree(self.private, ignore_errors=True)

    def frozen(self, name: str) -> Path:
        """The copy of a file or folder that is named relative to the workspace.

        Raises:
            UserError: it lies outside, or was not there at the start.
        """
        path = PurePosixPath(name)
        if not name or "\0" in name or path.is_absolute() or ".." in path.parts or len(name) > 1000:
            raise UserError(f"{name[:200]!r} is no path inside the workspace", hint="name it relative to the workspace")
        found = self._frozen / path
        if not found.exists():
            hint = (
                did_you_mean(name, [*self.problems(), *self.kernels()])
                or "analyse without a kernel lists what is there"
            )
            if (self.root / path).exists():
                hint = "links and what came after the server's start are not measured; a person must start it again"
            raise UserError(f"the workspace has no {name[:200]!r}", hint=hint)
        return found

    def problems(self) -> list[str]:
        """Folders with a problem file, relative to the workspace."""
        found = (path.parent.relative_to(self._frozen).as_posix() for path in self._frozen.rglob("problem.toml"))
        return sorted(found)

    def kernels(self) -> list[str]:
        """Kernel sources that no problem has, relative to the workspace."""
        suffixes = LANGUAGE_OF_SUFFIX.keys() - {".py"}
        problems = {self._frozen / each for each in self.problems()}
        found = (path for path in self._frozen.rglob("*") if path.suffix in suffixes and not problems & {*path.parents})
        return sorted(path.relative_to(self._frozen).as_posix() for path in found)

    def export_folder(self, name: str) -> Path:
        """A new folder below `exports/`, the only place in the workspace that is written to.

        Raises:
            UserError: it is there already, or `exports` is a link.
            StoreError: it cannot be made.
        """
        parent = self.root / EXPORTS
        if parent.is_symlink():
            raise UserError(f"{EXPORTS} in the workspace is a link", hint="remove it")
        for number in range(1, 1000):
            folder = parent / (name if number == 1 else f"{name}-{number}")
            try:
                parent.mkdir(exist_ok=True)
                folder.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                raise explain(error, "make", folder) from error
            return folder
        raise UserError(f"{parent} holds too many exports of {name}", hint="remove some")

    def _copy(self) -> None:
        left_bytes, left_files = MOST_BYTES, MOST_FILES
        self._frozen.mkdir()
        for path in self._files():
            left_bytes -= path.stat().st_size
            left_files -= 1
            if left_bytes < 0 or left_files < 0:
                raise UserError(
                    f"{self.root} holds more than {MOST_FILES} files or {MOST_BYTES >> 20} MiB",
                    hint="name the folder that holds the kernels alone",
                )
            target = self._frozen / path.relative_to(self.root)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target, follow_symlinks=False)
            except OSError as error:
                raise explain(error, "copy", path) from error

    def _files(self) -> Iterator[Path]:
        for folder, names, files in os.walk(self.root):
            here = Path(folder)
            names[:] = [each for each in names if each not in _SKIPPED and not each.startswith(".")]
            names[:] = [each for each in names if not (here / each).is_symlink() and not is_run(here / each)]
            for name in files:
                if stat.S_ISREG((here / name).lstat().st_mode):
                    yield here / name
