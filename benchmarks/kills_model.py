"""A model for `kills.py`: an OpenAI-compatible server in this process, which counts what it is asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernelwright.agent.model.anchors import BEGIN, END
from kernelwright.errors import StoreError
from kernelwright.llm.recorded import FILE_NAME, read_exchanges

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "llm"))
from chat_server import Answer, ChatServer, answering_server

DELAY_S = 0.3
"""Of each reply, so that some are under way at a kill."""

PLAN = {
    "because": "few bytes are under way",
    "title": "Several elements of a thread",
    "family": "parallelism",
    "instruction": "Let each work-item handle several consecutive elements.",
    "indexing": "base = get_global_id(0) * COUNT, base + k",
    "risk": "the last work-item",
    "predicted_gain": 1.7,
    "give_up": None,
}


class Model:
    """Says the same to the same request; new kernels have other numbers of elements than those before."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self.server: ChatServer

    def __call__(self, body: dict[str, Any]) -> Answer:
        key = json.dumps(body["messages"])
        if key not in self._known:
            self._known[key] = self._reply(body)
        return Answer(self._known[key], delay_s=DELAY_S)

    @property
    def asked(self) -> list[str]:
        """All requests so far, in the order in which they came."""
        return [json.dumps(each["messages"]) for each in self.server.requests]

    def _reply(self, body: dict[str, Any]) -> str:
        text = next(each["content"] for each in body["messages"] if each["role"] == "user")
        if "Your role: plan." in text:
            return json.dumps(PLAN)
        if "Your role: code." in text:
            count = len(self._known) + 2
            launch = f'[launch]\ngrid = ["ceil_div(n, {32 * count})"]\nblock = ["32"]\n'
            return f"Done.\n```c\n{_kernel(str(count))}```\n```toml\n{launch}```\n"
        if "Your role: template." in text and "get_global_id(0) * " in text:
            count = int(text.split("get_global_id(0) * ", 1)[1].split(";", 1)[0])
            header = f'ITEMS = {{ values = {sorted({1, 2, 3, 4, count})}, default = {count}, why = "elements" }}\n'
            header = f'[parameters]\n{header}[launch]\ngrid = ["ceil_div(n, 32 * ITEMS)"]\nblock = ["32"]\n'
            return f"Done.\n```c\n// {BEGIN}\n{_kernel('ITEMS')}// {END}\n```\n```toml\n{header}```\n"
        return '{"claims": []}' if "Your role: analyse." in text else '{"give_up": "there is nothing to do"}'


def _kernel(count: str) -> str:
    return (
        "__kernel void saxpy(__global const float *x, __global float *y, float a, int n)\n{\n"
        f"    int base = get_global_id(0) * {count};\n    for (int k = 0; k < {count}; k++)\n"
        "        if (base + k < n) y[base + k] = a * x[base + k] + y[base + k];\n}\n"
    )


@contextmanager
def asked_model() -> Iterator[Model]:
    """A model that answers at `model.server.url`."""
    model = Model()
    with answering_server(model) as model.server:
        yield model


def paid_replies(run: Path) -> int:
    """How many requests of a run have a reply on record."""
    try:
        return len(read_exchanges(run / FILE_NAME)[0])
    except (StoreError, FileNotFoundError):
        return 0
