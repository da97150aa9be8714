"""`worker` and `--runner`: words that make no sense are refused before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelwright.cli.main import main
from kernelwright.evaluate.process.child import forget_secrets
from kernelwright.remote.folder import SpoolFolder


def ended(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    assert isinstance(caught.value.code, int)
    return caught.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--runner", "spool:"], "names no folder"),
        (["--runner", "ssh:gpu"], "say spool:DIR"),
        (["--runner", "ray:nowhere"], "'nowhere' is no address of a Ray cluster"),
        (["--runner", "slurm:partion=gpu"], "did you mean 'partition'"),
        (["--in-flight", "0"], "in-flight"),
        (["--part", "0"], "part"),
        (["--part", "8"], "--part 8 has no effect here"),
    ],
)
def test_a_runner_that_is_none_is_refused(
    saxpy: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    status, err = ended(capsys, "optimize", saxpy, *words)
    assert status == 2
    assert told in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--runner", "spool:other"], "asks no other"),
        (["--runner", "ray", "--until-idle"], "goes on until Ctrl-C"),
        (["--runner", "ray:"], "no address"),
    ],
)
def test_a_worker_with_a_cluster_has_words_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    status, err = ended(capsys, "worker", "--spool", tmp_path / "spool", "--create", *words)
    assert status == 2
    assert told in err
    assert not (tmp_path / "spool").exists()


def test_a_folder_of_something_else_is_no_spool(
    tmp_path: Path, saxpy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ("worker", "--spool", saxpy, "--until-idle"),
        ("optimize", saxpy, "--run", tmp_path / "run", "--runner", f"spool:{saxpy}"),
    ):
        status, err = ended(capsys, *words)
        assert status == 2
        assert "something else" in err
    assert not (tmp_path / "run").exists()


def test_a_limit_is_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for limit in ("200", "abc", "no-gain", "-1m"):
        status, err = ended(capsys, "worker", "--spool", tmp_path / "spool", "--limit", limit)
        assert status == 2
        assert f"--limit '{limit}' is no time" in err
        assert "say 90s, 8m or 1h" in err
        assert "budget" not in err


def test_an_empty_spool_is_idle_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, err = ended(capsys, "worker", "--spool", tmp_path / "spool", "--until-idle", "--create")
    assert status == 0
    assert "0 requests done, 0 left" in err
    assert ended(capsys, "worker", "--spool", tmp_path / "spool", "--until-idle")[0] == 0  # it is there now


def test_a_spool_that_is_not_there_is_an_error_and_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SpoolFolder(tmp_path / "shared-spool")
    for mistyped, told in (
        (tmp_path / "shared-spol", f"did you mean '{tmp_path / 'shared-spool'}'?"),
        (tmp_path / "else" / "spool", "'else' is not there either".replace("'else'", f"'{tmp_path / 'else'}'")),
    ):
        status, err = ended(capsys, "worker", "--spool", mistyped, "--until-idle")
        assert status == 2
        assert f"there is no spool '{mistyped}'" in err
        assert told in err
        assert "--create" in err
        assert not mistyped.exists()


def test_a_torn_request_is_left_and_the_status_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spool = SpoolFolder(tmp_path / "spool")
    (spool.path / "requests" / "0123456789abcdef.json").write_text('{"spool":1,')
    status, err = ended(capsys, "worker", "--spool", spool.path, "--until-idle")
    assert status == 1
    assert "left undone: request 0123456789abcdef: it is incomplete" in err


def test_a_worker_knows_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "MY_TOKEN", "db_password"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("HARMLESS", "word")
    forget_secrets()
    assert not {"OPENAI_API_KEY", "MY_TOKEN", "db_password"} & set(os.environ)
    assert os.environ["HARMLESS"] == "word"
