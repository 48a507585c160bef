/* sftp.c - packets of an sftp session, one after another.  See sftp.h.
 *
 * A table would say less than the switch in serve(): what a request may name differs from type to type.  All that it may do to files by
 * name goes through ask(), so the tree of sftp_path.h is the whole of what there is. */
#include "sftp_handles.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- replies --------------------------------------------------------------------------------------- */

void sftp_reply(struct sftp *s, struct byte_writer *w)
{
    if (!s->backend->output(s->arg, sftp_end(w)))
        s->broken = true;
}

void sftp_reply_status(struct sftp *s, uint32_t id, enum sftp_code code, const char *sentence)
{
    struct byte_writer w = { .at = s->out, .capacity = sizeof s->out };

    sftp_begin(&w, SFTP_STATUS_REPLY, id);
    sftp_put_u32(&w, code);
    sftp_put_string(&w, span_str(sentence));
    sftp_put_string(&w, span_str("en"));
    sftp_reply(s, &w);
}

/* Refused, and a person should know why: many clients show the code only. */
static void refuse(struct sftp *s, uint32_t id, enum sftp_code code, const char *what, const char *sentence)
{
    s->backend->say(s->arg, what, sentence);
    sftp_reply_status(s, id, code, sentence);
}

static void reply_attrs(struct sftp *s, uint32_t id, const struct sftp_attrs *a)
{
    struct byte_writer w = { .at = s->out, .capacity = sizeof s->out };

    sftp_begin(&w, SFTP_ATTRS_REPLY, id);
    sftp_put_attrs(&w, a);
    sftp_reply(s, &w);
}

static void reply_handle(struct sftp *s, uint32_t id, unsigned slot)
{
    struct byte_writer w = { .at = s->out, .capacity = sizeof s->out };

    sftp_begin(&w, SFTP_HANDLE_REPLY, id);
    sftp_put_u32(&w, SFTP_HANDLE_BYTES);
    sftp_put_u32(&w, slot);
    sftp_put_u32(&w, s->handles[slot].generation);
    sftp_reply(s, &w);
}

struct sftp_attrs sftp_attrs_of(const struct sftp_place *place, bool folder, uint64_t size, uint64_t mtime_s)
{
    bool own = place->kind == PLACE_INBOX || (place->kind == PLACE_INBOX_FILE && !inbox_name_is_note(place->name));
    uint32_t mode = folder ? S_IFDIR | 0500 : S_IFREG | 0400;

    return (struct sftp_attrs){ .has_size = true,
                                .has_mode = true,
                                .has_times = mtime_s != 0,
                                .size = size,
                                .mode = mode | (own ? 0200 : 0),
                                .atime = (uint32_t)mtime_s,
                                .mtime = (uint32_t)mtime_s };
}

/* --- handles --------------------------------------------------------------------------------------- */

/* The handle a request names, or NULL. */
static struct sftp_handle *handle_of(struct sftp *s, struct span handle)
{
    if (handle.n != SFTP_HANDLE_BYTES)
        return NULL;
    uint32_t slot = sftp_u32(handle.at), generation = sftp_u32(handle.at + 4);
    if (slot >= SFTP_HANDLES_MAX || !s->handles[slot].used || s->handles[slot].generation != generation)
        return NULL;
    return &s->handles[slot];
}

/* A free one, its slot in *ret_slot, or NULL. */
static struct sftp_handle *handle_new(struct sftp *s, unsigned *ret_slot)
{
    for (unsigned i = 0; i < SFTP_HANDLES_MAX; i++) {
        struct sftp_handle *h = &s->handles[i];
        if (h->used)
            continue;
        *h = (struct sftp_handle){ .used = true, .generation = h->generation + 1, .fd = -1 };
        *ret_slot = i;
        return h;
    }
    return NULL;
}

static void handle_close(struct sftp_handle *h)
{
    if (h->fd >= 0)
        close(h->fd);
    free(h->listing);
    h->listing = NULL;
    h->fd = -1;
    h->used = false;
}

static bool may_open(struct sftp *s, uint32_t id)
{
    for (unsigned i = 0; i < SFTP_HANDLES_MAX; i++) {
        if (!s->handles[i].used)
            return true;
    }
    refuse(s, id, SFTP_FAILURE, "open", "64 files are open in this session, which is the limit (handles)");
    return false;
}

/* --- asking ---------------------------------------------------------------------------------------- */

