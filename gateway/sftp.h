/* sftp.h - one sftp session as a state machine: bytes of the client in, bytes of replies out.  Knows no ssh and no door.
 *
 *   client's bytes ──► sftp_take ──► packet ──► reply
 *                                       └─► ask (backend) ... sftp_answer ──► reply
 *
 * Requests are served one after another, in the order they came.  What needs somebody else (a look at a name, an open, a listing, an
 * upload that ends, a rename, a removal) is asked of the backend, which answers at once or later; until then nothing more is taken.  Reads and
 * writes go to the descriptors that the backend gave, at once.  What is not taken stays with the caller: that is what holds a fast client up.
 *
 * Bounds: one packet of SFTP_PACKET_BYTES_MAX, SFTP_HANDLES_MAX handles, one listing a handle.  A packet over its bound, one before INIT and
 * one without an id break the session; a packet whose fields are not as they should be is answered by BAD_MESSAGE. */
#ifndef SFTP_H
#define SFTP_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "sftp_packet.h"
#include "sftp_path.h"

enum {
    SFTP_HANDLES_MAX = 64,
    SFTP_JOINED_MAX = 16,           /* files that became jobs and can still be asked for */
    SFTP_GROWN_MS = 200,            /* how often the length of a growing file is asked for */
    SFTP_SYNC_BYTES = 8 << 20,      /* an upload goes to disk in such parts while it comes */
};

enum sftp_ask {
    SFTP_ASK_LOOK,                  /* place */
    SFTP_ASK_LIST,                  /* place: INBOX, JOBS or JOB */
    SFTP_ASK_OPEN,                  /* place, flags */
    SFTP_ASK_FINISH,                /* place, fd, refused: a file that was written is closed */
    SFTP_ASK_RENAME,                /* place, to, replace: both INBOX_FILE */
    SFTP_ASK_REMOVE,                /* place: INBOX_FILE */
    SFTP_ASK_SPACE,
};

struct sftp_question {
    enum sftp_ask what;
    struct sftp_place place, to;
    uint32_t flags;                 /* enum sftp_open_flag */
    bool replace;                   /* what is there under the new name goes */
    int fd;                         /* stays the session's */
    const char *refused;            /* a write was refused, and why; "": none */
};

/* What the inbox may hold and holds, in bytes and files; bytes_free: what the disk still has beside that limit. */
struct sftp_space {
    uint64_t bytes_max, bytes, bytes_free, files_max, files;
};

struct sftp_answer {
    const struct error *error;      /* NULL: it went well */
    bool folder;                    /* LOOK */
    uint64_t size, mtime_s;         /* LOOK; OPEN: the bytes that may be read */
    int fd;                         /* OPEN: the session takes it */
    uint64_t bytes_max;             /* OPEN to write: how long the file may be */
    const char *bytes_limit;        /* OPEN to write: what that limit is called */
    bool grows;                     /* OPEN: more may be read later; LOOK tells how much */
    bool joined;                    /* FINISH, RENAME: it became a job, and its name is gone */
    struct span listing;            /* LIST: entries by sftp_put_entry */
    struct sftp_space space;        /* SPACE */
};

struct sftp_backend {
    void (*ask)(void *arg, const struct sftp_question *q);           /* q is borrowed for the call */
    bool (*output)(void *arg, struct span packet);                   /* false: no memory */
    bool (*full)(void *arg);                                         /* the client does not take what is there for it */
    void (*say)(void *arg, const char *what, const char *sentence);  /* why something was refused, for a person */
    void (*closed)(void *arg, const struct sftp_place *place, uint64_t bytes_read);
};

struct sftp;

/* user: as listings show it.  ST_OK, ST_NOMEM. */
MUST_CHECK enum status sftp_new(const struct sftp_backend *backend, void *arg, const char *user, struct sftp **ret_session);
void sftp_free(struct sftp *s); /* NULL is fine; closes what is open */

/* Take bytes; how many were taken.  Fewer than n: it waits for an answer or for the client to read. */
size_t sftp_take(struct sftp *s, struct span bytes, uint64_t now_ns, int64_t real_s);
/* The answer to the question that is open; everything in it but fd is borrowed. */
void sftp_answer(struct sftp *s, const struct sftp_answer *a);

bool sftp_waiting(const struct sftp *s);
/* Not sftp, or no memory: the session is over; what it takes it throws away. */
bool sftp_broken(const struct sftp *s);

/* One entry of a listing, as bytes.  ST_OK; ST_FULL: it does not fit. */
struct sftp_entry {
    bool folder;
    uint64_t size, mtime_s;
    struct span name;
};
MUST_CHECK enum status sftp_put_entry(const struct sftp_entry *e, uint8_t *to, size_t bytes, size_t *ret_n);

#endif
