"""A small recorded space in the three formats that the benchmark reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

A_VALUES = [1, 2, 4, 8, 16, 32, 64, 128]
B_VALUES = list(range(150))
CONDITION = "A * B <= 8000"


def write_recording(folder: Path, *, device: str = "Sim", condition: str = CONDITION, drop_count: int = 0) -> Path:
    """A smooth space of some thousand configs, some failing, each evaluation costing about a second."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    rows = [[i, j] for i, a in enumerate(A_VALUES) for j, b in enumerate(B_VALUES) if a * b <= 8000]
    rng.shuffle(rows)
    rows = rows[: len(rows) - drop_count]
    index = np.array(rows, dtype=np.int16)
    time_ms = 1 + (index[:, 0] - 4.0) ** 2 + 0.004 * (index[:, 1] - 90.0) ** 2 + 0.01 * rng.random(len(rows))
    failed = index[:, 0] == 1
    time_ms[failed] = np.nan
    zeros = np.zeros(len(rows), dtype=np.float32)
    arrays: dict[str, Any] = {
        "meta": np.array(json.dumps({"tune_params": {"A": A_VALUES, "B": B_VALUES}})),
        "config_index": index,
        "time_ms": time_ms,
        "error": np.where(failed, "RuntimeFailedConfig", ""),
        "compile_ms": zeros + 900,
        "verification_ms": np.where(failed, np.nan, 0).astype(np.float32),
        "benchmark_ms": np.where(failed, np.nan, 100).astype(np.float32),
        "framework_ms": zeros,
        "strategy_ms": zeros,
    }
    np.savez(folder / f"toy__{device}.npz", **arrays)
    t1 = {
        "ConfigurationSpace": {
            "TuningParameters": [{"Name": "A", "Default": 1}, {"Name": "B", "Default": 0}],
            "Conditions": [{"Expression": condition, "Parameters": ["A", "B"]}],
        }
    }
    (folder / "toy.json").write_text(json.dumps(t1))
    return folder


def cache_document(count: int = 400) -> dict[str, Any]:
    """The same kind of space as Kernel Tuner's cache file: the values are a subset, one word is a text."""
    rng = np.random.default_rng(5)
    cache: dict[str, Any] = {}
    for place in rng.choice(2 * 8 * 60, count, replace=False):
        mode, a, b = ("fast", "exact")[place % 2], A_VALUES[place // 2 % 8], int(place // 16)
        entry: dict[str, Any] = {"mode": mode, "A": a, "B": b, "compile_time": 700.0, "verification_time": 0.0}
        entry["time"] = 1.0 + abs(a - 16) / 8 + abs(b - 40) / 20 + (mode == "exact") + float(rng.random()) / 100
        entry |= {"benchmark_time": 250.0, "framework_time": 50.0, "strategy_time": 0.0}
        if place % 11 == 0:
            entry |= {"time": "RuntimeFailedConfig", "benchmark_time": 0.0}
        cache[f"{mode},{a},{b}"] = entry
    return {
        "device_name": "Some Device",
        "kernel_name": "blur",
        "problem_size": [10, 10],
        "tune_params_keys": ["mode", "A", "B"],
        "tune_params": {"mode": ["fast", "exact"], "A": A_VALUES, "B": list(range(60))},
        "objective": "time",
        "cache": cache,
    }


def t4_document(count: int = 300) -> dict[str, Any]:
    """Results as tuners exchange them, in milliseconds; one configuration twice."""
    results = []
    for entry in cache_document(count)["cache"].values():
        failed = isinstance(entry["time"], str)
        results.append(
            {
                "configuration": {name: entry[name] for name in ("mode", "A", "B")},
                "invalidity": "runtime" if failed else "correct",
                "correctness": int(not failed),
                "objectives": ["time"],
                "times": {
                    "compilation": 700.0,
                    "benchmark": 0.0 if failed else 250.0,
                    "framework": 50.0,
                    "search_algorithm": 0.0,
                    "validation": 0.0,
                    "runtimes": [] if failed else [entry["time"]] * 3,
                },
                "measurements": [] if failed else [{"name": "time", "value": entry["time"], "unit": "ms"}],
            }
        )
    metadata = {"device": "Some Device", "timeunit": "milliseconds"}
    return {"schema_version": "1.0.0", "metadata": metadata, "results": [*results, results[0]]}
