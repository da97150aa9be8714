"""The command `mcp`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from kernelwright.cli.main import main
from kernelwright.mcp_tools.server import skill_text


def status_of(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_the_skill_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("mcp", "--skill") == 0
    assert capsys.readouterr().out.rstrip() == skill_text().rstrip()
    assert status_of("mcp", "--skill", "--json") == 0
    assert json.loads(capsys.readouterr().out)["skill"] == skill_text()


def test_the_skill_has_the_head_that_agents_read() -> None:
    assert skill_text().startswith("---\nname: kernelwright\ndescription: ")


def test_what_cannot_be_served_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("mcp") == 2
    assert "no workspace" in capsys.readouterr().err
    assert status_of("mcp", str(tmp_path), "--budget", "200") == 2
    assert "no limit in time" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("mcp") is not None, reason="the SDK is installed")
def test_without_the_sdk_it_is_told_what_to_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("mcp", str(tmp_path)) == 2
    assert "pip install 'kernelwright[mcp]'" in capsys.readouterr().err
