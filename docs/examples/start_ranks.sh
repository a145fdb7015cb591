#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Starts the ranks of a program that calls trCommInitFromEnvironment. When one fails the others have a second to say why, and are ended.
# An interrupt of this script ends all at once.
set -euo pipefail

if [[ $# -lt 3 || ! $2 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: start_ranks.sh UNIQUE_ID RANKS PROGRAM [ARGUMENT...]     UNIQUE_ID: the program of unique_id.c" >&2
  exit 2
fi
unique_id=$1 ranks=$2
shift 2

coproc maker { exec "$unique_id"; } # lives until its standard input ends
maker_input=${maker[1]:-} maker_output=${maker[0]:-} # gone where it has ended already
if [[ -z $maker_output ]] || ! read -r id <&"$maker_output"; then
  echo "start_ranks.sh: $unique_id has ended without a unique id" >&2
  exit 1
fi
# Only what still runs: the number of a process that has ended may be another one's by now.
end_all() {
  local running
  running=$(jobs -pr)
  [[ -z $running ]] || kill $running 2>/dev/null || true
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for ((rank = 0; rank < ranks; ++rank)); do
  TREERING_RANK=$rank TREERING_RANKS=$ranks TREERING_ID=- "$@" <<<"$id" {maker_input}>&- &
done
for ((left = ranks; left > 0; --left)); do
  wait -n || {
    status=$?
    # Until none runs but the one that made the id.
    for ((tenths = 0; tenths < 10; ++tenths)); do [[ $(jobs -pr) =~ ^(${maker_PID:-})?$ ]] || sleep 0.1; done
    exit "$status"
  }
done
