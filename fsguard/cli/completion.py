"""fsguard completion: a script for the shell, and the candidates that it asks for.

The scripts are short: all they do is to ask `fsguard completion candidates` what can
stand at the cursor. That reads it off the commands' own parsers, so that nothing has to
be kept in step, and knows the tasks and mounts there are now.
"""

from __future__ import annotations

from fsguard.cli.base import Parser
from fsguard.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["main"]

SHELLS = ("bash", "zsh", "fish")

_BASH = r"""# fsguard's commands and flags in bash.
_fsguard() {
    local line candidate IFS=$'\n'
    COMPREPLY=()
    while read -r line; do
        candidate=${line%%$'\t'*}
        case $candidate in
            :files) compopt -o filenames; COMPREPLY+=($(compgen -f -- "$2")) ;;
            :directories) compopt -o filenames; COMPREPLY+=($(compgen -d -- "$2")) ;;
            :command)
                if [[ $(type -t _comp_command_offset) == function ]]; then
                    _comp_command_offset "${line##*$'\t'}"
                elif [[ $(type -t _command_offset) == function ]]; then
                    _command_offset "${line##*$'\t'}"
                elif ((COMP_CWORD == ${line##*$'\t'})); then
                    COMPREPLY+=($(compgen -c -- "$2"))
                else
                    compopt -o filenames; COMPREPLY+=($(compgen -f -- "$2"))
                fi ;;
            *) COMPREPLY+=("$(printf %q "$candidate")") ;;
        esac
    done < <("$1" completion candidates -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _fsguard fsguard
"""

_ZSH = r"""#compdef fsguard
# fsguard's commands and flags in zsh.
_fsguard() {
    local line
    local -a found ask=(fsguard completion candidates -- "${(@)words[2,CURRENT]}")
    for line in "${(@f)$("${ask[@]}" 2>/dev/null)}"; do
        case $line in
            :files) _files ;;
            :directories) _files -/ ;;
            :command*) shift ${line##*$'\t'} words; (( CURRENT -= ${line##*$'\t'} )); _normal; return ;;
            ?*) found+=("${${line//:/\\:}/$'\t'/:}") ;;
        esac
    done
    (( ! $#found )) || _describe -t values 'fsguard' found
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _fsguard "$@"
else
    compdef _fsguard fsguard
fi
"""

_FISH = r"""# fsguard's commands and flags in fish.
function __fsguard_candidates
    set -l words (commandline -opc) (commandline -ct)
    for line in (command fsguard completion candidates -- $words[2..-1] 2>/dev/null)
        set -l parts (string split \t -- $line)
        switch $parts[1]
            case ':files'
                __fish_complete_path (commandline -ct)
            case ':directories'
                __fish_complete_directories (commandline -ct)
            case ':command'
                __fish_complete_subcommand --fcs-skip=$parts[2]
            case '*'
                echo $line
        end
    end
end
complete -c fsguard -f -a '(__fsguard_candidates)'
"""

_SCRIPTS = dict(zip(SHELLS, (_BASH, _ZSH, _FISH), strict=True))


def main(argv: list[str]) -> int:
    if argv[:2] == ["candidates", "--"]:
        from fsguard.cli import candidates

        for line in _lines(candidates.at(argv[2:])):
            print(line)
        return 0
    parser = Parser(
        "completion",
        "Print a script for SHELL that completes commands, flags, tasks, workspaces and paths.",
        [
            "fsguard completion fish > ~/.config/fish/completions/fsguard.fish",
            'eval "$(fsguard completion bash)"                        # in ~/.bashrc',
            'eval "$(fsguard completion zsh)"                         # in ~/.zshrc, after compinit',
            "fsguard completion zsh > /usr/local/share/zsh/site-functions/_fsguard",
        ],
        [0, 2],
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    args = parser.parse(argv)
    if args.shell not in _SCRIPTS:
        raise UsageError(f"no such shell: {args.shell}")
    print(_SCRIPTS[args.shell], end="")
    return 0


def _lines(found: list[tuple[str, str]]) -> Iterator[str]:
    """One candidate a line. One that would not stay one word of one line is left out."""
    for word, about in found:
        if word.isprintable() and word:
            yield f"{word}\t{about}" if about.isprintable() and about else word
