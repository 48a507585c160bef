/* sftp_packet.h - the packets of SFTP version 3 (draft-ietf-secsh-filexfer-02) as bytes: taken apart, and made.  Pure.
 *
 * A packet is u32 length, then that many bytes: u8 type, u32 id of the request (of INIT: the version), and the fields of its type.
 * Numbers are big-endian; a string is u32 length and bytes.
 * Extensions of OpenSSH (its file PROTOCOL): posix-rename@, fsync@, limits@, statvfs@, fstatvfs@. */
#ifndef SFTP_PACKET_H
#define SFTP_PACKET_H

#include <stdbool.h>
#include <stdint.h>

#include "byte_writer.h"
#include "span.h"
#include "status.h"

enum {
    SFTP_PACKET_BYTES_MAX = 256 << 10,               /* behind the length: what OpenSSH takes */
    SFTP_DATA_BYTES_MAX = SFTP_PACKET_BYTES_MAX - 1024, /* of one READ or WRITE */
    SFTP_HANDLE_BYTES = 8,
    SFTP_VERSION = 3,
};

enum sftp_type {
    SFTP_INIT = 1,
    SFTP_VERSION_REPLY = 2,
    SFTP_OPEN = 3,
    SFTP_CLOSE = 4,
    SFTP_READ = 5,
    SFTP_WRITE = 6,
    SFTP_LSTAT = 7,
    SFTP_FSTAT = 8,
    SFTP_SETSTAT = 9,
    SFTP_FSETSTAT = 10,
    SFTP_OPENDIR = 11,
    SFTP_READDIR = 12,
    SFTP_REMOVE = 13,
    SFTP_MKDIR = 14,
    SFTP_RMDIR = 15,
    SFTP_REALPATH = 16,
    SFTP_STAT = 17,
    SFTP_RENAME = 18,
    SFTP_READLINK = 19,
    SFTP_SYMLINK = 20,
    SFTP_STATUS_REPLY = 101,
    SFTP_HANDLE_REPLY = 102,
    SFTP_DATA_REPLY = 103,
    SFTP_NAME_REPLY = 104,
    SFTP_ATTRS_REPLY = 105,
    SFTP_EXTENDED = 200,
    SFTP_EXTENDED_REPLY = 201,
};

enum sftp_code {
    SFTP_OK = 0,
    SFTP_EOF = 1,
    SFTP_NO_SUCH_FILE = 2,
    SFTP_PERMISSION_DENIED = 3,
    SFTP_FAILURE = 4,
    SFTP_BAD_MESSAGE = 5,
    SFTP_OP_UNSUPPORTED = 8,
};

enum sftp_open_flag {
    SFTP_FLAG_READ = 1,
    SFTP_FLAG_WRITE = 2,
    SFTP_FLAG_APPEND = 4,
    SFTP_FLAG_CREATE = 8,
    SFTP_FLAG_TRUNCATE = 16,
    SFTP_FLAG_EXCLUSIVE = 32,
    SFTP_FLAGS = 63,
};

enum sftp_extension { SFTP_EXT_UNKNOWN, SFTP_EXT_POSIX_RENAME, SFTP_EXT_FSYNC, SFTP_EXT_LIMITS, SFTP_EXT_STATVFS, SFTP_EXT_FSTATVFS };

struct sftp_attrs {
    bool has_size, has_mode, has_times;
    uint64_t size;
    uint32_t mode, atime, mtime;
};

struct sftp_request {
    uint8_t type;
    uint32_t id;                   /* of INIT: the version */
    struct span path, to;          /* to: RENAME */
    struct span handle, data;      /* data: WRITE */
    uint64_t offset;
    uint32_t length, flags;
    struct sftp_attrs attrs;
    enum sftp_extension extension;
};

/* Take apart the bytes behind a length.  Spans are borrowed from packet.
 * ST_OK; ST_INVALID (a field is missing, or bytes are left: type and id are known), ST_UNSUPPORTED (a type of no known kind: id is known),
 * ST_CORRUPT: not even an id. */
MUST_CHECK enum status sftp_parse(struct span packet, struct sftp_request *ret_request);

/* One packet being made. */
void sftp_begin(struct byte_writer *w, enum sftp_type type, uint32_t id);
void sftp_put_u32(struct byte_writer *w, uint32_t v);
void sftp_put_u64(struct byte_writer *w, uint64_t v);
void sftp_put_string(struct byte_writer *w, struct span s);
void sftp_put_attrs(struct byte_writer *w, const struct sftp_attrs *a);
/* Fills in the length; the packet. */
struct span sftp_end(struct byte_writer *w);

uint32_t sftp_u32(const uint8_t *at);

#endif
