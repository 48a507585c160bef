/* sftp_memory.c - see sftp_memory.h. */
#include "tests/support/sftp_memory.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define JOB_TEXT "{\"prompt\": \"one\"}\n"

struct memory_file *memory_find(struct memory *m, const char *name)
{
    for (int i = 0; i < MEMORY_FILES; i++) {
        if (strcmp(m->files[i].name, name) == 0)
            return &m->files[i];
    }
    return NULL;
}

static void drop(struct memory_file *f)
{
    close(f->fd);
    *f = (struct memory_file){ .fd = -1 };
}

static bool answer_open(struct memory *m, const struct sftp_question *q, const char *stored, struct sftp_answer *a)
{
    struct memory_file *f = memory_find(m, stored);

    if (q->place.kind == PLACE_JOB_FILE) {
        a->fd = memfd_create("job", MFD_CLOEXEC);
        a->size = strlen(JOB_TEXT);
        a->grows = true;
        return a->fd >= 0 && write(a->fd, JOB_TEXT, strlen(JOB_TEXT)) > 0;
    }
    if (f == NULL && q->flags & SFTP_FLAG_CREATE && q->flags & SFTP_FLAG_WRITE) {
        f = memory_find(m, "");
        if (f == NULL)
            return false;
        f->fd = memfd_create("inbox", MFD_CLOEXEC);
        snprintf(f->name, sizeof f->name, "%s", stored);
    }
    if (f == NULL)
        return false;
    if (q->flags & SFTP_FLAG_TRUNCATE && q->flags & SFTP_FLAG_WRITE && ftruncate(f->fd, 0) != 0)
        return false;
    a->fd = dup(f->fd);
    a->bytes_max = MEMORY_FILE_BYTES_MAX;
    a->bytes_limit = "max-job-bytes";
    return true;
}

static bool answer_list(struct memory *m, const struct sftp_question *q, uint8_t *bytes, size_t capacity, size_t *ret_n)
{
    size_t n = 0, more = 0;

    for (int i = 0; i < MEMORY_FILES && q->place.kind == PLACE_INBOX; i++) {
        struct sftp_entry e = { .size = 1, .mtime_s = 1000000000, .name = span_str(m->files[i].name) };
        if (m->files[i].name[0] != '\0' && sftp_put_entry(&e, bytes + n, capacity - n, &more) == ST_OK)
            n += more;
    }
    *ret_n = n;
    return true;
}

static bool answer_change(struct memory *m, const struct sftp_question *q, const char *stored, struct sftp_answer *a)
{
    struct memory_file *f = memory_find(m, stored), *there = memory_find(m, q->to.name);
    struct stat s;

    if (f == NULL || (q->what == SFTP_ASK_FINISH && q->refused[0] != '\0'))
        return false;
    if (q->what == SFTP_ASK_REMOVE) {
        drop(f);
        return true;
    }
    const char *name = q->what == SFTP_ASK_RENAME ? q->to.name : q->place.name;
    if (!inbox_name_unfinished(name)) {
        a->size = fstat(f->fd, &s) == 0 ? (uint64_t)s.st_size : 0;
        a->joined = true;
        m->n_joined++;
        drop(f);
        return true;
    }
    if (q->what == SFTP_ASK_FINISH)
        return true;
    if (there != NULL && there != f && !q->replace)
        return false;
    if (there != NULL && there != f)
        drop(there);
    snprintf(f->name, sizeof f->name, "%s", q->to.name);
    return true;
}

void memory_answer(struct memory *m)
{
    static uint8_t listing[MEMORY_FILES * 512];
    struct sftp_question q = m->question;
    struct sftp_answer a = { .fd = -1 };
    struct error err;
    char stored[SFTP_NAME_BYTES];
    size_t n = 0;
    bool ok = true;

    assert(m->asked);
    m->asked = false;
    inbox_stored_name(q.place.name, stored);
    if (q.what == SFTP_ASK_OPEN)
        ok = answer_open(m, &q, stored, &a);
    else if (q.what == SFTP_ASK_LIST)
        ok = answer_list(m, &q, listing, sizeof listing, &n);
    else if (q.what == SFTP_ASK_SPACE)
        a.space = (struct sftp_space){ .bytes_max = 1 << 20, .bytes = 40960, .bytes_free = 1 << 30, .files_max = 1000, .files = 3 };
    else if (q.what == SFTP_ASK_LOOK)
        ok = q.place.kind != PLACE_INBOX_FILE || memory_find(m, stored) != NULL;
    else
        ok = answer_change(m, &q, stored, &a);
    a.size = q.what == SFTP_ASK_LOOK ? 17 : a.size;
    a.listing = span_of(listing, n);
    error_set(&err, ERR_NOT_FOUND, NULL, "no");
    a.error = ok ? NULL : &err;
    if (!ok && a.fd >= 0)
        close(a.fd);
    sftp_answer(m->session, &a);
}

static void on_ask(void *arg, const struct sftp_question *q)
{
    struct memory *m = arg;

    assert(!m->asked);
    m->asked = true;
    m->n_asked++;
    m->question = *q;
    if (!m->delay)
        memory_answer(m);
}

static bool on_output(void *arg, struct span packet)
{
    struct memory *m = arg;

    assert(packet.n >= 9 && packet.n == 4 + (size_t)sftp_u32(packet.at));
    if (packet.n > MEMORY_OUT_BYTES - m->out_n) {
        m->out_n = 0;
        m->out_over = true;
    }
    memcpy(m->out + m->out_n, packet.at, packet.n);
    if (packet.at[4] == SFTP_ATTRS_REPLY && sftp_u32(packet.at + 9) & 8) /* times: those of the moment, and no two are alike */
        memset(m->out + m->out_n + packet.n - 8, 0, 8);
    m->out_n += packet.n;
    return true;
}

static bool on_full(void *arg)
{
    return ((struct memory *)arg)->full;
}

static void on_say(void *arg, const char *what, const char *sentence)
{
    (void)what;
    assert(sentence[0] != '\0');
    ((struct memory *)arg)->n_said++;
}

static void on_closed(void *arg, const struct sftp_place *place, uint64_t bytes_read)
{
    (void)place, (void)bytes_read;
    ((struct memory *)arg)->n_closed++;
}

const struct sftp_backend memory_backend = {
    .ask = on_ask, .output = on_output, .full = on_full, .say = on_say, .closed = on_closed
};

void memory_init(struct memory *m)
{
    *m = (struct memory){ .out = m->out != NULL ? m->out : malloc(MEMORY_OUT_BYTES) };
    assert(m->out != NULL);
    for (int i = 0; i < MEMORY_FILES; i++)
        m->files[i].fd = -1;
    enum status st = sftp_new(&memory_backend, m, "ann", &m->session);
    assert(st == ST_OK);
}

void memory_deinit(struct memory *m)
{
    sftp_free(m->session);
    for (int i = 0; i < MEMORY_FILES; i++) {
        if (m->files[i].fd >= 0)
            close(m->files[i].fd);
    }
}
