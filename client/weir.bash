# weir.bash - completion of the weir command.  Verbs and flags come from `weir help`, so there is nothing here to keep up to date.
_weir()
{
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} verb=${COMP_WORDS[1]} help over_ssh
    COMPREPLY=()
    help=$(weir help 2>/dev/null)
    over_ssh=$(sed -n 's/^    \([a-z ]*\),.*/\1/p' <<<"$help")
    if [ "$COMP_CWORD" -eq 1 ] || { [ "$COMP_CWORD" -eq 2 ] && [ "$verb" = help ]; }; then
        mapfile -t COMPREPLY < <(compgen -W "$(awk '/^  [a-z]+ / { print $1 }' <<<"$help") $over_ssh" -- "$current")
        return
    fi
    [[ " $over_ssh " != *" $verb "* ]] || return # `weir help VERB` would ask the gateway, and ssh perhaps for a passphrase
    case $previous in
    --cache) mapfile -t COMPREPLY < <(compgen -W "on off" -- "$current"); return ;;
    --scope) mapfile -t COMPREPLY < <(compgen -W "user pool" -- "$current"); return ;;
    --class) mapfile -t COMPREPLY < <(compgen -W "interactive batch" -- "$current"); return ;;
    --model)
        if [ "$verb" != serve ]; then
            mapfile -t COMPREPLY < <(compgen -W "$(weir models 2>/dev/null | awk '{ print $1 }')" -- "$current")
            return
        fi ;;
    esac
    if [ "$COMP_CWORD" -eq 2 ]; then
        local words=
        case $verb in
        user)    words="add remove list disable enable limit pending usage group join leave" ;;
        worker)  words="list pause resume drain add remove" ;;
        key)     words="new add remove list server pair" ;;
        gateway) words="check user" ;;
        esac
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
        [ "${#COMPREPLY[@]}" -eq 0 ] || return
    fi
    if [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(weir help "$verb" 2>/dev/null | grep -oE -- '--[a-z][a-z-]*' | sort -u)" -- "$current")
    fi
}
complete -o default -F _weir weir
