"""From a model's text to what was asked for, however it is wrapped: fences, prose around, wrong tags, cut off.

Each function raises `Malformed` with a complaint that says to the model what is wrong and what is expected.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from kernelwright.agent.model.anchors import BEGIN, END, Malformed
from kernelwright.agent.model.edits import edits_of_patch, has_edits, is_patch
from kernelwright.json_text import read_json_text
from kernelwright.llm.base import MOST_REPLY_CHARACTERS, Reply

MOST_CHARACTERS = MOST_REPLY_CHARACTERS
"""The longest reply; a longer one is no kernel."""

MOST_JSON_STARTS = 200
"""Braces at which an object is looked for in a reply without fences."""

NO_CODE = frozenset(
    ("toml", "json", "diff", "patch", "bash", "sh", "shell", "text", "txt", "console", "yaml", "output")
)
"""Tags of blocks that are no source. All other tags are: models call OpenCL `c`, `cpp`, `glsl` and worse."""

FAMILIES = (
    "memory", "vector", "tiling", "reduction", "arithmetic", "layout", "parallelism", "launch", "fusion", "other",
)  # fmt: skip
"""What a plan may call itself; relatives are judged together."""

_FENCE = re.compile(r"^ {0,3}(?P<mark>`{3,}|~{3,})[ \t]*(?P<tag>[\w+#.-]*)(?P<rest>.*)$")
_SLUG = re.compile(r"[^a-z0-9]+")
_COMMENT_MARK = re.compile(r"^//(?!/) ?")
_TABLE = re.compile(r"\s*\[{1,2}(parameters|constraints|defines|launch|scratch)\]{1,2}[ \t]*(#.*)?(\n|$)")
"""The first line of a template header."""

_T = TypeVar("_T", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class _FencedBlock:
    """One fenced block."""

    tag: str
    """In lower case; empty where there is none."""
    text: str
    is_closed: bool


def fenced_blocks(text: str) -> tuple[_FencedBlock, ...]:
    """All fenced blocks in order; the last one may be open.

    Where the next block begins before one has ended, its end was forgotten.
    """
    blocks: list[_FencedBlock] = []
    mark, tag, lines = "", "", list[str]()
    for line in text.replace("\r\n", "\n").split("\n"):
        fence = _FENCE.match(line)
        is_like = fence is not None and fence["mark"][0] == mark[:1] and len(fence["mark"]) >= len(mark)
        begins = fence is not None and "`" not in fence["rest"] and (not mark or bool(is_like and fence["tag"]))
        if mark and (begins or (is_like and not line.strip(" \t`~"))):
            blocks.append(_FencedBlock(tag, "\n".join(lines), is_closed=True))
            mark = ""
        elif mark:
            lines.append(line)
        if fence is not None and begins:
            mark, tag, lines = fence["mark"], fence["tag"].lower(), []
    if mark:
        blocks.append(_FencedBlock(tag, "\n".join(lines), is_closed=False))
    return tuple(blocks)


def prose(text: str) -> str:
    """What a reply says outside of its blocks, as one line."""
    for block in fenced_blocks(text):
        text = text.replace(block.text, " ", 1) if block.text else text
    return " ".join(word for word in text.split() if not word.startswith(("```", "~~~")))


def code_of(reply: Reply, entry: str = "") -> str:
    """The one source in a reply.

    Args:
        reply: a model's.
        entry: the kernel that the source has; of several blocks the one that has it counts, others only illustrate.

    Raises:
        Malformed: there is none, several that differ, or it was cut off.
    """
    _refuse_huge(reply)
    blocks = _code_blocks(reply)
    with_anchors = [each for each in blocks if BEGIN in each.text]
    chosen = with_anchors or [each for each in blocks if entry and _has_kernel(each.text, entry)] or blocks
    if not chosen:
        return _unfenced(reply)
    if len({each.text.strip() for each in chosen}) > 1:
        raise Malformed(
            f"the reply has {len(chosen)} code blocks that differ; give exactly one, with all of the answer in it"
        )
    block = chosen[-1]
    if not block.is_closed and (reply.finish == "length" or (BEGIN in block.text and END not in block.text)):
        raise _cut_off(reply)
    return block.text


def _patches(reply: Reply) -> list[_FencedBlock]:
    """Blocks that are unified diffs, of a reply without a source: beside one they only illustrate it."""
    if any(not is_patch(each.text, each.tag) for each in _code_blocks(reply)):
        return []
    return [each for each in fenced_blocks(reply.text) if is_patch(each.text, each.tag)]


def _code_blocks(reply: Reply) -> list[_FencedBlock]:
    """The blocks that may be a source."""
    blocks = (each for each in fenced_blocks(reply.text) if each.tag not in NO_CODE and each.text.strip())
    return [each for each in blocks if not _is_header(each)]


def _has_kernel(text: str, entry: str) -> bool:
    return re.search(rf"\b{re.escape(entry)}\s*\(", text) is not None


def _is_header(block: _FencedBlock) -> bool:
    """Whether a block is a template header, also where its tag does not say so: no source begins with a table."""
    return bool(block.text.strip()) and (block.tag == "toml" or _TABLE.match(block.text) is not None)


def edits_of(reply: Reply) -> str:
    """The edits in a reply, of all its blocks; empty where it gives none.

    Raises:
        Malformed: the reply is too long, or was cut off within them.
    """
    _refuse_huge(reply)
    blocks = [each for each in fenced_blocks(reply.text) if has_edits(each.text)] or _patches(reply)
    if blocks and not blocks[-1].is_closed and reply.finish == "length":
        raise _cut_off(reply)
    return "\n".join(each.text if has_edits(each.text) else edits_of_patch(each.text) for each in blocks)


def _unfenced(reply: Reply) -> str:
    """A source without a fence, found by its anchors."""
    lines = reply.text.replace("\r\n", "\n").split("\n")
    begins = [i for i, line in enumerate(lines) if BEGIN in line]
    ends = [i for i, line in enumerate(lines) if END in line]
    if len(begins) == 1 and len(ends) == 1 and begins[0] < ends[0]:
        return "\n".join(lines[begins[0] : ends[0] + 1])
    if reply.finish == "length":
        raise _cut_off(reply)
    raise Malformed("the reply has no code block; give the source in one block between ``` fences")


def header_of(reply: Reply) -> str | None:
    """The TOML of a template header in a reply; None where there is none.

    Raises:
        Malformed: there are several that differ, or it was cut off.
    """
    _refuse_huge(reply)
    blocks = [each for each in fenced_blocks(reply.text) if _is_header(each)]
    if not blocks:
        return None
    if len({each.text.strip() for each in blocks}) > 1:
        raise Malformed(f"the reply has {len(blocks)} toml blocks that differ; give one, with the whole header")
    if not blocks[-1].is_closed and reply.finish == "length":
        raise _cut_off(reply)
    lines = [_COMMENT_MARK.sub("", line) for line in blocks[-1].text.split("\n")]
    return "\n".join(line for line in lines if line.strip() not in ("/// kernelwright", "///"))


def object_of(reply: Reply) -> dict[str, Any]:
    """The JSON object in a reply: in a block, or anywhere in the text.

    Raises:
        Malformed: there is none.
    """
    _refuse_huge(reply)
    problem = "the reply has no JSON object; give one, as described, in a ```json block"
    blocks = fenced_blocks(reply.text)
    for block in [*(b for b in blocks if b.tag == "json"), *(b for b in blocks if b.tag != "json")]:
        found, complaint = _loaded(block.text.strip())
        if found is not None:
            return found
        if block.tag == "json":
            problem = complaint
    for found in _objects_in(reply.text):
        return found
    if reply.finish == "length":
        raise _cut_off(reply)
    raise Malformed(problem)


def _loaded(text: str) -> tuple[dict[str, Any] | None, str]:
    try:
        data = read_json_text(text)
    except json.JSONDecodeError as error:
        return None, f"the JSON cannot be read: {error.msg} at line {error.lineno}, column {error.colno}"
    if isinstance(data, dict):
        return data, ""
    return None, f"expected a JSON object, found {type(data).__name__}"


def _objects_in(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    starts = [match.start() for match in re.finditer(r"\{", text)][:MOST_JSON_STARTS]
    for start in starts:
        try:
            data, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(data, dict) and data:
            yield data


def _refuse_huge(reply: Reply) -> None:
    if len(reply.text) > MOST_CHARACTERS:
        raise Malformed(f"the reply is too long; {MOST_CHARACTERS} characters are the most that is read")


def _cut_off(reply: Reply) -> Malformed:
    tokens = reply.usage.output_tokens
    after = f" after {tokens} tokens" if tokens is not None else ""
    return Malformed(f"the reply was cut off{after}; answer more briefly: no comments, no repetition")


# -- what a plan and an analysis must hold


MOST_CLAIM = 300
"""Characters of one claim of an analysis."""

MOST_LABELS = 8
"""Labels of evidence that one claim may cite."""

MOST_TITLE = 80
MOST_GAIN = 200.0
_TIMES = re.compile(r"\s*(about|~|≈)?\s*(?P<number>\d+(\.\d+)?)\s*(x|×|times)\s*", re.IGNORECASE)


class _WishedParameter(BaseModel):
    """A number that a plan leaves to the search."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,40}$")
    values: str = Field(min_length=1, max_length=200)
    why: str = Field(default="", max_length=300)

    @field_validator("values", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        return ", ".join(map(str, value)) if isinstance(value, list) else value


class PlanReply(BaseModel):
    """One plan, as the prompt asks for it."""

    model_config = ConfigDict(extra="ignore")

    title: str = Field(min_length=1, max_length=MOST_TITLE)
    family: str = "other"
    instruction: str = Field(min_length=1, max_length=4000)
    indexing: str = Field(default="unchanged", max_length=3000)
    parameters: list[_WishedParameter] = Field(default_factory=list, max_length=12)
    because: str = Field(default="", max_length=1500)
    risk: str = Field(default="", max_length=1000)
    predicted_gain: float = Field(gt=0.1, le=MOST_GAIN)
    first_line: int = Field(default=0, ge=0)
    last_line: int = Field(default=0, ge=0)
    """Where who carries it out may change the source; 0: anywhere."""
    source: str | None = None
    """The whole new source, or edits of it, where it is written with the plan."""
    header: str | None = None
    """The whole new header of that, TOML."""

    @model_validator(mode="before")
    @classmethod
    def _without_gaps(cls, data: Any) -> Any:
        """A field that says nothing is left out; of title and instruction, one that is left out says what others do."""
        if not isinstance(data, dict):
            return data
        said = {name: each for name, each in data.items() if each is not None and each != ""}
        words = [said[name] for name in ("instruction", "because", "title") if isinstance(said.get(name), str)]
        if words:
            said = {"title": words[-1][:MOST_TITLE], "instruction": words[0], **said}
        return said

    @field_validator("family", mode="before")
    @classmethod
    def _known_family(cls, value: object) -> object:
        return value if value in FAMILIES else "other"

    @field_validator("predicted_gain", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        """Also `1.5x`, as a person says it; what is more than any forecast uses counts as that."""
        found = _TIMES.fullmatch(value) if isinstance(value, str) else None
        number = value if found is None else float(found["number"])
        is_more = isinstance(number, int | float) and MOST_GAIN < number < math.inf
        return MOST_GAIN if is_more else number

    @property
    def details(self) -> str:
        """Instruction, indices and parameters as one text, for who carries it out."""
        lines = [self.instruction]
        if self.indexing.strip().lower().rstrip(".") != "unchanged":
            lines.append(f"Indices and tiles: {self.indexing}")
        if self.parameters:
            told = [f"{each.name} = {each.values}" + (f" ({each.why})" if each.why else "") for each in self.parameters]
            lines.append(f"Parameters: {'; '.join(told)}")
        return "\n".join(lines)

    @property
    def key(self) -> str:
        """The title as a name."""
        return _SLUG.sub("-", self.title.lower()).strip("-")[:48].strip("-") or "idea"


class Claim(BaseModel):
    """One claim of an analysis, with the labels of the evidence it cites."""

    model_config = ConfigDict(extra="ignore")

    claim: str = Field(min_length=5, max_length=MOST_CLAIM)
    evidence: list[str] = Field(min_length=1, max_length=MOST_LABELS)


class AnalysisReply(BaseModel):
    """What an analyst answers."""

    model_config = ConfigDict(extra="ignore")

    claims: list[Claim]


class _GivenUp(BaseModel):
    """A role's answer that it does not do what it was asked."""

    model_config = ConfigDict(extra="ignore")

    give_up: str = Field(min_length=1, max_length=500)


def _strict(properties: Mapping[str, Any]) -> dict[str, Any]:
    """An object with all of these and nothing else: the form that every service with schemas follows."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


_TEXT: Mapping[str, Any] = {"type": "string"}

_OF_PARTS = ("parameters", "first_line", "last_line")
"""Fields of a plan that does not bring its source, for who carries it out; no prompt asks for them."""

ANALYSIS_SCHEMA: Mapping[str, Any] = _strict(
    {
        "claims": {
            "type": "array",
            "items": _strict({"claim": _TEXT, "evidence": {"type": "array", "items": _TEXT}}),
        }
    }
)
"""An analysis's shape."""


def direct_plan_of(reply: Reply) -> PlanReply | str:
    """The plan in a reply for a whole kernel, without parameters, or why its role gives up.

    Raises:
        Malformed: a field is missing or wrong.
    """
    data = {name: value for name, value in object_of(reply).items() if name not in _OF_PARTS}
    return _validated(_GivenUp, data).give_up if _gives_up(data) else _validated(PlanReply, data)


def plan_of(reply: Reply, line_count: int) -> PlanReply | str:
    """The plan in a reply for a source of `line_count` lines, or why its role gives up.

    Raises:
        Malformed: a field is missing or wrong.
    """
    data = object_of(reply)
    if _gives_up(data):
        return _validated(_GivenUp, data).give_up
    plan = _validated(PlanReply, data)
    if (plan.first_line or plan.last_line) and not 1 <= plan.first_line <= plan.last_line <= line_count:
        raise Malformed(
            f"first_line {plan.first_line} and last_line {plan.last_line} are no part of the source, "
            f"whose lines are numbered from 1 to {line_count}"
        )
    return plan


def _gives_up(data: Mapping[str, Any]) -> bool:
    """Whether an object says that its role gives up, and not that it does not."""
    reason = data.get("give_up")
    return reason is not None and str(reason).strip().lower() not in ("", "null", "none", "false", "no")


def written_with(plan: PlanReply, reply: Reply, *, entry: str) -> Reply | None:
    """The source that came with a plan, as a coder would have sent it; None: there is none.

    It stands behind the plan, or in the plan itself where nothing may stand behind it: the whole source, or edits.
    Other blocks without the kernel `entry` only illustrate the plan.
    """
    if plan.source and plan.source.strip():
        toml = f"\n~~~~~~toml\n{plan.header}\n~~~~~~" if plan.header and plan.header.strip() else ""
        return replace(reply, text=f"~~~~~~c\n{plan.source}\n~~~~~~{toml}")
    if edits_of(reply):
        return reply
    whole = {each.text.strip() for each in _code_blocks(reply) if _has_kernel(each.text, entry)}
    return reply if len(whole) == 1 else None


def claims_of(reply: Reply, labels: frozenset[str]) -> tuple[Claim, ...]:
    """The claims in a reply that cite nothing but given evidence; the others are left out.

    Raises:
        Malformed: it is no analysis.
    """
    found = _validated(AnalysisReply, object_of(reply)).claims
    return tuple(each for each in found if set(each.evidence) <= labels)


def given_up(reply: Reply) -> str | None:
    """Why a role declines, when that is all that its reply says."""
    if any(each.tag not in NO_CODE for each in fenced_blocks(reply.text)):
        return None
    try:
        data = object_of(reply)
        return _validated(_GivenUp, data).give_up if _gives_up(data) else None
    except Malformed:
        return None


def _clipped(kind: type[BaseModel], data: Mapping[str, Any]) -> dict[str, Any]:
    """The same with words and lists cut where they are longer than is read: the rest says enough."""
    found = dict(data)
    for name, each in kind.model_fields.items():
        value = found.get(name)
        longest = [bound.max_length for bound in each.metadata if getattr(bound, "max_length", None) is not None]
        if longest and isinstance(value, str | list):
            value = found[name] = value[: min(longest)]
        for inner in get_args(each.annotation):
            if isinstance(inner, type) and issubclass(inner, BaseModel) and isinstance(value, list):
                found[name] = [_clipped(inner, one) if isinstance(one, dict) else one for one in value]
    return found


def _validated(kind: type[_T], data: dict[str, Any]) -> _T:
    try:
        return kind.model_validate(_clipped(kind, data))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, each['loc'])) or 'object'}: {each['msg']}" for each in error.errors()[:6]]
        raise Malformed("the JSON object is not as described: " + "; ".join(problems)) from None