static void ask(struct sftp *s, const struct sftp_request *q, const struct sftp_question *question)
{
    assert(!s->waiting);
    s->waiting = true;
    s->request = *q;
    s->question = *question;
    s->backend->ask(s->arg, &s->question);
}

static void ask_about(struct sftp *s, const struct sftp_request *q, enum sftp_ask what, const struct sftp_place *place)
{
    ask(s, q, &(struct sftp_question){ .what = what, .place = *place, .fd = -1, .refused = "" });
}

static const struct joined *find_joined(const struct sftp *s, const struct sftp_place *place)
{
    for (unsigned i = 0; i < SFTP_JOINED_MAX && place->kind == PLACE_INBOX_FILE; i++) {
        if (s->joined[i].name[0] != '\0' && strcmp(s->joined[i].name, place->name) == 0)
            return &s->joined[i];
    }
    return NULL;
}

/* Clients look whether what they have put is there, and how long it is.  It became a job: it is there, in another form. */
static void remember_joined(struct sftp *s, const char *name, uint64_t size)
{
    struct joined *j = &s->joined[s->n_joined++ % SFTP_JOINED_MAX];

    snprintf(j->name, sizeof j->name, "%s", name);
    j->size = size;
    j->mtime_s = (uint64_t)s->real_s;
}

/* Some clients do not look at how a close went, only whether the file is there afterwards: then once it is not. */
static bool tell_refused(struct sftp *s, const struct sftp_place *place)
{
    bool told = place->kind == PLACE_INBOX_FILE && s->refused_name[0] != '\0' && strcmp(s->refused_name, place->name) == 0;

    if (told)
        s->refused_name[0] = '\0';
    return told;
}

/* --- requests -------------------------------------------------------------------------------------- */

static void on_init(struct sftp *s)
{
    static const struct {
        const char *name, *version;
    } extensions[] = { { "posix-rename@openssh.com", "1" }, { "fsync@openssh.com", "1" }, { "limits@openssh.com", "1" },
                       { "statvfs@openssh.com", "2" },      { "fstatvfs@openssh.com", "2" } };
    struct byte_writer w = { .at = s->out, .capacity = sizeof s->out };

    s->began = true;
    sftp_begin(&w, SFTP_VERSION_REPLY, SFTP_VERSION);
    for (size_t i = 0; i < sizeof extensions / sizeof extensions[0]; i++) {
        sftp_put_string(&w, span_str(extensions[i].name));
        sftp_put_string(&w, span_str(extensions[i].version));
    }
    sftp_reply(s, &w);
}

static void on_realpath(struct sftp *s, const struct sftp_request *q)
{
    struct byte_writer w = { .at = s->out, .capacity = sizeof s->out };
    char path[SFTP_PATH_BYTES_MAX + 2];

    if (sftp_path_canonical(q->path, path, sizeof path) != ST_OK) {
        refuse(s, q->id, SFTP_FAILURE, "path", "a path has at most 4096 bytes, and no NUL");
        return;
    }
    sftp_begin(&w, SFTP_NAME_REPLY, q->id);
    sftp_put_u32(&w, 1);
    sftp_put_string(&w, span_str(path));
    sftp_put_string(&w, span_str(path));
    sftp_put_attrs(&w, &(struct sftp_attrs){ 0 });
    sftp_reply(s, &w);
}

static void on_look(struct sftp *s, const struct sftp_request *q)
{
    struct sftp_place place;

    sftp_place_of(q->path, &place);
    if (q->type == SFTP_SETSTAT && q->attrs.has_size) {
        refuse(s, q->id, SFTP_PERMISSION_DENIED, "truncate", "the length of a file can be set only while it is open for writing");
    } else if (place.kind == PLACE_NOWHERE) {
        sftp_reply_status(s, q->id, SFTP_NO_SUCH_FILE, "there is inbox/NAME and jobs/JOB/FILE, and nothing else");
    } else if (tell_refused(s, &place)) {
        sftp_reply_status(s, q->id, SFTP_FAILURE, s->refused_why);
    } else if (place.kind == PLACE_ROOT || place.kind == PLACE_INBOX || place.kind == PLACE_JOBS) {
        struct sftp_attrs a = sftp_attrs_of(&place, true, 0, (uint64_t)s->real_s);
        if (q->type == SFTP_SETSTAT)
            sftp_reply_status(s, q->id, SFTP_OK, "");
        else
            reply_attrs(s, q->id, &a);
    } else {
        ask_about(s, q, SFTP_ASK_LOOK, &place);
    }
}

