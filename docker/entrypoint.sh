#!/bin/sh
# Process 1 of the container is `weir serve`, which reaps what its children leave behind and stops them in order.
#
# WEIR_FIRST_USER_KEY: a public key; its owner, WEIR_FIRST_USER (user), may log in.  Another way: /state/users on a volume.
# Other arguments than options are a command of weir:  docker exec weir weir status;  docker run weir tokenize ...
set -eu
if [ -n "${WEIR_FIRST_USER_KEY-}" ]; then
    printf '%s\n' "$WEIR_FIRST_USER_KEY" | weir user add "${WEIR_FIRST_USER:-user}" --key -
fi
case ${1--} in
-*) exec weir serve "$@" ;;
*)  exec weir "$@" ;;
esac
