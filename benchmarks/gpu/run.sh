#!/bin/sh
# Run the check of this bundle: ./run.sh [--stages kernels,ranks] [--budget-s 540] [--rehearse]
# PYTHON names the Python that has torch with CUDA; python3 by default.
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/sources" || exit 2
PYTHONPATH="services:trainer_agent:kernels:proto:tests${PYTHONPATH:+:$PYTHONPATH}" \
  exec "${PYTHON:-python3}" -m benchmarks.gpu --wheels "$here/wheels" "$@"