static void on_fstat(struct sftp *s, const struct sftp_request *q, struct sftp_handle *h)
{
    struct stat st = { 0 };

    if (!h->folder && fstat(h->fd, &st) != 0) {
        sftp_reply_status(s, q->id, SFTP_FAILURE, "the file cannot be looked at");
        return;
    }
    bool inbox = h->place.kind == PLACE_INBOX_FILE;
    struct sftp_attrs a = sftp_attrs_of(&h->place, h->folder, inbox ? (uint64_t)st.st_size : h->length,
                                        h->folder ? (uint64_t)s->real_s : (uint64_t)st.st_mtim.tv_sec);
    reply_attrs(s, q->id, &a);
}

static void on_fsetstat(struct sftp *s, const struct sftp_request *q, struct sftp_handle *h)
{
    if (!q->attrs.has_size)
        sftp_reply_status(s, q->id, SFTP_OK, ""); /* times and permissions are not kept: docs/jobs.md */
    else if (!h->writing)
        refuse(s, q->id, SFTP_PERMISSION_DENIED, "truncate", "the file is not open for writing");
    else if (q->attrs.size > h->bytes_max)
        refuse(s, q->id, SFTP_FAILURE, h->place.name, "limit_exceeded: the file would be longer than its limit of bytes");
    else if (ftruncate(h->fd, (off_t)q->attrs.size) != 0)
        refuse(s, q->id, SFTP_FAILURE, h->place.name, "the length of the file cannot be set");
    else
        sftp_reply_status(s, q->id, SFTP_OK, "");
}

static void on_open(struct sftp *s, const struct sftp_request *q)
{
    bool writing = q->flags & SFTP_FLAG_WRITE;
    struct sftp_place place;

    sftp_place_of(q->path, &place);
    if ((q->flags & ~(uint32_t)SFTP_FLAGS) != 0 || (q->flags & (SFTP_FLAG_READ | SFTP_FLAG_WRITE)) == 0) {
        sftp_reply_status(s, q->id, SFTP_BAD_MESSAGE, "open flags of no meaning");
    } else if (!may_open(s, q->id)) {
        return;
    } else if (place.kind == PLACE_INBOX_FILE && writing && !inbox_name_writable(place.name)) {
        refuse(s, q->id, SFTP_PERMISSION_DENIED, place.name,
               "a name has at most 200 bytes, and NAME.incomplete.txt is for notes of Weir's own");
    } else if (writing && place.kind == PLACE_NOWHERE) {
        refuse(s, q->id, SFTP_PERMISSION_DENIED, "open",
               "files can be put into inbox/ only, without folders, under a name of at most 200 bytes without control characters");
    } else if (writing && place.kind != PLACE_INBOX_FILE) {
        refuse(s, q->id, SFTP_PERMISSION_DENIED, "open", "files can be put into inbox/ only");
    } else if (place.kind == PLACE_NOWHERE) {
        sftp_reply_status(s, q->id, SFTP_NO_SUCH_FILE, "there is inbox/NAME and jobs/JOB/FILE, and nothing else");
    } else if (place.kind != PLACE_INBOX_FILE && place.kind != PLACE_JOB_FILE) {
        sftp_reply_status(s, q->id, SFTP_FAILURE, "this is a folder");
    } else {
        ask(s, q, &(struct sftp_question){ .what = SFTP_ASK_OPEN, .place = place, .flags = q->flags, .fd = -1, .refused = "" });
    }
}

/* The root is the same for everybody. */
static void open_root(struct sftp *s, const struct sftp_request *q)
{
    static const char *const names[] = { "inbox", "jobs" };
    uint8_t bytes[256];
    size_t n = 0;

    for (size_t i = 0; i < 2; i++) {
        size_t more = 0;
        struct sftp_entry e = { .folder = true, .mtime_s = (uint64_t)s->real_s, .name = span_str(names[i]) };
        if (sftp_put_entry(&e, bytes + n, sizeof bytes - n, &more) == ST_OK)
            n += more;
    }
    s->waiting = true;
    s->request = *q;
    s->question = (struct sftp_question){ .what = SFTP_ASK_LIST, .place = { .kind = PLACE_ROOT }, .fd = -1, .refused = "" };
    sftp_answer(s, &(struct sftp_answer){ .fd = -1, .listing = span_of(bytes, n) });
}

