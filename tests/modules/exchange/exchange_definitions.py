"""Definitions, workloads and solutions in the schema of FlashInfer-Trace and SOL-ExecBench, written for these tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NORM = """
import torch


@torch.no_grad()
def run(x, weight, eps):
    wide = x.to(torch.float32)
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.to(torch.float32)).to(x.dtype)
"""

DEFINITION: dict[str, Any] = {
    "name": "rms_of_rows",
    "op_type": "norm",
    "axes": {
        "rows": {"type": "var"},
        "groups": {"type": "var"},
        "width": {"type": "const", "value": 64},
        "half": {"type": "expr", "expression": "width // 2"},
    },
    "inputs": {
        "x": {"shape": ["rows", "groups", "width"], "dtype": "bfloat16"},
        "weight": {"shape": ["width"], "dtype": "bfloat16"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "groups", "width"], "dtype": "bfloat16"}},
    "reference": NORM,
}

CUDA = """
#include <torch/extension.h>
#include <cuda_bf16.h>
constexpr int BLOCK = 64;
__global__ void rms(const __nv_bfloat16 *in, const __nv_bfloat16 *w, __nv_bfloat16 *out, int B, float eps) {
  const int total = blockIdx.x * BLOCK + threadIdx.x;
  if (total >= B) return;
  float sum = 0.0f;
  for (int k = 0; k < 64; ++k) { const float v = __bfloat162float(in[total * 64 + k]); sum += v * v; }
  const float s = rsqrtf(sum / 64 + eps);
  for (int k = 0; k < 64; ++k) {
    out[total * 64 + k] = __float2bfloat16(__bfloat162float(in[total * 64 + k]) * s * __bfloat162float(w[k]));
  }
}
void launch(torch::Tensor a, torch::Tensor b, torch::Tensor made, float e) {
  auto B = a.size(0), G = a.size(1);
  const int total = B * G;
  auto *target = (__nv_bfloat16 *)made.data_ptr();
  rms<<<(total + BLOCK - 1) / BLOCK, BLOCK>>>(
      (const __nv_bfloat16 *)a.data_ptr(), (const __nv_bfloat16 *)b.contiguous().data_ptr(), target, total, e);
}
torch::Tensor run(torch::Tensor x, torch::Tensor weight, double eps) {
  auto y = torch::empty_like(x);
  launch(x, weight, y, eps);
  return y;
}
"""

TRITON = """
import torch
import triton
import triton.language as tl


@triton.jit
def rms(x_ptr, w_ptr, y_ptr, eps, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + at, mask=at < width, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + at, mask=at < width, other=0.0).to(tl.float32)
    y = x / tl.sqrt(tl.sum(x * x, axis=0) / width + eps) * w
    tl.store(y_ptr + row * width + at, y.to(y_ptr.dtype.element_ty), mask=at < width)


def run(x, weight, eps, y):
    width = x.shape[-1]
    rms[(x.numel() // width,)](x.view(-1, width), weight, y, eps, width, BLOCK=triton.next_power_of_2(width))
"""


def workload(rows: int, groups: int, *, eps: float = 1e-5, uuid: str = "") -> dict[str, Any]:
    """One workload of `DEFINITION`."""
    return {
        "uuid": uuid or f"{rows}-{groups}",
        "axes": {"rows": rows, "groups": groups},
        "inputs": {"x": {"type": "random"}, "weight": {"type": "random"}, "eps": {"type": "scalar", "value": eps}},
    }


def solution(language: str, entry: str, text: str, **spec: Any) -> dict[str, Any]:
    """A solution of `DEFINITION` of one source."""
    return {
        "name": f"by_{language}",
        "definition": DEFINITION["name"],
        "author": "a test",
        "spec": {"languages": [language], "target_hardware": ["LOCAL"], "entry_point": entry, **spec},
        "sources": [{"path": entry.partition("::")[0], "content": text}],
    }


def write(
    folder: Path, *, definition: Mapping[str, Any] = DEFINITION, workloads: tuple[Mapping[str, Any], ...] = (),
    solutions: tuple[Mapping[str, Any], ...] = (),
) -> Path:  # fmt: skip
    """A problem's folder, as SOL-ExecBench has them; the definition's file."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(each) for each in workloads or (workload(2, 3), workload(4, 5))]
    (folder / "workload.jsonl").write_text("\n".join(lines) + "\n")
    for each in solutions:
        (folder / f"solution_{each['name']}.json").write_text(json.dumps(each))
    file = folder / "definition.json"
    file.write_text(json.dumps(definition))
    return file
