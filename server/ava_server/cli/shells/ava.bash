# Completion of ava for bash: eval "$(ava completion bash)" in ~/.bashrc
_ava_complete() {
    local value rest
    COMPREPLY=()
    while IFS=$'\t' read -r value rest; do
        case $value in
            :files) compopt -o default 2>/dev/null ;;
            :folders) compopt -o dirnames 2>/dev/null ;;
            *) COMPREPLY+=("$value") ;;
        esac
    done < <(_AVA_COMPLETE=bash "$1" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null </dev/null)
}
complete -F _ava_complete ava
