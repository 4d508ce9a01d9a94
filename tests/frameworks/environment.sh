#!/usr/bin/env bash
# environment.sh PYTHON FOLDER: build the environment of tests/frameworks, which is apart from .venv because verl pins an older
# transformers and a newer megatron-core. The folder can be kept; it is built anew when constraints.txt changes.
set -euo pipefail
python=$1 folder=$2
pins=$(dirname "$0")/constraints.txt
if ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2> /dev/null; then
  echo "NO FRAMEWORKS: expected Python 3.11 or 3.12, which verl 0.9.1 takes, got $("$python" --version 2>&1 || true); set FRAMEWORKS_PYTHON" >&2
  exit 3
fi
"$python" -m venv --clear "$folder"
pip() { "$folder/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
# antlr4, which hydra needs, is published as source only, and is built with what is installed here.
pip install setuptools wheel
# torch comes with all it needs: its build for CUDA, which a package index offers first, does not load without CUDA's libraries.
# megatron-core 0.19, Megatron-Bridge and SkyRL ask for Python 3.12, and lack only two names of `typing` on 3.11 (harness/bridge_on_cpu.py,
# harness/skyrl/stand_ins.py).
if ! pip install --constraint "$pins" torch || ! pip install --no-deps --no-build-isolation --ignore-requires-python --requirement "$pins"; then
  echo "NO FRAMEWORKS: a package of $pins could not be fetched (the lines above say which): is there a way to a package index?" >&2
  exit 3
fi
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
root=$(cd "$(dirname "$0")/../.." && pwd)
printf '%s\n' "$root/services" "$root/trainer_agent" "$root/kernels" "$root/proto" > "$site/_relibra.pth"
touch "$folder/ready"
