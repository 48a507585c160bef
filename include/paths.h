/* paths.h - where a pool keeps its files when nobody says otherwise, so that servers and clients agree without a flag.
 *
 *   runtime  sockets and lock files; gone at reboot     $WEIR_RUNTIME_DIR, else root: /run/weir
 *                                                       else $XDG_RUNTIME_DIR/weir, else /tmp/weir-UID
 *   state    jobs, users, host keys; to be backed up    $WEIR_STATE_DIR, else root: /var/lib/weir
 *                                                       else $XDG_STATE_HOME/weir, else ~/.local/state/weir
 *   endpoint where a client finds the broker            $WEIR_CONNECT, else the own runtime folder's broker.sock if it is there,
 *                                                       else /run/weir/broker.sock if that is there, else the own one
 *
 * A folder under /tmp can be made by anybody beforehand: servers must check that it is theirs (paths_make_private does);
 * paths_endpoint never chooses one of another owner. */
#ifndef PATHS_H
#define PATHS_H

#include "error.h"
#include "status.h"

enum { PATHS_BYTES = 4096, PATHS_SOCKET_BYTES_MAX = 107 /* of an ipc:// path, see unix(7) */ };

#define PATHS_BROKER_SOCKET "broker.sock"

/* ST_OK, or ST_INVALID when no folder can be named (no HOME) or the path is too long: *err says which. */
MUST_CHECK enum status paths_runtime_dir(char ret_path[PATHS_BYTES], struct error *err);
MUST_CHECK enum status paths_state_dir(char ret_path[PATHS_BYTES], struct error *err);
MUST_CHECK enum status paths_endpoint(char ret_endpoint[PATHS_BYTES], struct error *err);

/* A folder as somebody typed it, seen from the working directory: "./run" gives "/home/me/run", an absolute path itself.
 * ST_OK; ST_INVALID: empty or too long; ST_SYSTEM: there is no working directory.  *err says which. */
MUST_CHECK enum status paths_absolute(const char *path, char ret_path[PATHS_BYTES], struct error *err);

/* Make the folder (and its parents) with this mode if it is missing.  ST_OK; ST_INVALID: it is no folder, a symbolic link, of
 * another owner, or writable by others; ST_SYSTEM.  *err says which. */
MUST_CHECK enum status paths_make_private(const char *path, unsigned mode, struct error *err);

#endif
