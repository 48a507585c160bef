#!/bin/sh
# House rules that a formatter cannot check.  Prints one line per broken rule; exit code 1 if there is any.
cd "$(dirname "$0")/.." || exit 1

forbid() {  # forbid PATTERN WHY FILES...
    pattern=$1 why=$2; shift 2
    grep -nE "$pattern" /dev/null "$@" 2>/dev/null | sed "s|\$|   <- $why|"
}

# A folder may include include/ and its own headers.
own_headers_only() {
    for f in common/*.[ch] broker/*.[ch] worker/*.[ch] client/*.[ch] gateway/*.[ch] kernels/cpu/*.[ch]; do
        [ -f "$f" ] || continue
        dir=$(dirname "$f")
        sed -n 's/^ *# *include "\([^"]*\)".*/\1/p' "$f" | while read -r h; do
            [ -f "$dir/$h" ] || [ -f "include/$h" ] || echo "$f: \"$h\"   <- neither in include/ nor beside the file"
        done
    done
}

# docs/architecture.md follows a request through tables "| file | `function`, ... | what |": each function is defined in its file.
the_way_is_there() {
    sed -n 's/^| \([a-z_/]*\.c\) | \(`[^|]*\) |.*/\1 \2/p' docs/architecture.md | tr -d '`,' | while read -r f functions; do
        for name in $functions; do
            grep -qsE "^[a-z].*\b$name\(" "$f" || echo "docs/architecture.md: no $name in $f"
        done
    done
}

out=$(
    own_headers_only
    the_way_is_there
    forbid '#include "\.\./' 'reaches into another folder' */*.[ch] */*/*.[ch]
    forbid '#include <(zmq|msgpack|libssh|sqlite3)' 'the worker does not know the network' worker/*.[ch] kernels/*.[ch] kernels/*/*
    forbid '#include <msgpack' 'msgpack stays in common' broker/* gateway/* client/* include/*
    # curve_pair.c is the file of keys of both, which libzmq draws
    forbid '#include <zmq' 'only broker and client know ZeroMQ' $(printf '%s\n' common/* | grep -v curve_pair) gateway/* include/*
    forbid '#include <(libssh|sqlite3)' 'only the gateway knows ssh and SQLite' common/* broker/* client/* include/*
    forbid '#include <cuda' 'CUDA stays in kernels/cuda' */*.[ch] kernels/cpu/*
    forbid '#include "wire\.h"' 'the gateway sees the client through weir.h only' gateway/*
    forbid '\b(strcpy|strcat|sprintf|gets|strtok)\(' 'unbounded' */*.[ch] */*/*.[ch]
    for f in */*.c */*/*.c */*/*.cu */*.h */*/*.h; do
        [ -f "$f" ] || continue
        awk -v f="$f" '
            /^\{/ { start = NR }
            /^\}/ { if (start && NR - start > 70) print f ":" start ": function of " NR - start " lines"; start = 0 }
            END   { if (NR > 800) print f ": file of " NR " lines" }' "$f"
    done
    grep -rnE '[[:blank:]]+$' --include='*.[ch]' --include='*.cu' --include='*.sh' --include='*.py' \
        common broker worker client gateway kernels include tests bench 2>/dev/null | sed 's/$/   <- trailing space/'
)
[ -z "$out" ] || { echo "$out"; exit 1; }
echo "lint: clean"
