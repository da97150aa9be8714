"""The agent that a run's settings ask for: rules, or models with their recording, their account and their caps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from kernelwright.agent.base import Agent
from kernelwright.agent.composed import lifting, mixed
from kernelwright.agent.model.agent import ModelAgent
from kernelwright.agent.model.context import EvidenceOf
from kernelwright.agent.model.settings import ModelSettings
from kernelwright.agent.rules.agent import RulesAgent
from kernelwright.errors import UsageError
from kernelwright.llm.account import Account, AccountedModel
from kernelwright.llm.base import ChatModel
from kernelwright.llm.chain import Patience
from kernelwright.llm.pace import Gates, TimeLeft
from kernelwright.llm.recorded import FILE_NAME, ExchangeLog, RecordedModel, ReplayedModel, encode, read_exchanges
from kernelwright.optimization.evidence import node_evidence
from kernelwright.optimization.roles_file import RULES, Roles, roles_of
from kernelwright.optimization.settings import REPLAY, OptimizeSettings
from kernelwright.store.run_folder import RunFolder
from kernelwright.tree.model import Node
from kernelwright.tree.registry import DIRECT

Opener = Callable[[str], ChatModel]


@contextlib.contextmanager
def agent_of(
    settings: OptimizeSettings,
    folder: RunFolder,
    *,
    opener: Opener | None = None,
    tell: Callable[[str], None] | None = None,
    time_left: TimeLeft | None = None,
) -> Iterator[Agent]:
    """The agent of a run; models' connections are closed at the end.

    Every request and reply is recorded in the run folder; what is recorded there already is not asked for again.

    Args:
        settings: the run's.
        folder: where replies are recorded; a node's source is read from its blobs.
        opener: gives the model of a name; None: the services, at the pace that the roles say.
        time_left: what the run has left for models; None: no limit. Models of an `opener` of one's own know none.
        tell: of a replay, hears of requests that are not worded as recorded; None: such a request ends the replay.

    Raises:
        UsageError: a replay of what is no recording.
        ModelAuthFailed: there is no key.
        StoreError: the recording cannot be read.
    """
    roles = roles_of(settings.roles)
    if settings.model == RULES:
        yield RulesAgent()
        return
    opener = opener or _opener(roles, time_left or TimeLeft())
    with contextlib.ExitStack() as stack:
        if settings.model.startswith(REPLAY):
            opened = _replayed(settings, roles, folder, tell)
        else:
            opened = _opened(settings, roles, folder, opener, stack)
        players = {role: opened[name] for role, name in roles.models.items() if name in opened}
        evidence = _evidence(settings, roles, folder)
        source_of = functools.partial(_source_of, folder)

        def played(manner: ModelSettings) -> ModelAgent:
            return ModelAgent(
                opened[settings.model], settings=manner, source_of=source_of, evidence_of=evidence, models=players
            )

        asked = _of_run(roles, settings)
        agent: Agent = played(asked)
        if settings.lifts_later:
            agent = lifting(played(dataclasses.replace(asked, is_direct=True)), agent)
        by_rules = {role for role, name in roles.models.items() if name == RULES}
        yield mixed(agent, by_rules) if by_rules else agent


def _of_run(roles: Roles, settings: OptimizeSettings) -> ModelSettings:
    """What the roles' file says, with what the run's other settings say of them.

    Recorded runs that asked whenever they could asked for analyses, too.
    """
    analyses = roles.settings.analyses if "analyses" in settings.roles else not settings.is_sparing
    return dataclasses.replace(
        roles.settings,
        analyses=analyses,
        is_direct=settings.policy == DIRECT,
        carries_best=settings.child_defaults == "parent",
        seed=settings.tune.seed,
    )


def _opener(roles: Roles, time_left: TimeLeft) -> Opener:
    """Opens services at the pace, and with the patience, that the roles say."""
    from kernelwright.llm.providers import open_models

    gates = Gates(roles.pace)
    if roles.timeout_s is None:
        return functools.partial(open_models, gates=gates, left_s=time_left)
    patience = Patience()
    patience = dataclasses.replace(patience, deadline_s=max(patience.deadline_s, 2.0 * roles.timeout_s))
    timeout_s = float(roles.timeout_s)
    return functools.partial(open_models, gates=gates, timeout_s=timeout_s, patience=patience, left_s=time_left)


def _opened(
    settings: OptimizeSettings, roles: Roles, folder: RunFolder, opener: Opener, stack: contextlib.ExitStack
) -> dict[str, ChatModel]:
    """By name every model of the run, all with one recording and one account."""
    recording = ExchangeLog(folder.path / FILE_NAME)
    account = Account(
        [(each.request, each.reply) for each in recording.exchanges],
        most_usd=settings.max_cost_usd,
        most_tokens=settings.max_tokens,
    )
    opened: dict[str, ChatModel] = {}
    for name in _names(settings, roles):
        model = opened[name] = RecordedModel(recording, AccountedModel(opener(name), account))
        stack.callback(model.close)
    return opened


def _replayed(
    settings: OptimizeSettings, roles: Roles, folder: RunFolder, tell: Callable[[str], None] | None
) -> dict[str, ChatModel]:
    """The same names, all answered from one recording."""
    path = folder.path / FILE_NAME
    _copy_recording(Path(settings.model.removeprefix(REPLAY)), path)
    recording = ExchangeLog(path, writable=False)
    replay: ChatModel = RecordedModel(recording, None) if tell is None else ReplayedModel(recording, tell)
    return dict.fromkeys(_names(settings, roles), replay)


def _names(settings: OptimizeSettings, roles: Roles) -> list[str]:
    return list(dict.fromkeys([settings.model, *(name for name in roles.models.values() if name != RULES)]))


def _evidence(settings: OptimizeSettings, roles: Roles, folder: RunFolder) -> EvidenceOf:
    """What is known of nodes; a replay reads no counters, and tells those that the recorded run kept."""
    if settings.model.startswith(REPLAY):
        return node_evidence(folder.path, counted=Path(settings.model.removeprefix(REPLAY)))
    return node_evidence(folder.path, reads_counters=roles.reads_counters)


def _source_of(folder: RunFolder, node: Node) -> str:
    return folder.blobs.get_text(node.source_blob) if node.source_blob else ""


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