static void on_opendir(struct sftp *s, const struct sftp_request *q)
{
    struct sftp_place place;

    sftp_place_of(q->path, &place);
    if (!may_open(s, q->id))
        return;
    if (place.kind == PLACE_ROOT)
        open_root(s, q);
    else if (place.kind == PLACE_INBOX || place.kind == PLACE_JOBS || place.kind == PLACE_JOB)
        ask_about(s, q, SFTP_ASK_LIST, &place);
    else
        sftp_reply_status(s, q->id, SFTP_NO_SUCH_FILE, "there is no such folder");
}

static void on_close(struct sftp *s, const struct sftp_request *q, struct sftp_handle *h)
{
    if (h->writing) {
        s->handle = (unsigned)(h - s->handles);
        ask(s, q, &(struct sftp_question){ .what = SFTP_ASK_FINISH, .place = h->place, .fd = h->fd, .refused = h->refused });
        return;
    }
    if (!h->folder)
        s->backend->closed(s->arg, &h->place, h->moved);
    handle_close(h);
    sftp_reply_status(s, q->id, SFTP_OK, "");
}

/* Does this session write the file?  Then it would go on to write what may be the input of a job by now. */
static bool is_being_written(const struct sftp *s, const char *name)
{
    char stored[SFTP_NAME_BYTES], other[SFTP_NAME_BYTES];

    inbox_stored_name(name, stored);
    for (unsigned i = 0; i < SFTP_HANDLES_MAX; i++) {
        const struct sftp_handle *h = &s->handles[i];
        if (!h->used || !h->writing)
            continue;
        inbox_stored_name(h->place.name, other);
        if (strcmp(stored, other) == 0)
            return true;
    }
    return false;
}

static void on_rename(struct sftp *s, const struct sftp_request *q)
{
    struct sftp_question question = { .what = SFTP_ASK_RENAME, .fd = -1, .refused = "", .replace = q->type == SFTP_EXTENDED };

    sftp_place_of(q->path, &question.place);
    sftp_place_of(q->to, &question.to);
    if (question.place.kind != PLACE_INBOX_FILE || question.to.kind != PLACE_INBOX_FILE || inbox_name_is_note(question.place.name) ||
        !inbox_name_writable(question.to.name))
        refuse(s, q->id, SFTP_PERMISSION_DENIED, "rename", "only files of inbox/ can be renamed, within inbox/, to names of at most 200 bytes");
    else if (is_being_written(s, question.place.name))
        refuse(s, q->id, SFTP_FAILURE, question.place.name, "the file is still open for writing here: close it first, then rename it");
    else
        ask(s, q, &question);
}

static void on_remove(struct sftp *s, const struct sftp_request *q)
{
    struct sftp_place place;

    sftp_place_of(q->path, &place);
    if (place.kind == PLACE_INBOX_FILE)
        ask_about(s, q, SFTP_ASK_REMOVE, &place);
    else if (place.kind == PLACE_NOWHERE)
        sftp_reply_status(s, q->id, SFTP_NO_SUCH_FILE, "there is no such file");
    else
        refuse(s, q->id, SFTP_PERMISSION_DENIED, "remove", "the files of a job go with it: `delete JOB` as an ssh command removes both");
}

/* The whole tree is one disk, and the inbox is what can be written of it: paths that lead nowhere have no space. */
static void on_space(struct sftp *s, const struct sftp_request *q, const struct sftp_handle *h)
{
    struct sftp_place place;

    if (q->extension == SFTP_EXT_STATVFS)
        sftp_place_of(q->path, &place);
    if (q->extension == SFTP_EXT_STATVFS && place.kind == PLACE_NOWHERE)
        sftp_reply_status(s, q->id, SFTP_NO_SUCH_FILE, "there is inbox/NAME and jobs/JOB/FILE, and nothing else");
    else if (q->extension == SFTP_EXT_FSTATVFS && h == NULL)
        sftp_reply_status(s, q->id, SFTP_FAILURE, "no such handle is open");
    else
        ask_about(s, q, SFTP_ASK_SPACE, &(struct sftp_place){ .kind = PLACE_INBOX });
}

