/* gateway.h - the kinds of process of weir-gateway, and what each is started with.
 *
 *                     socketpair (control)
 *   (a) listener ───────────────────────────► (b) jobs ──── libweir ───► broker
 *        │  fork + exec, a connection each         ▲  SQLite, files, users
 *        └────► (c) connection ────────────────────┘
 *               libssh, nothing else       socketpair (door.h)
 *
 *   (d) metrics: serves /metrics, /healthz, /readyz from memory that (a) and (b) write; only with --metrics-port
 *
 * Descriptors that (b) and (c) find open at their start: */
#ifndef GATEWAY_H
#define GATEWAY_H

#include <stdio.h>
#include <stdint.h>

#include "config.h"
#include "door.h"
#include "paths.h"

enum {
    FD_CONTROL = 3,    /* (b): to the listener */
    FD_CLIENT = 3,     /* (c): the TCP connection */
    FD_DOOR = 4,       /* (c): to (b) */
    FD_BOARD = 4,      /* (b): the board, see board.h */
    FD_METRICS_SOCKET = 3, FD_BOARD_OF_METRICS = 4, /* (d): a listening socket, and the board */
    FD_KIT = 5,        /* (c): a sealed memfd: str ed25519 key, str rsa key, u32 login grace in seconds, u32 log level */
};

enum { CONNECTIONS_MAX = 512 }; /* ssh connections at once, logged in or not */

extern const struct config_key gateway_keys[];
extern const size_t gateway_n_keys;

/* Where things are, from the configuration. */
struct gateway_places {
    char state_dir[PATHS_BYTES], users_file[PATHS_BYTES], endpoint[PATHS_BYTES];
};

/* What no single option shows: those that do not go together, files that are to be there.  ST_OK, ST_INVALID with *err set. */
MUST_CHECK enum status gateway_check_options(const struct config *c, struct error *err);

/* Each runs one kind of process and returns its exit code.  args [n_args]: of the command line, for (b)'s own start. */
int listener_run(const struct config *c, const struct gateway_places *places, int argc, char *const *argv);
int jobs_run(const struct config *c, const struct gateway_places *places);
int connection_run(const char *peer); /* ADDRESS:PORT, for the log */
int metrics_process_run(void);
/* `weir-gateway user add|remove|list ...` */
void user_command_help(FILE *out);
int user_command_run(const struct config *c, const struct gateway_places *places);
/* `weir-gateway check` */
int check_command_run(const struct config *c, const struct gateway_places *places);

#endif
