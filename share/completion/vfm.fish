# fish: completion for all vfm commands.  It asks the command itself, as vfm.bash does.

function __vfm_complete
    set -l words (commandline -opc)
    set -l cur (commandline -ct)
    set -l cmd $words[1]
    set -l help ($cmd -h 2>/dev/null)
    or return

    # The verbs of a list, and those in the usage lines of a command that has other operands, too.
    set -l verbs (string replace -rf '^  ([a-z][a-z0-9-]*)  +(.*)$' '$1'\t'$2' -- $help)
    set -l names (string replace -rf '^  ([a-z][a-z0-9-]*)  .*$' '$1' -- $help)
    set -l more (string replace -rf '^(?:usage:|      ) \S+ ([a-z][a-z-]*) .*$' '$1' -- $help)
    set -l arg
    if set -q words[2]
        if contains -- $words[2] $names $more
            set help ($cmd $words[2] -h 2>/dev/null)
            or return
        else if set -q names[1]
            return
        end
        set verbs
        set more

        # "  -n, --count N   how many" of the option before the cursor gives N.
        set -l prev (string escape --style=regex -- $words[-1])
        switch $words[-1]
            case '--?*'
                set arg (string replace -rf '^ +(?:-., )?'$prev' (\S+).*$' '$1' -- $help)
            case '-?'
                set arg (string replace -rf '^  '$prev'(?:, --[a-z0-9-]+)? (\S+).*$' '$1' -- $help)
        end
    end

    switch "$arg"
        case OLD OUT TABLE '*FILE*' '*PATH*' '*PLAN*' '*CKPT*'
            __fish_complete_path "$cur"
        case '*DIR*' RUN
            __fish_complete_directories "$cur" ''
        case '*|*' # "text|md|csv"
            string split '|' -- $arg
        case '?*' # a number or a word that we do not know
        case ''
            if string match -q -- '-*' "$cur"
                string replace -rf '^ +(?:-., )?(--[a-z0-9-]+)(?: \S+)?(?:  +(.*))?$' '$1'\t'$2' -- $help
            else if set -q verbs[1]
                printf '%s\n' $verbs
            else
                set -q more[1]
                and printf '%s\n' $more
                __fish_complete_path "$cur"
            end
    end
end

for c in vfm-curate vfm-pack vfm-train vfm-sample vfm-ckpt vfm-bench
    complete -c $c -e
    complete -c $c -f -a '(__vfm_complete)'
end
