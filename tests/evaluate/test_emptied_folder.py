"""A folder in which a kernel may have left files is empty before the next process begins."""

from __future__ import annotations

from pathlib import Path

from kernelwright.evaluate.process.scratch import empty


def test_nothing_is_left_whatever_rights_it_has_and_nothing_outside_is_touched(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "scratch"
    deep = folder / "out" / "deep"
    deep.mkdir(parents=True)
    outside.mkdir()
    (outside / "kept").write_text("x")
    (folder / "table").write_text("x")
    (deep / "table").write_text("x")
    (folder / "link").symlink_to(outside)
    (folder / "out" / "link").symlink_to(outside)
    (folder / "nowhere").symlink_to(folder / "gone")
    for path in (deep, folder / "out"):
        path.chmod(0)
    assert empty(folder)
    assert not list(folder.iterdir())
    assert (outside / "kept").read_text() == "x"
    assert empty(folder)
    assert empty(tmp_path / "never made")
