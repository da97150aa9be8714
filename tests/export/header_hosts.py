"""Hosts that know nothing but an exported header, made from it and a few lines of C."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from kernelwright.export.run import export_run

GLUE = """#include "{header}"
int most_arguments(void) {{
    {prefix}_launch launch;
    return (int)(sizeof launch.arguments / sizeof launch.arguments[0]);
}}
int step_count(void) {{ return {count}; }}
static {prefix}_sizes sizes_of(const long long *values) {{
    {prefix}_sizes sizes;
    memcpy(&sizes, values, sizeof sizes);
    return sizes;
}}
const char *build_options(const long long *values) {{
    {prefix}_sizes sizes = sizes_of(values);
    const {prefix}_config *config = {prefix}_select(&sizes);
    return config == NULL ? NULL : config->build_options;
}}
{prefix}_launch launch_of(int step, const long long *values) {{
    {prefix}_sizes sizes = sizes_of(values);
    const {prefix}_config *config = {prefix}_select(&sizes);
    (void)step;
{choices}}}
"""

SHOW = """#include <stdio.h>
#include "{header}"
static void show(const long long *values) {{
    {prefix}_sizes sizes;
    const {prefix}_config *config;
    memcpy(&sizes, values, sizeof sizes);
    config = {prefix}_select(&sizes);
    printf("%s", config->build_options);
{launches}    printf("\\n");
}}
int main(void) {{
{calls}    return 0;
}}
"""


def gcc(*words: object) -> None:
    """Compile; every warning is an error."""
    found = shutil.which("gcc") or pytest.skip("no gcc on this machine")
    subprocess.run([found, "-std=c99", "-Wall", "-Wextra", "-Werror", *map(str, words), "-lm"], check=True, timeout=300)


def built_for(
    header: Path, shapes: Sequence[Mapping[str, int]], launches: Sequence[str], folder: Path
) -> list[tuple[str, list[str]]]:
    """For each shape the options of the header's choice there, and what its kernels are called.

    `launches` are the functions of the header, without what all of them begin with.
    """
    calls = "".join(
        f"    {{ const long long values[] = {{ {', '.join(map(str, sizes.values()))} }}; show(values); }}\n"
        for sizes in shapes
    )
    lines = "".join(f'    printf("|%s", {header.stem}_launch_{each}(config, &sizes).entry);\n' for each in launches)
    (folder / "show.c").write_text(SHOW.format(header=header, prefix=header.stem, launches=lines, calls=calls))
    gcc("-o", folder / "show", folder / "show.c")
    out = subprocess.run([folder / "show"], capture_output=True, text=True, check=True, timeout=300).stdout
    found = [line.split("|") for line in out.splitlines()]
    return [(options, entries) for options, *entries in found]


def run_host(
    run: Path,
    sizes: Mapping[str, int],
    arrays: Mapping[str, np.ndarray],
    entries: Sequence[str],
    folder: Path,
    *,
    source: Path | None = None,
    options: str | None = None,
) -> dict[str, bytes]:
    """What a host computes with the exported header and source, by output.

    `source` and `options` are built instead of the exported source and the options that the header says.

    Raises:
        AssertionError: the host failed; with what it said.
    """
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    exported, header = export_run(run, folder / "out", formats=["source", "header"])
    prefix = header.stem
    *others, last = [f"return {prefix}_launch_{entry}(config, &sizes);\n" for entry in entries]
    choices = "".join(f"    if (step == {place}) {other}" for place, other in enumerate(others)) + f"    {last}"
    (folder / "glue.c").write_text(GLUE.format(header=header, prefix=prefix, count=len(entries), choices=choices))
    gcc("-shared", "-fPIC", "-o", folder / "glue.so", folder / "glue.c")
    np.savez(folder / "data.npz", **arrays)  # type: ignore[arg-type]
    words = [f"{name}={value}" for name, value in sizes.items()]
    host = Path(__file__).with_name("opencl_host.py")
    instead = {} if options is None else {"BUILD_OPTIONS": options}
    done = subprocess.run(
        [sys.executable, host, folder / "glue.so", source or exported, folder / "data.npz", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={
            **os.environ,
            "POCL_CACHE_DIR": str(folder),
            **instead,
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: data.tobytes() for name, data in np.load(folder / "data.npz").items()}
