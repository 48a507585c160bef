/* door.h - the messages between the three kinds of process of the gateway.
 *
 *   listener (a) --control--> jobs (b) <--door-- connection (c), one socketpair each
 *
 * A socket is SOCK_SEQPACKET: one message is one packet, and at most one descriptor travels with it (SCM_RIGHTS).
 * A packet is `struct door_header`, then body_bytes of body.  Both ends are the same binary on the same machine, so numbers are in
 * the machine's order; strings are u32 length and bytes.
 *
 * The connection process is the one that reads the network, so (b) trusts nothing it says: every length is checked,
 * a message that is not legal in the state of the connection, or whose body is not exactly as below, ends the connection.
 *
 * op      which of the connection's channels asks (0 .. DOOR_OPS - 1); each has at most one request open
 * serial  counts the requests of an op; the reply repeats it, so that a late reply to a channel that has gone is known as such
 *
 *   request        legal   body                                                    reply body
 *   KEY_PROBE      NEW     str key type, str key base64                            empty, or ERROR: not known
 *   LOGIN          NEW     str key type, str key base64, str ssh user              str user name; from now on USER
 *   SUBMIT         USER    struct door_submit                                      u64 bytes the input may have, with a descriptor to write it to
 *   SUBMIT_END     USER    u64 bytes written                                       text: the job as JSON, once it is on disk
 *   JOB            USER    str job                                                 text: the job as JSON
 *   LIST           USER    u32 all                                                 text: {"jobs": [..]}
 *   WATCH          USER    str job, u64 version seen, u32 ms to wait at most       u64 version, u32 ended, u64 output bytes,
 *                          (the reply comes when the version is another one, the   u64 errors bytes, text: the job as JSON
 *                          job has ended or the time is over; version
 *                          DOOR_WATCH_END: only the end and the time count)
 *   OPEN           USER    str job, u32 enum door_file                             u64 bytes that may be read, u32 ended,
 *                                                                                  with a descriptor to read from
 *   ORDER          USER    str job                                                 empty, with a memfd: struct door_place of each
 *                                                                                  answer there is, by line
 *   CANCEL DELETE  USER    str job                                                 text: the job as JSON
 *   RETRY RELEASE  USER    str job                                                 text: the job as JSON
 *   USAGE          USER    empty                                                   text: {"today": {..}, "month": {..}}
 *   KEYS           USER    u32 enum door_keys, str authorized_keys line            text: {"keys": [{"type", "key", "comment"}]}, as it is then
 *   ASK            USER    u32 enum door_session, with a memfd: a request as a     empty, when the broker has it
 *                          line of a job
 *   MORE           USER    empty                                                   u32 ended, str text; when ended: text (the end as JSON)
 *   RERUN          USER    str model, u64 seed, u32 most tokens (0: no       text: the answer, as a line of the output
 *                          limit), with a memfd: a line of a job
 *   TOKENIZE       USER    str model, u32 special, with a memfd: the text          text
 *   POOL           USER    u32 enum door_pool                                      text
 *   TRACE          USER    str the broker's name of a request, "": a list          text
 *   LOOK           USER    place                                                   u32 is a folder, u64 bytes, u64 time in seconds
 *   FOLDER         USER    place                                                   text: its entries, as sftp_put_entry makes them
 *   FILE           USER    place, u32 enum sftp_open_flag                          u64 bytes that may be read, u64 bytes it may get, str the name
 *                                                                                  of that limit, u32 it grows; with a descriptor
 *   FILE_DONE      USER    str stored name, str note                               empty: the file stays in the inbox; it is no longer held
 *   FILE_SUBMIT    USER    str stored name, str final name, u32 as it is           as it is: text, the job as JSON, once it is on disk;
 *                                                                                  else as SUBMIT, and SUBMIT_END follows
 *   FILE_BACK      USER    str why                                                 empty: instead of SUBMIT_END, nothing is submitted
 *   FILE_RENAME    USER    str stored name, str new name, u32 replace              empty
 *   FILE_REMOVE    USER    str name                                                empty
 *                          (place: u32 enum sftp_kind, str job, str name)
 *   SPACE          USER    empty                                                   of the inbox: u64 bytes it may hold, u64 bytes it holds,
 *                                                                                  u64 bytes free on the disk, u64 files it may hold, u64 it holds
 *   STOP           USER    u32 the channel has gone                                none: drop what it has open, and its session if it has gone
 *
 * Any request may be answered by ERROR: u32 enum error_code, str param, str message.
 * text is u32 bytes and the bytes; or u32 DOOR_TEXT_IN_FD, and the text is in a memfd that comes along. */
#ifndef DOOR_H
#define DOOR_H

#include <stdbool.h>
#include <stdint.h>

#include "byte_writer.h"
#include "error.h"
#include "span.h"
#include "status.h"

enum {
    DOOR_CHANNELS = 10,               /* channels of one ssh connection */
    DOOR_OPS = DOOR_CHANNELS + 1,     /* and one for the login */
    DOOR_LOGIN_OP = DOOR_CHANNELS,
    DOOR_PACKET_BYTES = 48 << 10,     /* one packet, with its header */
    DOOR_INLINE_BYTES = 32 << 10,     /* a longer text travels in a memfd */
    DOOR_TEXT_BYTES_MAX = 64 << 20,   /* text in a memfd */
    DOOR_ASK_BYTES_MAX = 1 << 20,     /* a question with its standard input; all texts of a chat */
};
#define DOOR_TEXT_IN_FD UINT32_MAX

