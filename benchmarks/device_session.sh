#!/bin/sh
# On a machine with an NVIDIA GPU: everything that docs/benchmarks.md says of it, in parts that can be run alone.
# Usage: benchmarks/device_session.sh OUT PART [PART...]      benchmarks/device_session.sh OUT list | dry
# Each part writes OUT/PART.log, and OUT/PART.json or OUT/PART.md; `list` tells what each takes, `dry` only checks that files,
# imports and arguments of all parts are there. Times are of an H100 with 16 host cores.
# EXTRA: a folder with site-packages that comes first. PYTHON: another interpreter.
set -u
out=${1:?a folder for results}
shift
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH="${EXTRA:+$EXTRA:}$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 COLUMNS=150
export KERNELWRIGHT_HOME="${KERNELWRIGHT_HOME:-$out/home}" KERNELWRIGHT_CACHE_DIR="${KERNELWRIGHT_CACHE_DIR:-$out/cache}"
python=${PYTHON:-python3}
kernelwright="$python -m kernelwright.cli.main"
parts="smoke prepare matmul gemm random search repeat unseen rules opencl several"

seconds_of() {
  case $1 in
    smoke) echo 120 ;;    # doctor, tests that need the GPU, the timer
    prepare) echo 25 ;;   # where the time before the first result goes, twice
    matmul) echo 110 ;;   # the operator beside its baseline and PyTorch
    gemm) echo 110 ;;     # the same template tuned on 4096 x 4096 x 4096 alone, and what limits it (Nsight Compute)
    random) echo 250 ;;   # 500 configurations, Kernel Tuner beside, three times
    search) echo 240 ;;   # time until within 2 % of the best, three times each
    repeat) echo 150 ;;   # ten tunings and their claims
    unseen) echo 230 ;;   # plain kernels that rules had not seen
    rules) echo 480 ;;    # rules beside the hand-written templates, ten operators
    opencl) echo 130 ;;   # the same problems through the vendor's OpenCL
    several) echo 100 ;;  # two GPUs of one host
    *) echo 0 ;;
  esac
}

need() { # every file of a part is there
  for file in "$@"; do
    [ -e "$file" ] || { echo "missing: $file"; exit 1; }
  done
}

smoke() {
  $kernelwright doctor
  $python -m pytest -q -p no:cacheprovider tests/backend/test_cuda_text.py tests/backend/test_cuda_parts.py \
    tests/backend/test_cuda_device.py tests/backend/test_backend_contract.py tests/export/test_torch_device.py \
    --basetemp="$out/pytest" 2>&1 | tail -n 40
  $python benchmarks/cuda_timer.py
}
prepare() { $python benchmarks/preparation.py --out "$out/prepare.json" --runs 2 --evaluations 200; }
matmul() {
  $kernelwright bench operators --only matmul --seconds 8 --shape-seconds "${SHAPE_SECONDS:-20}" \
    --json "$out/matmul.json" | tee "$out/matmul.md"
  $python -c "import json,sys
for one in json.load(open(sys.argv[1]))['operators']:
    for row in one['rows']: print(row['label'], row['configs'], row.get('tried_count'))" "$out/matmul.json"
}
gemm() {
  copy="$out/gemm"
  rm -rf "$copy" "$out/runs/gemm" && cp -r src/kernelwright/examples/cuda/matmul "$copy"
  $python benchmarks/same_workloads.py "$copy/problem.toml" benchmarks/gemm_workloads.toml
  $kernelwright tune "$copy" --budget 75s --device cuda --run "$out/runs/gemm"
  $kernelwright profile "$out/runs/gemm" | tee "$out/gemm.md"
}
random() {
  $python benchmarks/against_kernel_tuner.py --out "$out/random.json" --only random --evaluations 500 --repeats "${REPEATS:-3}"
}
search() {
  $python benchmarks/against_kernel_tuner.py --out "$out/search.json" --only search --seconds 30 --seeds "${REPEATS:-3}"
}
repeat() { $python benchmarks/repeatability.py --out "$out/repeat.json" --runs 10 --budget 9s; }
unseen() {
  $python benchmarks/unseen.py --out "$out/unseen.json" --folder benchmarks/unseen_cuda --seconds 25 --device cuda | tee "$out/unseen.md"
}
rules() {
  $python benchmarks/optimize_device.py --out "$out/rules.json" --examples src/kernelwright/examples/cuda --seconds 22 --hand-seconds 10 \
    --total-seconds 430 ${PROBLEMS:+--problems "$PROBLEMS"} --device cuda
}
opencl() {
  icd=/etc/OpenCL/vendors/nvidia.icd
  [ -s $icd ] || { mkdir -p /etc/OpenCL/vendors && echo libnvidia-opencl.so.1 >$icd; }
  for name in transpose matmul reduction; do
    copy="$out/opencl-$name"
    rm -rf "$copy" && cp -r "src/kernelwright/examples/$name" "$copy"
    $python benchmarks/same_workloads.py "$copy/problem.toml" "src/kernelwright/examples/cuda/$name/problem.toml"
    for pair in "opencl:gpu $copy" "cuda src/kernelwright/examples/cuda/$name"; do
      # shellcheck disable=SC2086
      set -- $pair
      echo "== $name on $1"
      $kernelwright tune "$2" --budget 14s --cache hot --finalists 2 --device "$1" --run "$out/runs/$name-$1" 2>&1 | tail -n 40
    done
  done
}
several() { $python benchmarks/several_devices.py --out "$out/several.json" --counts "${COUNTS:-2,1}"; }

dry() {
  need benchmarks/cuda_timer.py benchmarks/unseen_cuda/rope_template/problem.toml benchmarks/kernel_tuner/problem.toml \
    src/kernelwright/examples/cuda/matmul/problem.toml src/kernelwright/examples/transpose/problem.toml benchmarks/same_workloads.py \
    benchmarks/gemm_workloads.toml
  for script in preparation against_kernel_tuner repeatability unseen optimize_device several_devices same_workloads cuda_timer; do
    $python "benchmarks/$script.py" --help >/dev/null || { echo "does not start: $script"; exit 1; }
  done
  $kernelwright bench operators --help >/dev/null && $kernelwright tune --help >/dev/null || exit 1
  $python - <<'PYTHON' || exit 1
import importlib.util, pathlib
from kernelwright.tuning.tune import Subject
for pattern in ("src/kernelwright/examples/cuda/*/problem.toml", "benchmarks/unseen_cuda/*/problem.toml", "benchmarks/kernel_tuner/problem.toml",
                "src/kernelwright/examples/*/problem.toml"):
    for file in sorted(pathlib.Path().glob(pattern)):
        Subject.load(file)
for name in ("numpy", "ml_dtypes", "pytest", "hypothesis", "pytest_timeout", "cuda.bindings", "kernel_tuner", "pyopencl", "torch"):
    try:
        found = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        found = False
    print(f"{name}: {'there' if found else 'MISSING'}")
PYTHON
  echo "dry run: every part can start as far as its files go"
}

for part in "$@"; do
  case " $parts " in
    *" $part "*)
      echo "== $part: about $(seconds_of "$part") s"
      start=$(date +%s)
      "$part" >"$out/$part.log" 2>&1
      status=$?
      tail -n "${TAIL:-25}" "$out/$part.log" | cut -c1-400
      echo "== $part: status $status, $(($(date +%s) - start)) s"
      ;;
    *)
      case $part in
        dry) dry ;;
        list) for each in $parts; do echo "$each: about $(seconds_of "$each") s"; done ;;
        *) echo "no part $part: $parts"; exit 2 ;;
      esac
      ;;
  esac
done