static void on_extended(struct sftp *s, const struct sftp_request *q, struct sftp_handle *h)
{
    struct byte_writer w = { .at = s->out, .capacity = sizeof s->out };

    if (q->extension == SFTP_EXT_POSIX_RENAME) {
        on_rename(s, q);
    } else if (q->extension == SFTP_EXT_FSYNC) {
        if (h == NULL || h->folder || fsync(h->fd) != 0)
            sftp_reply_status(s, q->id, SFTP_FAILURE, "the file cannot be synced");
        else
            sftp_reply_status(s, q->id, SFTP_OK, "");
    } else if (q->extension == SFTP_EXT_STATVFS || q->extension == SFTP_EXT_FSTATVFS) {
        on_space(s, q, h);
    } else if (q->extension == SFTP_EXT_LIMITS) {
        sftp_begin(&w, SFTP_EXTENDED_REPLY, q->id);
        sftp_put_u64(&w, SFTP_PACKET_BYTES_MAX);
        sftp_put_u64(&w, SFTP_DATA_BYTES_MAX);
        sftp_put_u64(&w, SFTP_DATA_BYTES_MAX);
        sftp_put_u64(&w, SFTP_HANDLES_MAX);
        sftp_reply(s, &w);
    } else {
        sftp_reply_status(s, q->id, SFTP_OP_UNSUPPORTED, "there is no such extension here");
    }
}

static void on_read(struct sftp *s, const struct sftp_request *q, struct sftp_handle *h)
{
    if (h->grows && q->offset >= h->length && s->now_ns - h->asked_ns >= SFTP_GROWN_MS * 1000000ull) {
        h->asked_ns = s->now_ns;
        s->handle = (unsigned)(h - s->handles);
        ask_about(s, q, SFTP_ASK_LOOK, &h->place);
    } else {
        sftp_do_read(s, q->id, h, q->offset, q->length);
    }
}

/* Requests that name a handle; h is that. */
static void serve_handle(struct sftp *s, const struct sftp_request *q, struct sftp_handle *h)
{
    bool file = h != NULL && !h->folder;

    if (h == NULL || (q->type == SFTP_READDIR ? !h->folder : h->folder && q->type != SFTP_CLOSE && q->type != SFTP_FSTAT))
        sftp_reply_status(s, q->id, SFTP_FAILURE, "no such handle is open");
    else if (q->type == SFTP_READ && file)
        on_read(s, q, h);
    else if (q->type == SFTP_WRITE && h->writing)
        sftp_do_write(s, q, h);
    else if (q->type == SFTP_WRITE)
        sftp_reply_status(s, q->id, SFTP_PERMISSION_DENIED, "the file is not open for writing");
    else if (q->type == SFTP_CLOSE)
        on_close(s, q, h);
    else if (q->type == SFTP_FSTAT)
        on_fstat(s, q, h);
    else if (q->type == SFTP_FSETSTAT)
        on_fsetstat(s, q, h);
    else
        sftp_do_readdir(s, q->id, h);
}

static void serve(struct sftp *s, const struct sftp_request *q)
{
    switch (q->type) {
    case SFTP_REALPATH:
        on_realpath(s, q);
        return;
    case SFTP_STAT:
    case SFTP_LSTAT:
    case SFTP_SETSTAT:
        on_look(s, q);
        return;
    case SFTP_OPEN:
        on_open(s, q);
        return;
    case SFTP_OPENDIR:
        on_opendir(s, q);
        return;
    case SFTP_RENAME:
        on_rename(s, q);
        return;
    case SFTP_REMOVE:
        on_remove(s, q);
        return;
    case SFTP_MKDIR:
        refuse(s, q->id, SFTP_PERMISSION_DENIED, "mkdir", "folders cannot be made here: files go straight into inbox/");
        return;
    case SFTP_RMDIR:
        refuse(s, q->id, SFTP_PERMISSION_DENIED, "rmdir", "folders cannot be removed here: `delete JOB` as an ssh command removes a job");
        return;
    case SFTP_SYMLINK:
        refuse(s, q->id, SFTP_PERMISSION_DENIED, "symlink", "links cannot be made here");
        return;
    case SFTP_READLINK:
        sftp_reply_status(s, q->id, SFTP_FAILURE, "there are no links here");
        return;
    case SFTP_EXTENDED:
        on_extended(s, q, handle_of(s, q->handle));
        return;
    default:
        serve_handle(s, q, handle_of(s, q->handle));
    }
}

