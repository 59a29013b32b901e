# Commands and flags as the command's own help has them.
function __fsguard_commands
    fsguard --help 2>/dev/null | sed -n '/^Commands:/,$ s/^  \([a-z]*\)  *\(.*\)/\1\t\2/p'
end
function __fsguard_flags
    set -l words (commandline -opc)
    fsguard $words[2] --help 2>/dev/null | grep -oE '(^| |\[)--?[a-z][a-z-]*' | tr -d ' [' | sort -u
end
complete -c fsguard -n 'test (count (commandline -opc)) -eq 1' -f -a '(__fsguard_commands)'
complete -c fsguard -n 'test (count (commandline -opc)) -gt 1; and string match -q -- "-*" (commandline -ct)' -f -a '(__fsguard_flags)'
