/* sftp_handles.h - what is open in an sftp session: between sftp.c and sftp_read.c. */
#ifndef SFTP_HANDLES_H
#define SFTP_HANDLES_H

#include "sftp.h"

struct sftp_handle {
    bool used, folder, writing, append, grows;
    uint32_t generation;            /* of its slot: a handle that was closed is never taken for another */
    struct sftp_place place;
    int fd;
    uint64_t length, bytes_max;     /* length: of a job's file, what may be read */
    const char *bytes_limit;
    uint64_t asked_ns;
    uint64_t moved, synced;         /* bytes read, or written and on their way to disk */
    char refused[ERROR_MESSAGE_BYTES];
    uint8_t *listing;
    size_t listing_bytes, listing_at;
};

struct joined {
    char name[SFTP_NAME_BYTES];
    uint64_t size, mtime_s;
};

struct sftp {
    const struct sftp_backend *backend;
    void *arg;
    char user[64];
    bool began, broken, waiting;
    struct sftp_request request;    /* that waits; its spans are not valid any more */
    struct sftp_question question;
    unsigned handle;                /* the request's */
    uint64_t now_ns;
    int64_t real_s;
    size_t in_n;
    unsigned n_joined;
    char refused_name[SFTP_NAME_BYTES];   /* the last upload that was refused when it was closed; "": none, or it has been told */
    char refused_why[ERROR_MESSAGE_BYTES + ERROR_PARAM_BYTES + 64];
    struct joined joined[SFTP_JOINED_MAX];
    struct sftp_handle handles[SFTP_HANDLES_MAX];
    uint8_t in[4 + SFTP_PACKET_BYTES_MAX], out[4 + SFTP_PACKET_BYTES_MAX];
};

/* Replies. */
void sftp_reply_status(struct sftp *s, uint32_t id, enum sftp_code code, const char *sentence);
void sftp_reply(struct sftp *s, struct byte_writer *w);
/* What attributes a place shows. */
struct sftp_attrs sftp_attrs_of(const struct sftp_place *place, bool folder, uint64_t size, uint64_t mtime_s);

/* sftp_read.c: the requests that move bytes. */
void sftp_do_read(struct sftp *s, uint32_t id, struct sftp_handle *h, uint64_t offset, uint32_t length);
void sftp_do_write(struct sftp *s, const struct sftp_request *q, struct sftp_handle *h);
void sftp_do_readdir(struct sftp *s, uint32_t id, struct sftp_handle *h);

#endif