enum door_type {
    DOOR_NONE,
    /* (c) -> (b) */
    DOOR_KEY_PROBE,
    DOOR_LOGIN,
    DOOR_SUBMIT,
    DOOR_SUBMIT_END,
    DOOR_JOB,
    DOOR_LIST,
    DOOR_WATCH,
    DOOR_OPEN,
    DOOR_ORDER,
    DOOR_CANCEL,
    DOOR_DELETE,
    DOOR_ASK,
    DOOR_MORE,
    DOOR_RERUN,
    DOOR_TOKENIZE,
    DOOR_POOL,
    DOOR_TRACE,
    DOOR_RETRY,
    DOOR_RELEASE,
    DOOR_USAGE,
    DOOR_KEYS,
    DOOR_LOOK,
    DOOR_FOLDER,
    DOOR_FILE,
    DOOR_FILE_DONE,
    DOOR_FILE_SUBMIT,
    DOOR_FILE_BACK,
    DOOR_FILE_RENAME,
    DOOR_FILE_REMOVE,
    DOOR_SPACE,
    DOOR_STOP,
    DOOR_REQUESTS,                    /* count of the above */
    /* (b) -> (c) */
    DOOR_REPLY = 100,
    DOOR_ERROR,
    /* control: (a) <-> (b) */
    DOOR_CONNECTION = 200,            /* (a) -> (b): u64 number, str peer; with the socket of the door */
    DOOR_LOGGED_IN,                   /* (b) -> (a): u64 number */
    DOOR_READY,                       /* (b) -> (a): store open, users read */
    DOOR_JOB_ENDED,                   /* (b) -> (a): str job, str user, str status, u64 lines, u64 failed; only with --job-hook */
};

#define DOOR_WATCH_END UINT64_MAX

/* Where in the output file the answer of a line is. */
struct door_place {
    uint64_t offset;
    uint32_t bytes;  /* with its newline */
    uint32_t line;
};

enum door_file { DOOR_FILE_OUTPUT, DOOR_FILE_ERRORS, DOOR_FILE_INPUT };
enum door_session { DOOR_SESSION_NONE, DOOR_SESSION_GO_ON, DOOR_SESSION_NEW }; /* of the op, until its channel ends or a new one begins */
enum door_pool { DOOR_POOL_MODELS, DOOR_POOL_STATUS };
enum door_keys { DOOR_KEYS_LIST, DOOR_KEYS_ADD, DOOR_KEYS_REMOVE };

struct door_header {
    uint16_t type, op;
    uint32_t serial;
    uint32_t body_bytes;
};

struct door_message {
    enum door_type type;
    uint16_t op;
    uint32_t serial;
    struct span body;
    int fd;                           /* -1: none; belongs to whoever received the message */
};

/* Options of SUBMIT, in this order: str name, str key, str model, u32 max_tokens, u32 priority, u64 deadline_ms, u32 try_lines,
 * str reuse, u32 check.
 * Empty strings and zeros: not given. */
struct door_submit {
    struct span name, key, model;
    uint32_t max_tokens, priority;
    uint64_t deadline_ms;
    struct span reuse;       /* a job whose answers to the same lines are taken over */
    bool check;              /* the reply of SUBMIT_END is a report (desk_count.c), and nothing is submitted */
    uint32_t try_lines;      /* answer so many, and hold the rest */
};

/* Send one packet.  Borrows everything; the descriptor stays the caller's.
 * ST_OK; ST_AGAIN: the other side is slow (non-blocking sockets only); ST_GONE: it has left; ST_SYSTEM. */
MUST_CHECK enum status door_send(int sock, const struct door_message *m);

/* Receive one packet into buffer [DOOR_PACKET_BYTES]; *ret_message borrows from it and gives the caller the descriptor.
 * ST_OK, ST_AGAIN, ST_GONE, ST_CORRUPT (not a packet of ours: drop the peer), ST_SYSTEM. */
MUST_CHECK enum status door_receive(int sock, uint8_t *buffer, struct door_message *ret_message);

/* Bodies, written with a byte_writer.  A reader that reads past the end is `failed`: look once, at the end. */
struct door_reader {
    struct span left;
    bool failed;
};

void door_put_u32(struct byte_writer *w, uint32_t v);
void door_put_u64(struct byte_writer *w, uint64_t v);
void door_put_str(struct byte_writer *w, struct span s);
void door_put_submit(struct byte_writer *w, const struct door_submit *s);
void door_put_error(struct byte_writer *w, const struct error *e);

uint32_t door_get_u32(struct door_reader *r);
uint64_t door_get_u64(struct door_reader *r);
struct span door_get_str(struct door_reader *r);
void door_get_submit(struct door_reader *r, struct door_submit *ret_submit);
void door_get_error(struct door_reader *r, struct error *ret_error);
/* Everything was there, and nothing is left over. */
bool door_read_all(const struct door_reader *r);

/* Put a text of any length: in the body, or in a memfd that *ret_fd then is (-1 otherwise).  ST_OK, ST_LIMIT, ST_SYSTEM. */
MUST_CHECK enum status door_put_text(struct byte_writer *w, struct span text, int *ret_fd);
/* Take it out again; fd is the one of the message and stays the caller's.  Gives *ret_text (NUL-terminated, free()) and its length. */
MUST_CHECK enum status door_get_text(struct door_reader *r, int fd, char **ret_text, size_t *ret_bytes);

/* A memfd with these bytes, and the bytes of one that somebody else may still change (so they are read, never mapped).
 * door_memfd_read: ST_LIMIT when it holds more than bytes_max. */
MUST_CHECK enum status door_memfd(struct span bytes, int *ret_fd);
MUST_CHECK enum status door_memfd_read(int fd, size_t bytes_max, char **ret_text, size_t *ret_bytes);

#endif
