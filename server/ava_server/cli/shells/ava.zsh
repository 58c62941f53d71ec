#compdef ava
# Completion of ava for zsh: eval "$(ava completion zsh)" in ~/.zshrc
_ava() {
    local value rest
    local -a found
    while IFS=$'\t' read -r value rest; do
        case $value in
            :files) _files; return ;;
            :folders) _files -/; return ;;
            *) found+=("${value//:/\\:}${rest:+:$rest}") ;;
        esac
    done < <(_AVA_COMPLETE=zsh "${(Q)words[1]}" "${(@)words[2,CURRENT]}" 2>/dev/null </dev/null)
    (( $#found )) && _describe -V ava found
}
if [[ $funcstack[1] == _ava ]]; then
    _ava "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _ava ava
fi
