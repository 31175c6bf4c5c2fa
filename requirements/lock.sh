#!/usr/bin/env bash
# Resolve requirements/*.in again; write the full pins of every line whose Python is installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

lock() { # LINE VERSION PYTHON TITLE [WHAT_ELSE]
    local pins=$here/$1-py${2/./}.txt venv=$work/$1-$2
    "$3" -m venv "$venv"
    "$venv/bin/pip" install -q -r "$here/$1.in"
    if [ -f "$here/$1-no-deps.in" ]; then # packages whose requirements pip would not accept
        "$venv/bin/pip" install -q --no-deps -r "$here/$1-no-deps.in"
    fi
    {
        echo "# $4"
        echo "# Full pins${5-, test tools included}. Remade by 'make lock'."
        "$venv/bin/pip" freeze | grep -viE '^(pip|setuptools|wheel)=='
    } >"$pins"
    echo "wrote $pins"
}

for version in 3.10 3.11 3.12 3.13; do
    python=$(command -v "$(pyenv root 2>/dev/null || true)"/versions/"$version"*/bin/python \
        "python$version" | head -n 1) || true
    if [ -z "$python" ] || ! "$python" -c "import venv, ensurepip" 2>/dev/null; then
        echo "skipped Python $version: not installed"
        continue
    fi
    if [ "$version" = 3.13 ]; then
        lock current "$version" "$python" \
            "PyTorch, Keras 3 and the core beside NumPy 2, Python $version"
        continue
    fi
    lock docs "$version" "$python" "Tools that build the site, Python $version" ""
    if [ "$version" = 3.11 ]; then
        lock flink "$version" "$python" "Apache Flink for the join, Python $version" ""
        lock triton "$version" "$python" \
            "NVIDIA Triton with TensorFlow for its Python backend, Python $version" ""
    fi
    if [ "$version" != 3.12 ]; then
        lock default "$version" "$python" "Default line, Python $version: TensorFlow 2.21 on the CPU"
    fi
    if [ "$version" = 3.10 ]; then
        lock ngc "$version" "$python" \
            "NGC line, Python 3.10: the versions of merlin-tensorflow 23.12"
    else
        lock rapids "$version" "$python" \
            "RAPIDS line without its GPU packages, Python $version: pandas 2.2, dask 2024.11"
    fi
done
