#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Starts the ranks of a program that calls trCommInitFromEnvironment.
#
# usage: start_ranks.sh UNIQUE_ID RANKS PROGRAM [ARGUMENT...]      UNIQUE_ID: the program of unique_id.c
set -euo pipefail
unique_id=$1 ranks=$2
shift 2

coproc maker { "$unique_id"; }
maker_input=${maker[1]}
read -r id <&"${maker[0]}"
started=()
for ((rank = 0; rank < ranks; ++rank)); do
  TREERING_RANK=$rank TREERING_RANKS=$ranks TREERING_ID=- "$@" <<<"$id" {maker_input}>&- &
  started+=($!)
done
status=0
for process in "${started[@]}"; do wait "$process" || status=$?; done
exec {maker_input}>&- # the maker may end: the ranks have met
exit "$status"
