"""What a model writes into a Triton problem: it is Python, so nothing outside the fence becomes a template."""

from __future__ import annotations

import pytest
from triton_problems import HOPPER, KERNEL

from kernelwright.agent.base import Task
from kernelwright.agent.model.anchors import BEGIN, END, Malformed, Region
from kernelwright.agent.model.drafting import body_of, drafted
from kernelwright.agent.written import written_template
from kernelwright.llm.base import Reply
from kernelwright.problem.load.problem import load_problem
from kernelwright.template.load import load_template


def made(folder, body: str, toml: str = ""):
    problem = load_problem(folder)
    written = written_template(load_template(problem))
    header = f"```toml\n{toml}```\n" if toml else ""
    reply = Reply(f"```python\n# {BEGIN}\n{body}\n# {END}\n```\n{header}", "m")
    whole = Region.whole(body_of(written))
    return drafted(reply, task=Task(problem, HOPPER), written=written, region=whole, tactic="x", original=KERNEL)


@pytest.mark.parametrize(
    "body",
    [
        KERNEL.replace("import triton\n", "import triton\nimport os\n"),
        KERNEL + "\n\n__import__('os').system('true')\n",
        KERNEL.replace("@triton.jit", "@print\n@triton.jit"),
        KERNEL.replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr = open('/etc/passwd')"),
        KERNEL.replace("at = tl", "exec('1')\n    at = tl"),
    ],
)
def test_python_that_would_run_is_refused(triton_problem, body):
    with pytest.raises(Malformed, match=r"line \d+"):
        made(triton_problem(), body)


def test_an_honest_rewrite_becomes_a_template_with_a_header_in_pythons_comments(triton_problem):
    body = KERNEL.replace("factor * tl.load", "tl.load").replace("mask=at < n), mask", "mask=at < n) * factor, mask")
    launch = '[launch]\nentry = "scale"\ngrid = ["ceil_div(n, BLOCK)"]\n'
    toml = f"[parameters]\nBLOCK = {{ values = [64, 128], default = 64 }}\n{launch}"
    text = made(triton_problem(), body, toml).text
    assert text.startswith("# /// kernelwright\n# [parameters]\n# BLOCK")
    assert "* factor" in text
