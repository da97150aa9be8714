"""The words by which kernels ask for their thread's place, in CUDA, HIP and OpenCL C."""

from __future__ import annotations

import re

from kernelwright.source import nodes
from kernelwright.tactics.base import Unfit
from kernelwright.tactics.common.dialect import AXES

CUDA_WORDS = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_OPENCL_WORDS = ("get_local_id", "get_group_id", "get_local_size", "get_num_groups", "get_global_id",
                 "get_global_size", "get_global_offset", "get_enqueued_local_size")  # fmt: skip
_HIP_WORD = re.compile(r"hip(Thread|Block)(Idx|Dim)_([xyz])|hipGridDim_([xyz])")
_OTHER_PLACES = frozenset(("get_global_linear_id", "get_local_linear_id", "get_work_dim", "get_sub_group_id",
                           "get_sub_group_local_id", "warpSize", "__laneid"))  # fmt: skip
KINDS_OF_PLACE = {"threadIdx": "local", "blockIdx": "group", "blockDim": "size", "gridDim": "groups",
                   "get_local_id": "local", "get_group_id": "group", "get_local_size": "size",
                   "get_num_groups": "groups", "get_global_id": "global", "get_global_size": "groups",
                   "get_global_offset": "offset", "get_enqueued_local_size": "size"}  # fmt: skip
"""What each word says, whatever its dialect."""


def place_words(node: nodes.Node) -> list[tuple[str, str]]:
    """Every word for the thread's place below a node, with its axis.

    Raises:
        Unfit: one is used in a way that is not followed.
    """
    found: list[tuple[str, str]] = []
    members = 0
    for each in nodes.walk(node):
        match each:
            case nodes.Member(base=nodes.Name(name=word), name=axis) if word in CUDA_WORDS:
                found.append((word, axis))
                members += 1
            case nodes.Name(name=word) if word in CUDA_WORDS:
                members -= 1
            case nodes.Name(name=word) if _HIP_WORD.fullmatch(word):
                found.append((word, word[-1]))
            case nodes.Name(name=word) | nodes.Call(function=word) if word in _OTHER_PLACES:
                raise Unfit(f"it asks for {word}")
            case nodes.Call(function=word, arguments=arguments) if word in _OPENCL_WORDS:
                value = arguments[0].value if len(arguments) == 1 and isinstance(arguments[0], nodes.Literal) else None
                if value is None or value > 2:
                    raise Unfit(f"it calls {word} in a way that is not followed")
                found.append((word, AXES[value]))
            case nodes.OpaqueExpression(reason=reason) | nodes.OpaqueStatement(reason=reason):
                raise Unfit(f"something is not understood: {reason}")
    if members:
        raise Unfit("it asks for the thread's place in a way that is not followed")
    return found


def cuda_word(word: str) -> str:
    """CUDA's spelling of one of HIP's older words."""
    match = _HIP_WORD.fullmatch(word)
    assert match is not None
    if match[1] is None:
        return "gridDim"
    return f"{match[1].lower()}{match[2]}"


def plain_word(word: str) -> str:
    """A word, or CUDA's spelling where it is one of HIP's older ones."""
    return cuda_word(word) if _HIP_WORD.fullmatch(word) else word


def is_word(node: nodes.Node) -> bool:
    """Whether a node is a word for the thread's place by itself."""
    match node:
        case nodes.Member(base=nodes.Name(name=word)):
            return word in CUDA_WORDS
        case nodes.Name(name=word):
            return _HIP_WORD.fullmatch(word) is not None
        case nodes.Call(function=word):
            return word in _OPENCL_WORDS
    return False
