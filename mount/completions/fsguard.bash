# bash completion for fsguard: commands, flags and choices as the command's own help has them.
_fsguard() {
  local cur=${COMP_WORDS[COMP_CWORD]} words i
  for ((i = 1; i < COMP_CWORD; i++)); do
    # Behind "--" stands another command, with completions of its own.
    if [[ ${COMP_WORDS[i]} == -- ]]; then
      if declare -F _command_offset >/dev/null; then
        _command_offset $((i + 1))
      fi
      return
    fi
  done
  if ((COMP_CWORD == 1)); then
    words=$(fsguard --help 2>/dev/null | sed -n '/^Commands:/,$ s/^  \([a-z]*\) .*/\1/p')
  elif [[ $cur == -* ]]; then
    words=$(fsguard "${COMP_WORDS[1]}" --help 2>/dev/null | grep -oE '(^| |\[)--?[a-z][a-z-]*' | tr -d ' [' | sort -u)
  else
    words=$(fsguard "${COMP_WORDS[1]}" --help 2>/dev/null | sed -n 's/^  {\([a-z,-]*\)}.*/\1/p' | tr ',' ' ')
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
  if ((COMP_CWORD > 1)) && [[ $cur != -* ]]; then
    compopt -o default 2>/dev/null
  fi
}
complete -F _fsguard fsguard
