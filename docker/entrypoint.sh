#!/bin/sh
# Process 1 of the container is `weir serve`, which reaps what its children leave behind and stops them in order.
#
# WEIR_FIRST_USER_KEY: a public key; its owner, WEIR_FIRST_USER (user), may log in.  Another way: files NAME.pub in a volume at /keys.
# Other arguments than options are a command of weir:  docker exec weir weir status;  docker run weir tokenize ...
set -eu
add_key() { # add_key NAME FILE: 4 is a key that was added at an earlier start, or is somebody else's, which is said
    weir user add "$1" --key "$2" || [ $? -eq 4 ]
}
if [ -n "${WEIR_FIRST_USER_KEY-}" ]; then
    printf '%s\n' "$WEIR_FIRST_USER_KEY" | add_key "${WEIR_FIRST_USER:-user}" -
fi
for key in /keys/*.pub; do
    [ -e "$key" ] || continue
    name=${key##*/}
    add_key "${name%.pub}" "$key"
done
case ${1--} in
-*) exec weir serve "$@" ;;
*)  exec weir "$@" ;;
esac
