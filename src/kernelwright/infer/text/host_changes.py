"""What host code makes of a value in several statements: `n *= 2;`, `if (n % 64) n += 64 - n % 64;`, `return`s."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kernelwright.infer.text.host import split_commas
from kernelwright.source.lexer import matching

_MOST_CHANGES = 4
_COMPARED = re.compile(r"[<>=!]=|[<>]")
_IF = re.compile(r"\s*(?:else\s+)?if\s*\(")
_RETURN = re.compile(r"\s*(?:else\b\s*)?\{?\s*return\b\s*([^;{}]+);\s*\}?")
_INTEGER = r"(?:int|unsigned|long|size_t|short|u?int\w*_t)"
_ONLY_READ = re.compile(r"(?:cuda|hip)Memcpy\w*|f?printf|memcpy|clSetKernelArg|clEnqueueWrite\w+")


def changed_value(name: str, value: str, start: int, code: str) -> str | None:
    """A C expression for what a name stands for where the code ends; None where that is not read.

    `value`: what it was set to before the offset `start`. Loops and most branches that change it are not read.
    """
    own = re.escape(name)
    changes = re.compile(
        rf"(?<![\w.>\]&]){own}\s*(?:(\+\+|--)|([-+*/%|^]|&(?!&)|<<|>>)?=(?!=)\s*([^;]+);)"
        rf"|(\+\+|--)\s*{own}\b(?!\s*[\[.])"
    )
    for count, each in enumerate(changes.finditer(code, start)):
        if _is_in_loop_head(code, each.start()):
            continue
        condition = _condition(code, each.start(), start)
        if condition is None or count > _MOST_CHANGES:
            return None
        said = (split_commas(each[3] or "1") or ["1"])[0]
        sign = each[2] or ("" if each[3] else (each[1] or each[4])[0])
        said = _with(said, name, value)
        made = f"({value}) {sign} ({said})" if sign else said
        value = f"{_as_condition(_with(condition, name, value))} ? ({made}) : ({value})" if condition else made
    return value


def _with(text: str, name: str, value: str) -> str:
    return re.sub(rf"(?<![\w.>]){re.escape(name)}\b", lambda _: f"({value})", text)


def _as_condition(text: str) -> str:
    """A condition of C as a comparison."""
    return f"({text})" if _COMPARED.search(text) else f"(({text}) != 0)"


def _is_in_loop_head(code: str, at: int) -> bool:
    """Whether a place is in the brackets of a `for`."""
    opening = max((found.end() - 1 for found in re.finditer(r"\bfor\s*\(", code[:at])), default=None)
    closing = None if opening is None else matching(code, opening)
    return opening is not None and (closing is None or at < closing)


def _condition(code: str, at: int, start: int) -> str | None:
    """When code from `start` to its end reaches a statement: always (empty), where this C condition holds, or None."""
    around = _open_blocks(code, start)
    closed = [each for each in _open_blocks(code, at) if each not in around and matching(code, each) is not None]
    before = code[: closed[0] if closed else at].rstrip()
    if len(closed) > 1 or (closed and not re.search(r"[;{}]\s*$", code[:at])):
        return None
    if before.endswith(")"):
        opening = _opening(before)
        is_if = re.search(r"(?<!\belse)\s+if\s*$|[;{}]if\s*$", before[:opening])
        return before[opening + 1 : -1] if is_if else None
    return "" if not closed and (not before or before[-1] in ";{}") else None


def _open_blocks(code: str, at: int) -> list[int]:
    """Where the blocks begin in which a place is, the outermost first."""
    found: list[int] = []
    for each in re.finditer(r"[{}]", code[:at]):
        if each[0] == "{":
            found.append(each.start())
        elif found:
            found.pop()
    return found


def _opening(text: str) -> int:
    """Where the bracket opens that closes at the end of a text; 0 where none does."""
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        depth += (text[index] == ")") - (text[index] == "(")
        if depth == 0:
            return index
    return 0


def returned_value(body: str) -> str | None:
    """A C expression for what a function returns that does nothing else, or only asks what to return."""
    cases: list[tuple[str, str]] = []
    at = 0
    while found := _IF.match(body, at):
        closing = matching(body, found.end() - 1)
        chosen = None if closing is None else _RETURN.match(body, closing)
        if closing is None or chosen is None:
            return None
        cases.append((body[found.end() : closing - 1], chosen[1]))
        at = chosen.end()
    last = _RETURN.match(body, at)
    if last is None or body[last.end() :].strip(" \t\n\r}"):
        return None
    value = last[1]
    for condition, chosen_text in reversed(cases):
        value = f"{_as_condition(condition)} ? ({chosen_text}) : ({value})"
    return value


def read_from_file(name: str, start: int, code: str) -> int | None:
    """Where an integer has got its value from a stream or by `scanf`, behind an offset; None: it gets none there."""
    own = re.escape(name)
    read = rf"(?:^|[;{{}})])\s*[\w.:]+\s*(?:>>\s*[\w.\[\]]+\s*)*>>\s*{own}\b|\b\w*scanf\s*\([^;]*&\s*{own}\b"
    found = list(re.finditer(read, code[start:]))
    is_integer = re.search(rf"\b{_INTEGER}\b[\w\s,=]*\b{own}\b\s*[,;=]", code)
    return start + found[-1].end() if found and is_integer else None


def asked_of_device(name: str, start: int, code: str) -> int | None:
    """Where a name has got the number of multiprocessors, behind an offset; None: it gets it nowhere there."""
    call = rf"GetAttribute\s*\(\s*&\s*{re.escape(name)}\s*,\s*\w*MultiProcessorCount\b[^;]*"
    found = list(re.finditer(call, code[start:]))
    return start + found[-1].end() if found else None


def is_set_by_call(name: str, start: int, code: str, functions: Mapping[str, tuple[Sequence[str], str]]) -> bool:
    """Whether a call behind an offset gets the address of a name, and may store there.

    `functions`: by name, parameters and body of those that are known.
    """
    for each in re.finditer(rf"(?<=[(,])\s*&\s*{re.escape(name)}\s*(?=[,)])", code[start:]):
        head = code[: start + each.start()]
        opening = _opening(f"{head})")
        called = re.search(r"(\w+)\s*$", head[:opening])
        if re.search(r"[;{}]", head[opening:]):
            continue  # in a list, which no call gets here
        place = len(split_commas(f"{head[opening + 1 :]}x")) - 1
        parameters, body = functions.get(called[1] if called else "", ((), ""))
        if place < len(parameters):
            formal = re.escape(parameters[place])
            stored = rf"\*\s*{formal}\b\s*(?:[-+*/]?=(?!=)|\+\+|--)|\b{formal}\s*\[\s*\w+\s*\]\s*=(?!=)"
            is_set = re.search(stored, body) is not None
        else:
            is_set = called is None or place == 0 or not _ONLY_READ.fullmatch(called[1])
        if is_set:
            return True
    return False


def member_value(variable: str, member: str, code: str) -> str | None:
    """What `Shape s = {4, 8};` or `int rows = 4;` in the structure says of a member; None where nothing does.

    Code that stores into members of this name elsewhere, or has two such variables, is not read.
    """
    made = re.findall(rf"\b(\w+)\s+{re.escape(variable)}\s*(?:=\s*)?\{{([^{{}};]*)\}}\s*;", code)
    plain = re.findall(rf"\b(\w+)\s+{re.escape(variable)}\s*;", code)
    if len(made) + len(plain) != 1:
        return None
    kind, listed = made[0] if made else (plain[0], "")
    own = re.escape(kind)
    bodies = re.findall(
        rf"\b(?:struct|class)\s+{own}\s*\{{([^{{}}()]*)\}}|\bstruct\s*\w*\s*\{{([^{{}}()]*)\}}\s*{own}\s*;", code
    )
    fields = _fields(bodies[0][0] or bodies[0][1]) if len(bodies) == 1 else []
    names, values = [name for name, _ in fields], split_commas(listed)
    if member not in names or any(re.match(r"\s*\.", each) for each in values):
        return None
    place = names.index(member)
    return values[place] if place < len(values) else (fields[place][1] or None if not values else "0")


def _fields(body: str) -> list[tuple[str, str]]:
    """Names of a structure's fields with their initial values, in order; none where one is an array or unread."""
    found: list[tuple[str, str]] = []
    for statement in filter(None, (each.strip() for each in body.split(";"))):
        for part in split_commas(re.sub(r"\b(?:public|private)\s*:", "", statement)):
            field = re.fullmatch(r"(?:[\w:]+[\s*]+)*(\w+)\s*(?:=\s*(.+))?", part.strip(), re.DOTALL)
            if field is None or "static" in statement:
                return []
            found.append((field[1], (field[2] or "").strip()))
    return found


def element_value(array: str, index: int, before: str, code: str) -> str | None:
    """What the one list of an array, or else its last `array[index] = ...;`, says; None where it may be another.

    `before`: the code that has run; `code`: all of it.
    """
    own = re.escape(array)
    stored = list(re.finditer(rf"(?<![\w.]){own}\s*\[\s*(\w+)\s*\]\s*(\W?=)(?!=)\s*([^;]+);", before))
    counted = re.search(rf"(?<![\w.]){own}\s*\[[^\]]*\]\s*(?:\+\+|--)|(?:\+\+|--)\s*{own}\s*\[", before)
    lists = re.findall(rf"\b{own}\s*(?:\[\s*\w*\s*\])?\s*(?:=\s*)?\{{([^{{}}]*)\}}\s*;", code)
    is_plain = all(
        each[1].isdigit() and each[2].strip() == "=" and _condition(before, each.start(), 0) == "" for each in stored
    )
    if counted or not is_plain:
        return None
    values: list[str] = [each[3] for each in stored if int(each[1]) == index]
    listed = split_commas(lists[0]) if len(lists) == 1 else []
    if values:
        return values[-1]
    return listed[index] if index < len(listed) else None
