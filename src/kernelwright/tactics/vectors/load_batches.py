"""Loops that load several steps before they join the first: what memory answers late is waited for once.

The steps of a batch stand in one loop that is written out, without conditions between them, so that a compiler may
move all their loads to the front; it does so where nothing is stored in between.
"""

from __future__ import annotations

from collections.abc import Sequence


def batched_loop(
    *, c_type: str, name: str, first: str, step: str, vec: str, count: str, body: str, end: str = "kw_full"
) -> Sequence[str]:
    """Lines of a loop from `first` to below `end` in steps of `step * vec`, `count` of them at a time while they last.

    Args:
        c_type: type of the loop's index.
        name: the index, as `body` calls it.
        first: where it starts.
        step: elements between two steps of a thread, in vectors.
        vec: elements of a vector.
        count: steps of a batch.
        body: statements that neither change the index nor leave the loop.
        end: a value that the index must stay below, no other type than the source gave its bound.
    """
    return (
        f"const {c_type} kw_apart = ({step}) * {vec};",
        f"{c_type} kw_at = {first};",
        f"for (; kw_at < {end} && {end} - kw_at > ({count} - 1) * kw_apart; kw_at += {count} * kw_apart) {{",
        "#pragma unroll",
        f"  for (int kw_c = 0; kw_c < {count}; ++kw_c) {{",
        f"    const {c_type} {name} = kw_at + kw_c * kw_apart;",
        f"    {body}",
        "  }",
        "}",
        "#pragma unroll 1",
        f"for ({c_type} {name} = kw_at; {name} < {end}; {name} += kw_apart) {{",
        f"  {body}",
        "}",
    )
