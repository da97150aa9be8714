#!/bin/sh
# On a machine with an NVIDIA GPU: is everything there, does the backend keep its promises, how exact is the timer, and what
# does tuning the CUDA examples give? Usage: benchmarks/device_smoke.sh [FOLDER FOR RESULTS] [SECONDS PER PROBLEM]
out=${1:-/tmp/kernelwright-smoke}
seconds=${2:-60}
mkdir -p "$out"
cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 COLUMNS=150
export KERNELWRIGHT_CACHE_DIR="$out/cache"
kernelwright="python3 -m kernelwright.cli.main"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw --format=csv,noheader
echo "== doctor"
$kernelwright doctor
echo "== tests"
python3 -m pytest -q -p no:cacheprovider tests/backend/test_cuda_text.py tests/backend/test_cuda_compile.py \
  tests/backend/test_cuda_device.py --basetemp="$out/pytest" 2>&1 | tail -n 60
echo "== timer"
python3 benchmarks/cuda_timer.py
for problem in silu_and_mul/problem.toml transpose/problem.toml silu_and_mul/fp16.toml; do
  name=$(echo "$problem" | tr '/' '-' | sed 's/\.toml//')
  echo "== tune $problem"
  $kernelwright tune "src/kernelwright/examples/cuda/$problem" --budget "${seconds}s" --run "$out/runs/$name" 2>&1 | tail -n 60
done
nvidia-smi --query-gpu=name,clocks.sm,clocks.mem,temperature.gpu,power.draw --format=csv,noheader