static void on_packet(struct sftp *s, struct span packet)
{
    struct sftp_request q;
    enum status st = sftp_parse(packet, &q);

    if (st == ST_CORRUPT || (q.type == SFTP_INIT) == s->began || (q.type == SFTP_INIT && st != ST_OK))
        s->broken = true;
    else if (q.type == SFTP_INIT)
        on_init(s);
    else if (st == ST_UNSUPPORTED)
        sftp_reply_status(s, q.id, SFTP_OP_UNSUPPORTED, "this is not a request of sftp version 3");
    else if (st != ST_OK)
        sftp_reply_status(s, q.id, SFTP_BAD_MESSAGE, "the fields of the packet are not those of its type");
    else
        serve(s, &q);
}

/* --- answers --------------------------------------------------------------------------------------- */

static void answer_look(struct sftp *s, const struct sftp_answer *a)
{
    const struct joined *j = a->error != NULL ? find_joined(s, &s->question.place) : NULL;
    const struct sftp_place *place = &s->question.place;
    uint32_t id = s->request.id;
    struct sftp_attrs attrs = a->error == NULL ? sftp_attrs_of(place, a->folder, a->size, a->mtime_s) : (struct sftp_attrs){ 0 };

    if (s->request.type == SFTP_READ) {
        struct sftp_handle *h = &s->handles[s->handle];
        if (a->error == NULL && a->size > h->length)
            h->length = a->size;
        sftp_do_read(s, id, h, s->request.offset, s->request.length);
        return;
    }
    if (j != NULL)
        attrs = sftp_attrs_of(place, false, j->size, j->mtime_s);
    if (j == NULL && a->error != NULL)
        sftp_reply_status(s, id, a->error->code == ERR_NOT_FOUND ? SFTP_NO_SUCH_FILE : SFTP_FAILURE, a->error->message);
    else if (s->request.type == SFTP_SETSTAT)
        sftp_reply_status(s, id, SFTP_OK, "");
    else
        reply_attrs(s, id, &attrs);
}

static void answer_list(struct sftp *s, const struct sftp_answer *a)
{
    unsigned slot = 0;
    struct sftp_handle *h = handle_new(s, &slot);
    uint8_t *copy = malloc(a->listing.n + 1);

    assert(h != NULL); /* may_open() has seen a free one, and nothing else runs meanwhile */
    if (copy == NULL) {
        handle_close(h);
        sftp_reply_status(s, s->request.id, SFTP_FAILURE, "out of memory");
        return;
    }
    if (a->listing.n > 0)
        memcpy(copy, a->listing.at, a->listing.n);
    h->folder = true;
    h->place = s->question.place;
    h->listing = copy;
    h->listing_bytes = a->listing.n;
    reply_handle(s, s->request.id, slot);
}

/* Blocks, as statvfs(3) counts them: the limit of the inbox is the size of the disk, so `df` shows what can still be put. */
static void answer_space(struct sftp *s, const struct sftp_space *space)
{
    enum { BLOCK_BYTES = 4096, NO_SETUID = 2 };
    struct byte_writer w = { .at = s->out, .capacity = sizeof s->out };
    uint64_t left = space->bytes_max > space->bytes ? space->bytes_max - space->bytes : 0;
    uint64_t files_left = space->files_max > space->files ? space->files_max - space->files : 0;
    const uint64_t fields[] = { BLOCK_BYTES,
                                BLOCK_BYTES,
                                space->bytes_max / BLOCK_BYTES,
                                left / BLOCK_BYTES,
                                (left < space->bytes_free ? left : space->bytes_free) / BLOCK_BYTES,
                                space->files_max,
                                files_left,
                                files_left,
                                0, /* which disk */
                                NO_SETUID,
                                INBOX_NAME_BYTES_MAX };

    sftp_begin(&w, SFTP_EXTENDED_REPLY, s->request.id);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        sftp_put_u64(&w, fields[i]);
    sftp_reply(s, &w);
}

static void answer_open(struct sftp *s, const struct sftp_answer *a)
{
    unsigned slot = 0;
    struct sftp_handle *h = handle_new(s, &slot);

    assert(h != NULL);
    s->refused_name[0] = '\0';
    h->place = s->question.place;
    h->fd = a->fd;
    h->writing = s->question.flags & SFTP_FLAG_WRITE;
    h->append = s->question.flags & SFTP_FLAG_APPEND;
    h->length = a->size;
    h->bytes_max = a->bytes_max;
    h->bytes_limit = a->bytes_limit != NULL ? a->bytes_limit : "";
    h->grows = a->grows;
    h->asked_ns = s->now_ns;
    reply_handle(s, s->request.id, slot);
}

