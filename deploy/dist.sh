#!/usr/bin/env bash
# dist.sh BIN: build the wheel and the sdist of the last commit into dist/, with the programs of the folder BIN; twice, from files
# with other times and rights, and fail if the two differ.
set -euo pipefail
cd "$(dirname "$0")/.."
git diff --quiet HEAD || echo "NOT IN dist/: changes that are not committed" >&2
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
bin=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for each in one two; do
  mkdir "$folder/$each"
  git archive HEAD | tar --extract --directory "$folder/$each"
  [ $each = one ] || { find "$folder/two" -exec touch --date 2001-02-03 {} + && chmod --recursive go-rwx "$folder/two"; }
  (cd "$folder/$each" && "$bin/hatchling" build --directory "$folder/dist-$each" > /dev/null)
done
diff --recursive "$folder/dist-one" "$folder/dist-two" || { echo "the same sources gave other files: not reproducible" >&2; exit 1; }
"$bin/twine" check --strict "$folder"/dist-one/*
rm -rf dist && cp -r "$folder/dist-one" dist
(cd dist && sha256sum -- * | tee SHA256SUMS)
