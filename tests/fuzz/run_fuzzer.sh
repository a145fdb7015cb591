#!/bin/sh
# usage: run_fuzzer.sh FUZZER CORPUS   fuzzes for ten seconds; what it finds on the way stays in a temporary folder
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
"$1" -max_total_time=10 -timeout=5 -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$work/" "$work" "$2" >"$work/log" 2>&1 || status=$?
tail -12 "$work/log"
exit $status