/* An upload was closed, or a file renamed: it may have become a job. */
static void answer_change(struct sftp *s, const struct sftp_answer *a)
{
    if (s->question.what == SFTP_ASK_FINISH) {
        if (a->joined)
            remember_joined(s, s->question.place.name, a->size);
        handle_close(&s->handles[s->handle]);
    } else if (a->joined) {
        remember_joined(s, s->question.to.name, a->size);
    }
    if (a->error == NULL)
        sftp_reply_status(s, s->request.id, SFTP_OK, "");
}

void sftp_answer(struct sftp *s, const struct sftp_answer *a)
{
    enum sftp_ask what = s->question.what;
    char sentence[ERROR_MESSAGE_BYTES + ERROR_PARAM_BYTES + 64];

    assert(s->waiting);
    s->waiting = false;
    if (what == SFTP_ASK_LOOK) {
        answer_look(s, a);
        return;
    }
    if (what == SFTP_ASK_FINISH || what == SFTP_ASK_RENAME || what == SFTP_ASK_REMOVE)
        answer_change(s, a);
    else if (a->error == NULL && what == SFTP_ASK_LIST)
        answer_list(s, a);
    else if (a->error == NULL && what == SFTP_ASK_SPACE)
        answer_space(s, &a->space);
    else if (a->error == NULL)
        answer_open(s, a);
    if (a->error == NULL)
        return;
    const struct error *e = a->error;
    const char *name = what == SFTP_ASK_RENAME ? s->question.to.name : s->question.place.name;
    snprintf(sentence, sizeof sentence, "%s: %s%s%s%s", error_code_name(e->code), e->message, e->param[0] ? " (" : "", e->param,
             e->param[0] ? ")" : "");
    if (what == SFTP_ASK_FINISH) {
        snprintf(s->refused_name, sizeof s->refused_name, "%s", name);
        snprintf(s->refused_why, sizeof s->refused_why, "%s", sentence);
    }
    if (e->code == ERR_NOT_FOUND)
        sftp_reply_status(s, s->request.id, SFTP_NO_SUCH_FILE, sentence);
    else
        refuse(s, s->request.id, e->code == ERR_PERMISSION_DENIED ? SFTP_PERMISSION_DENIED : SFTP_FAILURE, name, sentence);
}

/* --- the session ----------------------------------------------------------------------------------- */

enum status sftp_new(const struct sftp_backend *backend, void *arg, const char *user, struct sftp **ret_session)
{
    struct sftp *s = calloc(1, sizeof *s);

    if (s == NULL)
        return ST_NOMEM;
    s->backend = backend;
    s->arg = arg;
    snprintf(s->user, sizeof s->user, "%s", user);
    for (unsigned i = 0; i < SFTP_HANDLES_MAX; i++)
        s->handles[i].fd = -1;
    *ret_session = s;
    return ST_OK;
}

void sftp_free(struct sftp *s)
{
    if (s == NULL)
        return;
    for (unsigned i = 0; i < SFTP_HANDLES_MAX; i++) {
        if (s->handles[i].used)
            handle_close(&s->handles[i]);
    }
    free(s);
}

size_t sftp_take(struct sftp *s, struct span bytes, uint64_t now_ns, int64_t real_s)
{
    size_t taken = 0;

    s->now_ns = now_ns;
    s->real_s = real_s;
    while (!s->broken && !s->waiting && !s->backend->full(s->arg)) {
        size_t whole = s->in_n < 4 ? 4 : 4 + (size_t)sftp_u32(s->in), left = bytes.n - taken;
        size_t n = whole - s->in_n < left ? whole - s->in_n : left;
        if (n > 0)
            memcpy(s->in + s->in_n, bytes.at + taken, n);
        s->in_n += n;
        taken += n;
        if (s->in_n < whole)
            break;
        if (whole == 4) {
            uint32_t length = sftp_u32(s->in);
            s->broken = length < 5 || length > SFTP_PACKET_BYTES_MAX;
            continue;
        }
        s->in_n = 0; /* the packet stays where it is until the next bytes are taken */
        on_packet(s, span_of(s->in + 4, whole - 4));
    }
    return s->broken ? bytes.n : taken;
}

bool sftp_waiting(const struct sftp *s)
{
    return s->waiting;
}

bool sftp_broken(const struct sftp *s)
{
    return s->broken;
}
