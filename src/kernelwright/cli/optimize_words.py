"""Words that only `optimize` has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

KernelArgument = Annotated[
    Path | None,
    typer.Argument(
        help="A kernel (.cl, .cu, .hip; FILE::kernel of several), a problem's folder, or a folder of these.",
        show_default=False,
    ),
]
ValuesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Of a kernel: by-value arguments, as in rows=2048 eps=1e-5. Further problems, each with its own.",
        show_default=False,
    ),
]
GridOption = Annotated[str | None, typer.Option(help="Of a kernel: blocks along x, y, z, as in 64,8 or rows.")]
BlockOption = Annotated[str | None, typer.Option(help="Of a kernel: threads of a block along x, y, z.")]
ProblemOption = Annotated[
    Path | None, typer.Option(help="Of a kernel: where its problem is written (default: beside it).")
]
RepeatedRunOption = Annotated[
    Path | None, typer.Option(help="Repeat this run offline from its record, instead of running a problem.")
]
BudgetOption = Annotated[
    str, typer.Option(help="When to stop, both stages together: 120s, 5m, 400 (evaluations), or several: 5m,400.")
]
ProfileOption = Annotated[
    Path | None,
    typer.Option(
        help="Of several problems: where the time goes, by Nsight Systems (cuda_gpu_kern_sum as CSV), a PyTorch "
        "profiler's trace, or a CSV problem,time."
    ),
]
ModelOption = Annotated[
    str, typer.Option(help="Who proposes: rules (no key, no network), PROVIDER:NAME, openai:NAME@URL, replay:RUN.")
]
MaxCostOption = Annotated[str | None, typer.Option(help="Most money for a model's replies, e.g. 5usd.")]
MaxTokensOption = Annotated[int | None, typer.Option(help="Most tokens for a model's requests and replies.")]
MaxAttemptsOption = Annotated[
    int | None, typer.Option(help="Most structures to ask for, repairs and refused ones included.", min=1)
]
PolicyOption = Annotated[str, typer.Option(help="Who chooses where the budget goes: gain, lift, direct.")]
StartOption = Annotated[
    str, typer.Option(help="all: the problem's own template is tried too; baseline: what the baseline becomes.")
]
SearcherOption = Annotated[str, typer.Option(help="Of each structure's parameters; as for `tune`.")]
PartOption = Annotated[
    int | None,
    typer.Option(help="Elsewhere: evaluations asked for with each new structure (24).", min=1, max=1000),
]
MemoryFlag = Annotated[bool, typer.Option(help="Use what earlier runs have learnt, and add to it.")]
