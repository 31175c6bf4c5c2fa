#!/usr/bin/env bash
# Run everything that needs a GPU, the most valuable first: the operations without TensorFlow, against
# NumPy and timed; the step of DeepFM at 131,072 and 1,024 rows, whole trainings with their AUC, and
# peers. Then all tests, other models and batches, vocabularies, workers.
#
#   benchmarks/gpu_check.sh            with the active Python, or PYTHON=...
#   DRY_RUN=1 benchmarks/gpu_check.sh  prints the commands without running them
#   HUGECTR_PYTHON=/usr/bin/python3 benchmarks/gpu_check.sh
#                                      also compares with HugeCTR, in NVIDIA's image merlin-hugectr
#
# Writes DATE-TIME-GPU-*.json and DATE-TIME-GPU-check.log into benchmarks/results, or RESULTS.
# Continues after a failure, and then exits with 1. Exits with 3 if CuPy finds no GPU, or after the
# operations without TensorFlow if TensorFlow finds none, or its row operations cannot be built.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
results=${RESULTS:-benchmarks/results}
dry=${DRY_RUN:-}
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3}
export TF_FORCE_GPU_ALLOW_GROWTH=true # or TensorFlow leaves CuPy no memory

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
stem=$results/$(date -u +%F-%H%M)-$(tr -cs 'A-Za-z0-9\n' '-' <<<"$gpu" | tr 'A-Z' 'a-z')
log=$stem-check.log
hugectr_peers="bare-mlp,cowclip lazy,keras-adam,hugectr,hugectr-global"
failed=0

run() { # MINUTES COMMAND...: a command that takes longer is ended, and counts as failed
    local minutes=$1
    shift
    printf '+ %s\n' "$*"
    if [ -n "$dry" ]; then return; fi
    if ! timeout -k 10s "${minutes}m" "$@" 2>&1; then # killed if it ignores the end
        echo "FAILED: $*"
        failed=1
    fi
}

can_train() { # whether the rest can run; tells why not
    if ! "$python" -c "import pytest, hypothesis"; then
        echo "the tests need pytest and hypothesis: install them, as in pip install '.[gpu,dev]'"
        return 1
    fi
    if ! "$python" -c "import sys
from cowclip_merlin.optimizer.row_updates import gpu_ops
gpu_ops.require_cupy(); gpu_ops.build()
gpu_ops.tf.config.list_physical_devices('GPU') or sys.exit('TensorFlow finds no GPU')"; then
        echo "training would update rows by TensorFlow's slower operations: see the line above"
        return 1
    fi
}

check() {
    echo "GPU: $gpu"
    run 4 "$python" benchmarks/gpu_operations.py --parts check --json "$stem-operations-check.json"
    run 4 "$python" benchmarks/gpu_operations.py --parts time epoch --json "$stem-operations.json"
    if [ -z "$dry" ] && ! can_train 2>&1; then return 3; fi
    # "--backend cupy", never "auto": it must fail rather than time another backend.
    bench=("$python" -m cowclip_merlin bench --device gpu --clip cowclip)
    deepfm=("${bench[@]}" --backend cupy --update exact --batch-sizes 131072,1024)
    peers=(--batches 131072,1024 --rows 2000000 --rounds 2
        --contestants "bare-mlp,cowclip exact,cowclip lazy,keras-adam")
    run 3 "${deepfm[@]}" --vocabulary 33800000 --precision float32,bfloat16 \
        --json "$stem-step-33m-ids.json"
    run 3 "${deepfm[@]}" --precision float32,bfloat16 --json "$stem-step.json"
    run 10 "$python" -m cowclip_merlin.demo --work "work/${stem##*/}-demo"
    run 6 "$python" benchmarks/peers.py --device gpu "${peers[@]}" --json "$stem-peers.json"
    run 3 "${deepfm[@]}" --vocabulary 33800000 --precision bfloat16 --jit-compile \
        --json "$stem-step-33m-ids-jit.json"
    run 30 "$python" -m pytest --hypothesis-profile=full tests/kernels tests/optimizer tests/models \
        tests/test_metrics_on_device.py tests/training/test_on_device.py -rs
    run 10 "$python" tests/smoke.py
    run 20 "${bench[@]}" --model wide_and_deep,deepfm,dcn,dcnv2 --backend cupy,tensorflow \
        --batch-sizes 1024,8192,65536,131072 --json "$stem-step-models.json"
    run 20 "$python" benchmarks/step.py vocabulary --device gpu --json "$stem-vocabulary.json"
    # One GPU can tell what sharded tables cost, but not what workers exchange: NCCL refuses two on it.
    run 20 "$python" benchmarks/workers.py --workers 1 --batch-sizes 1024,65536 \
        --json "$stem-workers.json"
    if [ -n "${HUGECTR_PYTHON:-}" ]; then
        run 30 "$python" benchmarks/peers.py --device gpu --python "hugectr=$HUGECTR_PYTHON" \
            --rows 4500000 --rounds 3 --contestants "$hugectr_peers" --json "$stem-hugectr.json"
    fi
    return "$failed"
}

if [ -n "$dry" ]; then
    check
    exit 0
fi
mkdir -p "$results"
if check 2>&1 | tee "$log"; then echo "all passed; log: $log"; else
    code=$?
    echo "something failed; log: $log" >&2
    exit "$code"
fi
