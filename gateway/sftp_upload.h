/* sftp_upload.h - between sftp_talk.c and sftp_upload.c: a file that was closed, or renamed, and may become a job. */
#ifndef SFTP_UPLOAD_H
#define SFTP_UPLOAD_H

#include "intake.h"
#include "sftp_talk.h"

/* What the talk waits for.  The first seven are one request and its reply; the rest is an upload's way:
 *
 *   close ──► complete? ── no ──► KEEP ──► answered
 *                └─ yes ─┐
 *   rename ─► SOURCE ────┴──► SPOOL ──► UNPACK ──► JOB ──► answered     gzip, zstd
 *                        └───────────────────────► JOB ──► answered     plain: the file itself becomes the input
 *                                           └──► BACK ──► answered       damaged, cut, too long */
enum sftp_stage {
    STAGE_IDLE,
    STAGE_LOOK,
    STAGE_LIST,
    STAGE_FILE,
    STAGE_RENAMED,
    STAGE_REMOVED,
    STAGE_SPACE,
    STAGE_KEEP,
    STAGE_SOURCE,
    STAGE_SPOOL,
    STAGE_UNPACK,
    STAGE_JOB,
    STAGE_BACK,
};

struct sftp_talk {
    struct talk *talk;
    struct sftp *session;
    struct sftp_question question;
    enum sftp_stage stage;
    bool held;                       /* libssh has bytes that were not taken */
    bool reading;                    /* they are being read: the callback takes none */
    bool ended;                      /* the client has sent its last byte */
    uint64_t now_ns;
    size_t said;                     /* bytes of sentences for people */

    /* an upload */
    char stored[SFTP_NAME_BYTES], final[SFTP_NAME_BYTES];
    int source;                      /* own descriptor of a file that was renamed; -1 */
    uint64_t source_at, source_bytes;
    struct intake *intake;           /* a packed one, on its way to disk */
    bool refused;
    struct error verdict;            /* if refused */
};

/* What the session asks. */
void sftp_upload_finish(struct sftp_talk *s);  /* SFTP_ASK_FINISH */
void sftp_upload_rename(struct sftp_talk *s);  /* SFTP_ASK_RENAME to a final name */
/* A reply, or an error, in the stages from KEEP on. */
void sftp_upload_reply(struct sftp_talk *s, struct door_reader *r, int fd);
void sftp_upload_failed(struct sftp_talk *s, const struct error *err);
/* Unpack a part.  Only in STAGE_UNPACK. */
void sftp_upload_step(struct sftp_talk *s);
void sftp_upload_deinit(struct sftp_talk *s);

/* sftp_talk.c */
void sftp_talk_ask(struct sftp_talk *s, enum sftp_stage stage, enum door_type type, const struct byte_writer *w);
void sftp_talk_put_place(struct byte_writer *w, const struct sftp_place *p);
void sftp_talk_answer(struct sftp_talk *s, const struct sftp_answer *a);
/* A line on the client's standard error.  what: a name, or NULL. */
void sftp_talk_say(struct sftp_talk *s, const char *what, const char *sentence);

/* Is the last line of a plain file whole: ended by a newline, or a whole JSON object?  An empty file is, and one of UTF-16: whoever
 * reads it will say what is wrong with it. */
bool sftp_upload_whole(int fd, uint64_t bytes);

#endif
