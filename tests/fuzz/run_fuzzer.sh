#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: run_fuzzer.sh FUZZER|none CORPUS FOUND   fuzzes for ten seconds; what it finds on the way stays in a temporary
# folder, the input of a failure in the folder FOUND. none: there is no clang that can make a fuzzer.
set -eu
if [ "$1" = none ]; then
  echo "skipped: no clang++ with libFuzzer (Debian: clang, libclang-rt-dev)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$3" "$work/corpus"
status=0
"$1" -max_total_time=10 -timeout=5 -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$work/" "$work/corpus" "$2" \
  >"$work/log" 2>&1 || status=$?
if [ "$status" -ne 0 ]; then
  cat "$work/log"
  for found in "$work"/crash-* "$work"/timeout-* "$work"/oom-* "$work"/leak-*; do
    [ -e "$found" ] || continue
    cp "$found" "$3/"
    echo "the input is in $3/$(basename "$found"); again: $1 $3/$(basename "$found")"
  done
fi
tail -12 "$work/log"
exit $status
