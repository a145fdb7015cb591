# SPDX-License-Identifier: Apache-2.0
# Completes the options of Treering's tools, as their --help lists them, and file names.
_treering() {
  local word="${COMP_WORDS[COMP_CWORD]}"
  COMPREPLY=()
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$("${1/#\~/$HOME}" --help 2>/dev/null | sed -nE 's/^ +((-[a-zA-Z0-9],)?--?[a-zA-Z0-9][a-zA-Z0-9_-]*).*/\1/p' | tr ',' '\n')" -- "$word")
  fi
}
complete -o default -F _treering treering-perf allreduce-perf treering-topo treering-trace
