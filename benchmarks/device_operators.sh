#!/bin/sh
# On a machine with an NVIDIA GPU: the operator suite beside its baselines and PyTorch, with the clocks that it ran at.
# Usage: benchmarks/device_operators.sh [FOLDER FOR RESULTS] [MORE WORDS FOR bench operators...]
out=${1:-/tmp/kernelwright-operators}
[ $# -gt 0 ] && shift
mkdir -p "$out"
cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 COLUMNS=150
export KERNELWRIGHT_CACHE_DIR="${KERNELWRIGHT_CACHE_DIR:-$out/cache}"
query=clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active
nvidia-smi --query-gpu=name,driver_version,$query --format=csv,noheader
while sleep 5; do nvidia-smi --query-gpu=$query --format=csv,noheader; done >"$out/clocks.txt" 2>&1 &
watcher=$!
python3 -m kernelwright.cli.main bench operators --json "$out/operators.json" "$@" 2>"$out/log.txt" | tee "$out/table.md"
kill $watcher
tail -n 80 "$out/log.txt"
