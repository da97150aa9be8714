"""Detours that a Triton file of a model could take around the fence: none passes."""

from __future__ import annotations

import pytest
from test_model_triton import HEAD, kernel, top

from kernelwright.agent.model.anchors import Malformed
from kernelwright.agent.model.fences.triton_text import check_triton_source

BODIES = {
    "module-of-builtin": "x = max.__self__.open('x')",
    "class-of-range": "x = range.__class__",
    "method-of-type": "x = int.from_bytes(n)",
    "method-of-float": "x = float.fromhex('1')",
    "builtins-of-len": "x = len.__self__.eval('1')",
    "method-of-text": "x = ''.join(n)",
    "percent-of-text": "x = '%(a)s' % n",
    "either-function": "x = (tl.load if n else open)(x_ptr)",
    "or-function": "x = (n or open)(x_ptr)",
    "indexed-function": "x = (tl.load, open)[1](x_ptr)",
    "called-result-of-range": "x = tl.range(n)(open)",
    "function-of-keyword": "x = tl.reduce(n, 0, combine_fn=eval)",
    "dtype-of-builtin": "x = tl.cast(n, dtype=open)",
    "constexpr-of-builtin": "x = tl.constexpr(open)",
    "attribute-of-constexpr": "x = tl.constexpr.__init__",
    "call-of-load": "x = tl.load.__call__(x_ptr)",
    "function-of-kernel": "x = k.fn(x_ptr)",
    "globals-of-kernel": "x = k.__globals__",
    "launch-of-kernel": "k[(1,)](x_ptr)",
    "run-of-kernel": "k.run(x_ptr)",
    "source-of-kernel": "x = k.src",
    "tensor-made": "x = tl.tensor(n, tl.int32)",
    "dtype-made": "x = tl.dtype('fp32')",
    "builtin-decorator": "x = tl.builtin(n)",
    "constexpr-function": "x = tl.constexpr_function(open)",
    "long-path": "x = triton.language.core.os",
    "class-behind-value": "x = n.value.__class__",
    "class-behind-type": "x = n.type.element_ty.__class__",
    "init-behind-shape": "x = n.shape.__init__",
    "added-to-module": "tl += n",
    "added-to-attribute": "tl.load += n",
    "added-to-kernel": "k += n",
    "typed-attribute": "n.x: int = 1",
    "annotated-call": "y: (lambda: 1)() = 1",
    "import-in-else": "for i in range(3):\n    pass\nelse:\n    import os",
    "import-in-elif": "if n:\n    pass\nelif x_ptr:\n    import os",
    "walrus-in-slice": "x = n[(y := open):]",
    "lambda-in-default-of-get": "x = n[lambda: open]",
    "starred-index": "x = n[*open(0)]",
    "set-of-calls": "x = {open(0)}",
    "dict-of-calls": "x = {1: open(0)}",
    "call-in-comparison": "x = 1 < open(0) < 2",
    "call-in-return": "return open(0)",
    "call-in-while": "while open(0):\n    pass",
    "call-in-range": "for i in range(open(0)):\n    pass",
    "call-in-unary": "x = -open(0)",
    "call-in-static-range": "for i in tl.static_range(0, open(0)):\n    pass",
    "async-for": "async for i in n:\n    pass",
    "debug-name": "x = __debug__",
    "name-of-file": "x = __file__",
    "loader": "x = __loader__.get_data('/etc/passwd')",
    "spec": "x = __spec__",
    "help": "help()",
    "exit": "exit()",
    "raised-exit": "raise SystemExit",
    "complex": "x = 1j",
    "text-of-new-lines": "x = '''a\nimport os'''",
    "text-of-escapes": "x = '\\x00'",
}
FILES = {
    "statements-in-a-line": top("A = 1; import os"),
    "import-with-shared-line": "import triton; import os\n",
    "import-language-under-other-name": HEAD.replace("as tl", "as print"),
    "constexpr-class": top("class tl(tl.constexpr): pass"),
    "aliased-decorator": top("jit = triton.jit\n@jit\ndef f(x): pass"),
    "decorated-twice-by-kernel": HEAD + "@triton.jit\n@triton.jit\ndef k(x):\n    pass\n",
    "default-of-conditional": kernel("pass", arguments="x=1 if open(0) else 2"),
    "default-positional-call": kernel("pass", arguments="x=open(0), /"),
    "annotation-conditional": kernel("pass", arguments="x: int if open(0) else int"),
    "kwargs": kernel("pass", arguments="**x"),
    "constant-of-comparison": top("A = 1 < open(0)"),
    "constant-of-dict": top("A = {'a': open(0)}"),
    "constant-of-negative-call": top("A = -open(0)"),
    "constant-of-starred": top("A = (*open(0),)"),
    "all": top("__all__ = 'x'"),
    "path": top("__path__ = 'x'"),
}


@pytest.mark.parametrize("source", [*map(kernel, BODIES.values()), *FILES.values()], ids=[*BODIES, *FILES])
def test_no_detour_passes(source: str) -> None:
    with pytest.raises(Malformed, match="the Triton source is refused"):
        check_triton_source(source)
