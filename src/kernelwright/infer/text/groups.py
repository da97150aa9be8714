"""Cooperative groups of blocks and warps in the language's own words: `warp.thread_rank()` is `threadIdx.x % 32`.

That holds where blocks have one axis, which whoever asks has seen. A file that does more with groups stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kernelwright.source.lexer import directives, masked, matching

_OF = r"(?:cg\s*::\s*|cooperative_groups\s*::\s*)?"
_BLOCK = re.compile(rf"\b(?:const\s+)?(?:auto|{_OF}thread_block)\s+(\w+)\s*=\s*{_OF}this_thread_block\s*\(\s*\)\s*;")
_TILE = re.compile(
    rf"\b(?:const\s+)?(?:auto|{_OF}thread_block_tile\s*<\s*32\s*(?:,[^<>;]*)?>)\s+(\w+)\s*=\s*{_OF}tiled_partition\s*<\s*32\s*>"
    rf"\s*\(\s*(?:\w+|{_OF}this_thread_block\s*\(\s*\))\s*\)\s*;"
)
_OF_BLOCK = {
    "thread_rank()": "threadIdx.x", "size()": "blockDim.x", "num_threads()": "blockDim.x", "sync()": "__syncthreads()",
    "group_index().x": "blockIdx.x", "thread_index().x": "threadIdx.x",
}  # fmt: skip
_OF_TILE = {
    "thread_rank()": "(threadIdx.x % 32)", "size()": "32", "num_threads()": "32", "sync()": "__syncwarp()",
    "meta_group_rank()": "(threadIdx.x / 32)", "meta_group_size()": "(blockDim.x / 32)",
    **{f"{name}(": f"__{name}_sync(0xffffffffu, " for name in ("shfl", "shfl_xor", "shfl_down", "shfl_up")},
}  # fmt: skip
_REDUCE = rf"\b{_OF}reduce\s*\(\s*{{tile}}\s*,"
_OPERATOR = re.compile(
    rf",\s*{_OF}(plus|greater|less)\s*<\s*(float|double|int|unsigned|unsigned int)\s*>\s*(?:\{{\s*\}}|\(\s*\))\s*\)"
)
_JOINED = {"plus": "v + w", "greater": "v > w ? v : w", "less": "v < w ? v : w"}
_LEFT = re.compile(
    r"\b(?:cg|cooperative_groups)\s*::|\b(?:tiled_partition|labeled_partition|binary_partition|this_thread_block"
    r"|this_grid|coalesced_threads|coalesced_group|thread_block_tile|thread_block|thread_group|grid_group)\b"
)
_HEADER = re.compile(r"<cooperative_groups(?:/\w+)?\.h>")
_ALIAS = re.compile(r"\bnamespace\s+cg\s*=\s*cooperative_groups\s*;|\busing\s+namespace\s+cooperative_groups\s*;")


def plain_groups(source: str) -> str:
    """The source without cooperative groups; the same one where it has none, or uses them in other ways.

    Lines keep their numbers.
    """
    code = masked(source)
    if "cooperative_groups" not in source:
        return source
    blocks, tiles = ([each[1] for each in pattern.finditer(code)] for pattern in (_BLOCK, _TILE))
    text = source
    for pattern in (_TILE, _BLOCK, _ALIAS):
        text = pattern.sub(lambda found: "\n" * found[0].count("\n"), text)
    for names, words in ((blocks, _OF_BLOCK), (tiles, _OF_TILE)):
        for name in dict.fromkeys(names):
            text = _spelled(text, name, words)
    used: dict[str, str] = {}
    for tile in dict.fromkeys(tiles):
        text = _reduced(text, tile, used)
    own = rf"\b(?:{'|'.join((*blocks, *tiles))})\s*(?:\.|,|\))" if blocks or tiles else ""
    code = masked(text)
    if _LEFT.search(code) or (own and any(re.search(own, each) for each in _of_device(code))):
        return source
    headers = [each for each in directives(code) if each.word == "include" and _HEADER.match(each.rest.strip())]
    if used and not headers:  # their functions would stand nowhere
        return source
    for each in reversed(headers):
        text = text[: each.start] + (" ".join(used.values()) if each is headers[0] else "") + text[each.end :]
    return text


def _of_device(code: str) -> Iterator[str]:
    """What runs on the device, from `__global__` or `__device__` to its body's end: the host's names are others."""
    for found in re.finditer(r"\b__(?:global|device)__\b[^;{}]*\{", code):
        yield code[found.start() : matching(code, found.end() - 1) or len(code)]


def _spelled(text: str, name: str, words: Mapping[str, str]) -> str:
    for method, plain in words.items():
        pattern = re.escape(method).replace(r"\(\)", r"\s*\(\s*\)").replace(r"\.", r"\s*\.\s*")
        text = re.sub(rf"\b{name}\s*\.\s*{pattern}", plain.replace("\\", ""), text)
    return text


def _reduced(text: str, tile: str, used: dict[str, str]) -> str:
    """Reductions over a warp as calls of functions that shuffle; their texts by name are added to `used`."""
    at = 0
    while found := re.compile(_REDUCE.format(tile=tile)).search(text, at):
        operator = _OPERATOR.search(text, found.end())
        if operator is None or ";" in text[found.end() : operator.start()]:
            at = found.end()
            continue
        kind, c_type = operator[1], operator[2]
        name = f"warp_{kind}_{c_type.replace(' ', '_')}"
        while name not in used and re.search(rf"\b{name}\b", text):
            name += "_"
        used[name] = (
            f"static __device__ __forceinline__ {c_type} {name}({c_type} v) {{ for (int o = 16; o > 0; o /= 2) "
            f"{{ const {c_type} w = __shfl_xor_sync(0xffffffffu, v, o); v = {_JOINED[kind]}; }} return v; }}"
        )
        text = (
            text[: found.start()] + f"{name}({text[found.end() : operator.start()].strip()})" + text[operator.end() :]
        )
        at = found.start() + len(name)
    return text
