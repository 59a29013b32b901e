#compdef fsguard
# Commands and flags as the command's own help has them.
local -a found
local mark=${words[(i)--]}
if (( mark < CURRENT )); then
  shift $mark words
  (( CURRENT -= mark ))
  _normal
  return
fi
if (( CURRENT == 2 )); then
  found=(${(f)"$(fsguard --help 2>/dev/null | sed -n '/^Commands:/,$ s/^  \([a-z]*\)  *\(.*\)/\1:\2/p')"})
  _describe command found
elif [[ $PREFIX == -* ]]; then
  found=(${(f)"$(fsguard $words[2] --help 2>/dev/null | grep -oE '(^| |\[)--?[a-z][a-z-]*' | tr -d ' [' | sort -u)"})
  compadd -a found
else
  _files
fi
