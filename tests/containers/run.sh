#!/usr/bin/env bash
# run.sh FOLDER PYTEST...: run tests/containers with the Docker Engine of this machine or, where there is none, with one of its own,
# whose packages stay in FOLDER. Ends with status 69 and the reason where there can be no engine.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$1
namespace=()
if docker compose version > /dev/null 2>&1 && docker info > /dev/null 2>&1; then
  echo "with the Docker Engine of this machine, and images from registries"
else
  trap 'tests/containers/engine.sh stop "$folder"' EXIT
  tests/containers/engine.sh start "$folder"
  source "$folder/environment"
  namespace=(nsenter --net=/run/netns/relibra-test-containers)
  export RELIBRA_STAND_INS=1
  echo "with a Docker Engine of its own; NOT RUN: the official images of Python, Redis and Prometheus (Debian's packages stand in), Grafana"
fi
RELIBRA_CONTAINERS=1 "${namespace[@]}" "${@:2}" tests/containers
