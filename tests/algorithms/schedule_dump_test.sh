#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# schedule_dump_test.sh TOOL GOLDEN: the output for a small ring word for word, and what bad values are told.
tool=$1
golden=$2
failures=0

"$tool" --algorithm ring --ranks 3 --verify | diff -u "$golden" - || failures=$((failures + 1))

# refused PATTERN ARGUMENT...: exit status 2 and a message on stderr that has PATTERN
refused() {
  pattern=$1
  shift
  message=$("$tool" "$@" 2>&1 >/dev/null)
  status=$?
  if [ $status -ne 2 ] || ! printf '%s' "$message" | grep -q -e "$pattern"; then
    echo "schedule-dump $*: status $status, message '$message', expected 2 and '$pattern'"
    failures=$((failures + 1))
  fi
}
refused "unknown algorithm 'rong' of allreduce; did you mean ring?; the known ones are: one-shot, recursive-doubling, two-shot, ring" --algorithm rong --ranks 4
refused "algorithm NAME is required" --ranks 4
refused "ranks N is required" --algorithm ring
refused "rank 4: ranks are 0 to 3" --algorithm ring --ranks 4 --rank 4
refused "not in range 1 to 65536" --algorithm ring --ranks 0
refused "takes at most 1024" --algorithm one-shot --ranks 1025
refused "0 pipeline chunks" --algorithm tree --ranks 4 --pipeline 0
refused "channel 2 does not exist" --algorithm tree --ranks 4 --channel 2
refused "verify takes at most" --algorithm ring --ranks 20000 --rank 0 --verify

# accepted PATTERN ARGUMENT...: exit status 0 and PATTERN in the output
accepted() {
  pattern=$1
  shift
  if ! "$tool" "$@" | grep -q -e "$pattern"; then
    echo "schedule-dump $*: '$pattern' is missing"
    failures=$((failures + 1))
  fi
}
accepted "6 times, chunk -1, peer +0:" --algorithm ring --ranks 8 --rank 1 --compact
accepted "rank 2  step 1: receive chunk 0 from 0, 1, 3, reduce in the order 0, 1, input, 3, store (final)" \
  --algorithm one-shot --ranks 4
accepted "verify: all 1000 ranks end with the result" --algorithm tree --ranks 1000 --rank 0 --verify --shuffle 7
accepted "verify: all 13 ranks end with the result" --collective alltoall --algorithm bruck --ranks 13 --verify
accepted "rank 1  step 0: receive chunks 1,2 from 4, store in scratch" --collective scatter --root 4 --algorithm binomial --ranks 5
accepted "rank 1  step 0: receive chunks 1,2 from 4, store in scratch" --collective SCATTER --root 4 --algorithm binomial --ranks 5
refused "root 5: ranks are 0 to 4" --collective scatter --root 5 --algorithm binomial --ranks 5
refused "error: --algoritm: there is no such option; did you mean --algorithm?" --algoritm ring
refused "collective 'gossip'" --collective gossip --algorithm ring --ranks 5
accepted "Rabenseifner, ICCS 2004" --list

[ $failures -eq 0 ] && echo "schedule-dump: all checks passed"
exit $failures
