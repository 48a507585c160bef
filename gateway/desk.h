/* desk.h - inside the jobs process (b): the other end of the doors, and what the connections may ask.
 *
 * A conn begins in state NEW and becomes USER once, by a LOGIN with a key of the users file; its user never changes.
 * An op is one channel of it.  A request is answered at once, or owed: then `waiting` is set until desk_reply() or desk_error().
 * A message that breaks a rule of door.h ends the conn: its process is then either buggy or not ours any more. */
#ifndef DESK_H
#define DESK_H

#include <jansson.h>

#include "door.h"
#include "inbox.h"
#include "job_check.h"
#include "job_files.h"
#include "job_reuse.h"
#include "job_store.h"
#include "pending.h"
#include "pool_link.h"
#include "runner.h"
#include "tally.h"
#include "users.h"

enum {
    CONNS_MAX = 1024,
    USER_CONNS_MAX = 128,             /* logged-in connections of one user */
    USER_JOBS_DEFAULT = 100,          /* jobs of one user that have not ended */
    CONN_QUEUE_MAX = 2 * DOOR_OPS,    /* replies a slow connection process has not taken yet */
    ASK_BACKLOG_BYTES_MAX = 1 << 20,  /* text of an answer that was not fetched */
};

enum op_kind { OP_IDLE, OP_UPLOAD, OP_CHECK, OP_WATCH, OP_ASK, OP_QUERY };

struct conn;
struct count;
struct ask;
struct inbox_hold;
struct inbox_upload;

struct op {
    enum op_kind kind;
    bool waiting;                     /* a reply is owed */
    uint32_t serial;                  /* of the last request */
    char spool[32];                   /* UPLOAD, CHECK: name of the upload; "" once it is a job's input */
    struct job_row row;               /* UPLOAD: its options; CHECK: the job it will be */
    uint32_t try_lines;               /* UPLOAD, CHECK */
    int64_t reuse_seq;                /* UPLOAD, CHECK: the job whose answers are taken over; 0 none */
    bool check_only;                  /* UPLOAD, CHECK */
    struct inbox_upload *inbox;       /* UPLOAD, CHECK: the input is a file of the inbox */
    struct count *count;              /* CHECK: the tokens of its lines are being counted */
    struct job_reuse *reuse;          /* CHECK: that is under way */
    struct job_check *check;
    int64_t seq;                      /* WATCH */
    uint64_t seen, due_ns;
    struct ask *ask;                  /* ASK, QUERY */
};

struct queued {
    struct queued *next;
    struct door_message message;      /* owns its body (in bytes) and descriptor */
    uint8_t bytes[];
};

struct conn {
    struct conn *next;
    int sock;
    uint64_t number;
    char peer[80], address[64];       /* with and without the port */
    char user[USER_NAME_BYTES];       /* "": state NEW */
    bool dead;                        /* to be freed at the end of the turn */
    unsigned probes;
    struct op ops[DOOR_OPS];
    char sessions[DOOR_OPS][32];      /* that the broker keeps for conversations; "": none */
    struct inbox_hold *holds;         /* files of the inbox that only this connection may change now */
    struct queued *queue, **queue_end;
    unsigned n_queued;
};

struct desk {
    struct job_store *store;
    struct job_files *files;
    struct pool_link *link;
    struct runner *runner;
    struct users users;
    struct pending pending;           /* keys that are nobody's */
    char pending_path[4096 + 16];
    uint64_t n_logins;                /* since the start, for the metrics */
    struct tally logins_refused;
    char users_path[4096];
    int64_t users_mtime_ns;
    uint64_t users_ino;
    int epoll, control;
    struct conn *conns;
    unsigned n_conns;
    struct count *counts;             /* likewise */
    struct ask *asks;                 /* all that libweir knows of, with or without a conn */
    uint64_t now_ns;                  /* of this turn of the loop */
    int64_t real_ms;
    uint64_t watch_served_ns;
    bool work_left;                   /* a check has more to do: do not sleep */
    bool sweep_left;
    uint64_t recover_ns;              /* when to look again at uploads of which it could not be told whether they are jobs; 0: none */
    uint8_t packet[DOOR_PACKET_BYTES];
};

