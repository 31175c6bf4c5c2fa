#!/usr/bin/env bash
# Run NVIDIA's own entry point, then `cowclip` with the arguments of the container.
# NVIDIA's script prints a banner to standard output. Here it goes to standard error, so that the
# output of a command can be read by a program.
set -euo pipefail
nvidia=${NVIDIA_ENTRYPOINT:-/opt/nvidia/nvidia_entrypoint.sh}
if [ ! -x "$nvidia" ]; then
    exec cowclip "$@"
fi
exec 3>&1 1>&2
# shellcheck disable=SC2016
exec "$nvidia" bash -c 'exec 1>&3 3>&- cowclip "$@"' cowclip "$@"
