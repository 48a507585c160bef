/* status.h - the one result type of the programs.
 *
 * A function that can fail returns `enum status`, names in its comment the values it may return, puts its outputs last
 * (ret_...) and leaves them untouched unless it returns ST_OK.  Would-block, full and peer-gone are results, not errors.
 * What a *user* did wrong travels as `struct error` (error.h): a stable code, one sentence, the field at fault. */
#ifndef STATUS_H
#define STATUS_H

#define STATUS_LIST(X)                                                     \
    X(ST_OK,          "ok")                                                \
    X(ST_AGAIN,       "would block; try again after the doorbell")         \
    X(ST_FULL,        "no room; the caller must free something")           \
    X(ST_NOT_FOUND,   "not found")                                         \
    X(ST_GONE,        "the peer has left")                                 \
    X(ST_INVALID,     "the input is malformed")                            \
    X(ST_UNSUPPORTED, "well-formed, but not implemented here")             \
    X(ST_LIMIT,       "over a limit")                                      \
    X(ST_CORRUPT,     "shared state failed a check")                       \
    X(ST_NOMEM,       "out of memory")                                     \
    X(ST_SYSTEM,      "system call failed; see the log")

enum status {
#define X(name, text) name,
    STATUS_LIST(X)
#undef X
};

#define MUST_CHECK __attribute__((warn_unused_result))

/* The sentence for a status.  Never NULL, also for values out of range. */
const char *status_text(enum status st);

#endif
