# Completion of ava for fish: ava completion fish | source, in ~/.config/fish/config.fish
function __ava_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in (env _AVA_COMPLETE=fish $words[1] $words[2..-1] 2>/dev/null </dev/null)
        switch $line
            case ':files'
                __fish_complete_path (commandline -ct)
            case ':folders'
                __fish_complete_directories (commandline -ct)
            case '*'
                echo $line
        end
    end
end
complete -c ava -f -a '(__ava_complete)'
