# SPDX-License-Identifier: Apache-2.0
# Completes the options of Treering's tools, as their --help lists them, and file names.
_treering() {
  local word="${COMP_WORDS[COMP_CWORD]}"
  COMPREPLY=()
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$1" --help 2>/dev/null | grep -oE -- '(^|[ ,])--?[a-zA-Z][a-z-]*' | tr -d ' ,')" -- "$word")
  fi
}
complete -o default -F _treering treering-perf allreduce-perf treering-topo