/* A new connection, from the listener.  Takes sock. */
void desk_open(struct desk *d, uint64_t number, const char *peer, int sock);
/* Its socket has something to say, or takes more. */
void desk_on_event(struct desk *d, struct conn *c, bool readable, bool writable);
/* The op's conversation is over, if it has one. */
void desk_end_session(struct desk *d, struct conn *c, size_t op);
/* Slices of checks, due watches, dead conns.  Once a turn. */
void desk_step(struct desk *d);
int desk_timeout_ms(const struct desk *d, uint64_t now_ns);
void desk_deinit(struct desk *d);
/* Uploads of which a job was being made when the last jobs process ended.  Before the first connection. */
void desk_inbox_recover(struct desk *d);
/* What libweir still knows of: call when it is closed. */
void desk_free_asks(struct desk *d);

/* Read the users file again if it has changed (or always, on SIGHUP); drops the connections of users who have gone. */
void desk_reload_users(struct desk *d, bool always);

/* --- between desk*.c ------------------------------------------------------------------------------ */

/* Answer the request of an op.  fd stays the caller's. */
void desk_reply(struct desk *d, struct conn *c, struct op *op, const struct byte_writer *body, int fd);
void desk_error(struct desk *d, struct conn *c, struct op *op, const struct error *err);
/* Answer with a JSON text, alone or behind what is in w already (NULL: alone).  Takes value. */
void desk_reply_json(struct desk *d, struct conn *c, struct op *op, struct byte_writer *w, json_t *value);
void desk_break(struct desk *d, struct conn *c, const char *why);
/* Drop what an op has open, and make it idle. */
void desk_stop_op(struct desk *d, struct conn *c, struct op *op);

typedef void desk_handler(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, int fd);
desk_handler desk_on_submit, desk_on_submit_end, desk_on_job, desk_on_list, desk_on_watch, desk_on_open, desk_on_order, desk_on_cancel,
    desk_on_delete, desk_on_ask, desk_on_more, desk_on_rerun, desk_on_tokenize, desk_on_pool, desk_on_trace, desk_on_retry, desk_on_release, desk_on_usage,
    desk_on_keys;
desk_handler desk_on_look, desk_on_folder, desk_on_file, desk_on_file_done, desk_on_file_submit, desk_on_file_back, desk_on_file_rename,
    desk_on_file_remove, desk_on_space;

/* Has this user any tokens left for today?  false: *err. */
bool desk_may_use(struct desk *d, const char *user, struct error *err);
/* The job a request names.  false: an error has been answered, or the message was broken. */
bool desk_find_job(struct desk *d, struct conn *c, struct op *op, struct door_reader *r, struct job_row *ret_row);
bool desk_may_submit(struct desk *d, const char *user, struct error *err);
/* The user's own limits, or those of the pool. */
void desk_job_limits(const struct desk *d, const char *user, uint64_t *ret_jobs, uint64_t *ret_lines, uint64_t *ret_bytes);
/* The spool of an op becomes the input of a job that nobody knows of yet; announced: its bytes, or DOOR_BYTES_ANY.  false: *err. */
#define DOOR_BYTES_ANY UINT64_MAX
bool desk_begin_check(struct desk *d, struct op *op, uint64_t announced, struct error *err);

/* Uploads by sftp (desk_inbox.c).  Each does nothing for an op that is no such upload. */
void desk_inbox_joined(struct desk *d, struct conn *c, struct op *op, const struct job_row *row);      /* it is a job, on disk */
void desk_inbox_back(struct desk *d, struct conn *c, struct op *op);                                   /* it goes back to the inbox */
void desk_inbox_refused(struct desk *d, struct conn *c, struct op *op, const struct error *err);       /* likewise, and the note says why */
void desk_inbox_release(struct desk *d, struct conn *c, const struct op *op);                          /* the op's holds; NULL: all */
void desk_step_inbox(struct desk *d);                                                                  /* what could not be told before */
void desk_fail_internal(struct desk *d, struct conn *c, struct op *op, const char *what);

void desk_begin_count(struct desk *d, struct conn *c, struct op *op, const struct job_row *row);
void desk_step_count(struct desk *d, struct conn *c, struct op *op);
void desk_drop_count(struct op *op);
void desk_free_counts(struct desk *d); /* what libweir still knew of when it was closed */
void desk_step_check(struct desk *d, struct conn *c, struct op *op);
void desk_serve_watch(struct desk *d, struct conn *c, struct op *op);
void desk_drop_ask(struct desk *d, struct op *op);

/* Copy a string of a message into a buffer with NUL.  false: too long, or it has a NUL inside. */
bool desk_copy(struct span s, char *to, size_t bytes);

#endif
