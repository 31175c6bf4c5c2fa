#!/usr/bin/env bash
# Create a virtual environment with one set of pins and this project.
#
#   requirements/make_venv.sh LINE DIR [PYTHON_VERSION]
#
# LINE: default, ngc, rapids, docs (the tools that build the site, without the stack), flink
# (Apache Flink, without the stack), current (PyTorch, Keras 3 and NumPy 2, without the stack), or
# triton (NVIDIA Triton and TensorFlow, without this project).
# PYTHON_VERSION: such as 3.10, or several, "3.11 3.10": the first one that runs, as by default.
# A second run finds the stamp of the first and does nothing. Exits with 3 if no Python fits.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 default|ngc|rapids|docs|flink|current|triton DIR [PYTHON_VERSION]" >&2
    exit 2
fi
line=$1 dir=$2 wanted=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")

case $line in
    default) versions="3.11 3.10 3.12" size="2 GB, one or two minutes" ;;
    ngc) versions="3.10" size="2 GB, one or two minutes" ;;
    rapids) versions="3.12 3.11" size="2 GB, one or two minutes" ;;
    docs) versions="3.11 3.12 3.10" size="100 MB, some seconds" ;;
    flink) versions="3.11" size="900 MB, one or two minutes" ;;
    current) versions="3.13" size="7 GB, some minutes" ;;
    triton) versions="3.11" size="2 GB, one or two minutes" ;;
    *) echo "unknown line '$line': choose default, ngc, rapids, docs, flink, current or triton" >&2; exit 2 ;;
esac
versions=${wanted:-$versions}

runs() { # a name on PATH may be a shim of a Python that is not there
    "$1" -c "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '$2')" \
        >/dev/null 2>&1
}

find_python() {
    local candidate
    local pyenv_root=""
    pyenv_root=$(pyenv root 2>/dev/null || true)
    for candidate in "python$1" python3 "$pyenv_root"/versions/"$1"*/bin/python; do
        if runs "$candidate" "$1"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

python="" version=""
for version in $versions; do
    if python=$(find_python "$version"); then break; fi
done
if [ -z "$python" ]; then
    echo "no Python ${versions// / or } that runs and can make virtual environments" \
        "(on Debian: apt install python3-venv); install one and try again" >&2
    exit 3
fi
pins=$line
if [ "$line" = default ] && [ "$version" = 3.12 ]; then
    pins=rapids # pandas 1.5, which the default line needs, does not exist for Python 3.12
fi
file=$here/$pins-py${version/./}.txt
if [ ! -f "$file" ]; then
    echo "no pins for the $pins line on Python $version" >&2
    exit 3
fi
extra=""
if [ "$pins" = rapids ]; then extra=$here/rapids-merlin.txt; fi

stamp=$(cat "$file" ${extra:+"$extra"} "$root/pyproject.toml" "$0" | sha256sum | cut -d' ' -f1)
stamp="$stamp $root"
if [ -f "$dir/.stamp" ] && [ "$(cat "$dir/.stamp")" = "$stamp" ] && "$dir/bin/python" -c ""; then
    exit 0
fi
if [ -e "$dir" ] && [ ! -f "$dir/.stamp" ] && [ -n "$(ls -A "$dir")" ]; then
    echo "$dir is not a virtual environment of this script: use another folder" >&2
    exit 2
fi

echo "installing the $pins line for Python $version into $dir: about $size"
mkdir -p "$dir"
: >"$dir/.stamp" # empty while it is being made: an interrupted run is begun anew
find "$dir" -mindepth 1 -maxdepth 1 ! -name .stamp -exec rm -rf {} +
"$python" -m venv "$dir"
quietly() { # pip's words only if it fails
    local log
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        exit 1
    fi
    rm -f "$log"
}
install() { # compiled below, on all cores
    quietly "$dir/bin/python" -m pip --disable-pip-version-check install --no-compile "$@"
}
install "setuptools>=77,<81" wheel # pyproject.toml needs 77
install --no-deps -r "$file"
if [ -n "$extra" ]; then install --no-deps -r "$extra"; fi
if [ "$line" != triton ]; then # models in Triton run without this project
    install --no-deps --no-build-isolation -e "$root"
fi
# Where PYTHONDONTWRITEBYTECODE is set, as in many images, each process would compile TensorFlow anew:
# 19 s instead of 5 to import it. Templates of packages that are no valid Python are passed over.
# Elsewhere an environment of a given version, as for one smoke run, is compiled as it is imported.
if [ -z "$wanted" ] || [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then
    "$dir/bin/python" -m compileall -q -j 0 "$dir/lib" >/dev/null 2>&1 || true
fi
cat "$file" ${extra:+"$extra"} >"$dir/.pins"
echo "$stamp" >"$dir/.stamp"
echo "installed: $dir ($("$dir/bin/python" --version))"
