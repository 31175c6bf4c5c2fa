#!/usr/bin/env bash
# Everything that needs a GPU, in one command: tests of the kernels, their speed, the training step.
#
#   benchmarks/gpu_check.sh            with the Python that is active, or PYTHON=...
#   DRY_RUN=1 benchmarks/gpu_check.sh  prints the commands and runs none
#
# Writes DATE-GPU-{kernels,step}.json and DATE-GPU-check.log into benchmarks/results, or RESULTS.
# Goes on after a failure, and exits with 1 if there was one; with 3 if there is no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
results=${RESULTS:-benchmarks/results}
dry=${DRY_RUN:-}
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}

gpu_name() {
    "$python" -c "import cupy
print(cupy.cuda.runtime.getDeviceProperties(0)['name'].decode())"
}

if [ -n "$dry" ]; then
    gpu=GPU
elif ! gpu=$(gpu_name 2>&1); then
    echo "no GPU to check: ${gpu##*$'\n'}" >&2
    echo "needs CuPy and TensorFlow for CUDA: see docs/installation.md" >&2
    exit 3
fi
stem=$results/$(date -u +%F)-$(tr -cs 'A-Za-z0-9\n' '-' <<<"$gpu" | tr 'A-Z' 'a-z')
log=$stem-check.log
failed=0

run() {
    printf '+ %s\n' "$*"
    if [ -n "$dry" ]; then return; fi
    if ! "$@" 2>&1; then
        echo "FAILED: $*"
        failed=1
    fi
}

check() {
    echo "GPU: $gpu"
    run "$python" -m pytest tests/kernels -rs
    run "$python" -m pytest tests/optimizer -rs
    for d in 1 10 16 64; do
        run "$python" benchmarks/kernels.py --backend cupy --d "$d" \
            --batches 1024 8192 65536 131072 --copy-mb 1024 --json "$stem-kernels-d$d.json"
    done
    run "$python" benchmarks/kernels.py --backend numba --json "$stem-kernels-cpu.json"
    run "$python" -m cowclip_merlin bench --device gpu --json "$stem-step.json"
    return "$failed"
}

if [ -n "$dry" ]; then
    check
    exit 0
fi
mkdir -p "$results"
if check 2>&1 | tee "$log"; then echo "all passed; log: $log"; else
    echo "something failed; log: $log" >&2
    exit 1
fi
