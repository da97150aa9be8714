"""The agent that a run's settings ask for: rules, or a model with its recording, its account and its caps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from kernelwright.agent.base import Agent
from kernelwright.agent.model.agent import ModelAgent
from kernelwright.agent.rules.agent import RulesAgent
from kernelwright.engine.optimize_settings import REPLAY, OptimizeSettings
from kernelwright.errors import UsageError
from kernelwright.llm.account import Account, AccountedModel, Caps
from kernelwright.llm.base import ChatModel
from kernelwright.llm.providers import open_models
from kernelwright.llm.recorded import FILE_NAME, RecordedModel, Recording, encode, read_exchanges
from kernelwright.store.run_folder import RunFolder
from kernelwright.tree.model import Node

Opener = Callable[[str], ChatModel]


@contextlib.contextmanager
def agent_of(settings: OptimizeSettings, folder: RunFolder, *, opener: Opener = open_models) -> Iterator[Agent]:
    """The agent of a run; a model's connections are closed at the end.

    Every request and reply is recorded in the run folder; what is recorded there already is not asked for again.

    Args:
        settings: the run's.
        folder: where replies are recorded; a node's source is read from its blobs.
        opener: gives the model of a name.

    Raises:
        UsageError: a replay of what is no recording.
        ModelAuthFailed: there is no key.
        StoreError: the recording cannot be read.
    """
    if settings.model == "rules":
        yield RulesAgent()
        return
    path = folder.path / FILE_NAME
    if settings.model.startswith(REPLAY):
        _copy_recording(Path(settings.model.removeprefix(REPLAY)), path)
        model = RecordedModel(Recording(path, writable=False), None)
    else:
        recording = Recording(path)
        account = Account(
            Caps(cost_usd=settings.max_cost_usd, tokens=settings.max_tokens),
            [(each.request, each.reply) for each in recording.exchanges],
        )
        model = RecordedModel(recording, AccountedModel(opener(settings.model), account))

    def source_of(node: Node) -> str:
        return folder.blobs.get_text(node.source_blob) if node.source_blob else ""

    try:
        yield ModelAgent(model, source_of=source_of)
    finally:
        model.close()


def _copy_recording(source: Path, target: Path) -> None:
    """The replies of another run into this one, so that it is whole by itself; nothing when they are there."""
    if target.is_file():
        return
    file = source / FILE_NAME if source.is_dir() else source
    exchanges, _ = read_exchanges(file)
    if not exchanges:
        raise UsageError(f"{source} holds no recorded replies", hint=f"name a run folder with {FILE_NAME}, or the file")
    target.write_bytes(b"".join(encode(each) for each in exchanges))


def account_of(run: Path) -> Account | None:
    """What the models of a run have cost; None where none was asked.

    Raises:
        StoreError: the recording is damaged.
    """
    exchanges, _ = read_exchanges(run / FILE_NAME)
    return Account(paid=[(each.request, each.reply) for each in exchanges]) if exchanges else None
