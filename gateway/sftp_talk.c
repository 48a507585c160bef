/* sftp_talk.c - the sftp subsystem on a channel: its bytes to the session, the session's questions to the jobs process, the answers back.
 *
 * Many clients show nothing of a refusal but its number.  So what is refused is also said in a sentence on standard error, which ssh shows;
 * also which job a file has become.  What is said is bounded, because there are clients that never read it. */
#include "sftp_talk.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "connection.h"
#include "log.h"
#include "sftp_upload.h"
#include "utf8.h"

enum {
    OUTPUT_FULL_BYTES = 1 << 20,     /* replies that wait for the client: then no more requests are served */
    HELD_BYTES_MAX = 8 << 20,        /* of a client that ignores its window */
    SAID_BYTES_MAX = 32 << 10,
    TAKE_BYTES = 64 << 10,
    TAKES_A_STEP = 16,
};

/* --- what the session wants ---------------------------------------------------------------------------- */

static bool on_output(void *arg, struct span packet)
{
    struct sftp_talk *s = arg;

    talk_write(s->talk, packet);
    return !s->talk->finished;
}

/* The buffer, not only what is left in it: it starts anew when all has gone. */
static bool on_full(void *arg)
{
    const struct sftp_talk *s = arg;
    return s->talk->out.n >= OUTPUT_FULL_BYTES;
}

void sftp_talk_say(struct sftp_talk *s, const char *what, const char *sentence)
{
    bool readable = what == NULL || utf8_valid(span_str(what));

    if (s->said > SAID_BYTES_MAX)
        return;
    s->said += (what != NULL ? strlen(what) : 0) + strlen(sentence) + 16;
    talk_print_error(s->talk, "weir: %s%s%s\n", what == NULL ? "" : readable ? what : "(a name that is not UTF-8)", what != NULL ? ": " : "",
                     sentence);
}

static void on_say(void *arg, const char *what, const char *sentence)
{
    sftp_talk_say(arg, what, sentence);
}

static void on_closed(void *arg, const struct sftp_place *place, uint64_t bytes_read)
{
    const struct sftp_talk *s = arg;
    char quoted[2 * SFTP_NAME_BYTES], job[2 * SFTP_JOB_BYTES];

    log_info("sftp", "user=%s action=get job=%s file=%s bytes=%llu result=ok", s->talk->connection->user,
             log_quote(job, sizeof job, place->job), log_quote(quoted, sizeof quoted, place->name), (unsigned long long)bytes_read);
}

void sftp_talk_put_place(struct byte_writer *w, const struct sftp_place *p)
{
    door_put_u32(w, p->kind);
    door_put_str(w, span_str(p->job));
    door_put_str(w, span_str(p->name));
}

void sftp_talk_ask(struct sftp_talk *s, enum sftp_stage stage, enum door_type type, const struct byte_writer *w)
{
    s->stage = stage;
    talk_ask(s->talk, type, w, -1);
}

void sftp_talk_answer(struct sftp_talk *s, const struct sftp_answer *a)
{
    s->stage = STAGE_IDLE;
    sftp_answer(s->session, a);
}

static void on_ask(void *arg, const struct sftp_question *q)
{
    struct sftp_talk *s = arg;
    uint8_t buffer[2048];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };
    char stored[SFTP_NAME_BYTES];

    s->question = *q;
    switch (q->what) {
    case SFTP_ASK_LOOK:
    case SFTP_ASK_LIST:
        sftp_talk_put_place(&w, &q->place);
        sftp_talk_ask(s, q->what == SFTP_ASK_LOOK ? STAGE_LOOK : STAGE_LIST, q->what == SFTP_ASK_LOOK ? DOOR_LOOK : DOOR_FOLDER, &w);
        break;
    case SFTP_ASK_OPEN:
        sftp_talk_put_place(&w, &q->place);
        door_put_u32(&w, q->flags);
        sftp_talk_ask(s, STAGE_FILE, DOOR_FILE, &w);
        break;
    case SFTP_ASK_FINISH:
        sftp_upload_finish(s);
        break;
    case SFTP_ASK_RENAME:
        if (!inbox_name_unfinished(q->to.name)) {
            sftp_upload_rename(s);
            break;
        }
        inbox_stored_name(q->place.name, stored);
        door_put_str(&w, span_str(stored));
        door_put_str(&w, span_str(q->to.name));
        door_put_u32(&w, q->replace);
        sftp_talk_ask(s, STAGE_RENAMED, DOOR_FILE_RENAME, &w);
        break;
    case SFTP_ASK_REMOVE:
        door_put_str(&w, span_str(q->place.name));
        sftp_talk_ask(s, STAGE_REMOVED, DOOR_FILE_REMOVE, &w);
        break;
    case SFTP_ASK_SPACE:
        sftp_talk_ask(s, STAGE_SPACE, DOOR_SPACE, NULL);
        break;
    }
}

static const struct sftp_backend backend = { .ask = on_ask, .output = on_output, .full = on_full, .say = on_say, .closed = on_closed };

/* --- replies of the jobs process --------------------------------------------------------------------------- */

static void broken_reply(struct sftp_talk *s)
{
    struct error err;

    error_set(&err, ERR_INTERNAL, NULL, "the gateway's processes do not understand each other");
    sftp_talk_answer(s, &(struct sftp_answer){ .fd = -1, .error = &err });
}

static void on_listing(struct sftp_talk *s, struct door_reader *r, int fd)
{
    char *text = NULL;
    size_t n = 0;

    if (door_get_text(r, fd, &text, &n) != ST_OK) {
        broken_reply(s);
        return;
    }
    sftp_talk_answer(s, &(struct sftp_answer){ .fd = -1, .listing = span_of(text, n) });
    free(text);
}

static void on_file(struct sftp_talk *s, struct door_reader *r, int fd)
{
    struct sftp_answer a = { .size = door_get_u64(r), .fd = -1 };

    a.bytes_max = door_get_u64(r);
    a.bytes_limit = span_is(door_get_str(r), "inbox-bytes") ? "inbox-bytes" : "max-job-bytes";
    a.grows = door_get_u32(r) != 0;
    a.fd = door_read_all(r) && fd >= 0 ? dup(fd) : -1;
    if (a.fd < 0)
        broken_reply(s);
    else
        sftp_talk_answer(s, &a);
}

static void on_reply(struct talk *t, struct door_reader *r, int fd)
{
    struct sftp_talk *s = t->sftp;
    struct sftp_answer a = { .fd = -1 };

    if (s->stage == STAGE_LOOK) {
        a.folder = door_get_u32(r) != 0;
        a.size = door_get_u64(r);
        a.mtime_s = door_get_u64(r);
        sftp_talk_answer(s, &a);
    } else if (s->stage == STAGE_SPACE) {
        uint64_t *const fields[] = { &a.space.bytes_max, &a.space.bytes, &a.space.bytes_free, &a.space.files_max, &a.space.files };
        for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
            *fields[i] = door_get_u64(r);
        sftp_talk_answer(s, &a);
    } else if (s->stage == STAGE_LIST) {
        on_listing(s, r, fd);
    } else if (s->stage == STAGE_FILE) {
        on_file(s, r, fd);
    } else if (s->stage == STAGE_RENAMED || s->stage == STAGE_REMOVED) {
        sftp_talk_answer(s, &a);
    } else {
        sftp_upload_reply(s, r, fd);
    }
}

static void on_failed(struct talk *t, const struct error *err)
{
    struct sftp_talk *s = t->sftp;

    if (s->stage >= STAGE_KEEP)
        sftp_upload_failed(s, err);
    else
        sftp_talk_answer(s, &(struct sftp_answer){ .fd = -1, .error = err });
}

/* --- bytes of the client ------------------------------------------------------------------------------------- */

static size_t take(struct sftp_talk *s, struct span data)
{
    return sftp_take(s->session, data, s->now_ns, clock_real_ms() / 1000);
}

size_t sftp_talk_data(struct talk *t, struct span data)
{
    struct sftp_talk *s = t->sftp;

    if (s == NULL || s->reading)
        return 0;
    if (data.n > HELD_BYTES_MAX) {
        log_warn("channel", "user=%s reason=window_ignored", t->connection->user);
        t->gone = true;
        return data.n;
    }
    size_t n = t->early.n > 0 ? 0 : take(s, data); /* what came before goes first */
    s->held = n < data.n;
    return n;
}

/* Bytes that were there before the session was. */
static void on_input(struct talk *t, struct span data)
{
    size_t n = take(t->sftp, data);

    if (n < data.n && !talk_keep_early(t, span_of(data.at + n, data.n - n)))
        t->gone = true;
}

static void on_input_end(struct talk *t)
{
    t->sftp->ended = true;
}

static bool take_early(struct sftp_talk *s)
{
    struct output *early = &s->talk->early;
    size_t n = early->n > 0 ? take(s, span_of(early->at, early->n)) : 0;

    if (n > 0 && n < early->n)
        memmove(early->at, early->at + n, early->n - n);
    early->n -= n;
    return early->n == 0;
}

static bool takes_more(const struct sftp_talk *s)
{
    return !sftp_waiting(s->session) && !on_full((void *)(uintptr_t)s) && !s->talk->finished && !s->talk->gone;
}

/* Read what libssh has kept; that also opens its window again.  What the session does not take of it is kept as early. */
static void take_held(struct sftp_talk *s)
{
    static uint8_t bytes[TAKE_BYTES];

    s->reading = true;
    for (int i = 0; i < TAKES_A_STEP && s->held && s->talk->early.n == 0 && takes_more(s); i++) {
        int n = ssh_channel_read_nonblocking(s->talk->ssh, bytes, sizeof bytes, 0);
        if (n <= 0)
            s->held = false;
        else
            on_input(s->talk, span_of(bytes, (size_t)n));
    }
    s->reading = false;
}

bool sftp_talk_step(struct talk *t, uint64_t now_ns)
{
    struct sftp_talk *s = t->sftp;

    if (s == NULL || t->finished || t->gone)
        return false;
    s->now_ns = now_ns;
    if (s->stage == STAGE_UNPACK)
        sftp_upload_step(s);
    if (takes_more(s) && take_early(s) && s->held)
        take_held(s);
    if (sftp_broken(s->session)) {
        sftp_talk_say(s, NULL, "these are no packets of sftp version 3");
        talk_finish(t, EXIT_USAGE);
    } else if (s->ended && !s->held && t->early.n == 0 && !sftp_waiting(s->session)) {
        talk_finish(t, EXIT_OK);
    }
    return s->stage == STAGE_UNPACK;
}

bool sftp_talk_wants(const struct talk *t)
{
    const struct sftp_talk *s = t->sftp;
    return s != NULL && (s->held || t->early.n > 0) && takes_more(s);
}

/* --- begin and end -------------------------------------------------------------------------------------------- */

static void on_start(struct talk *t)
{
    struct error err;

    t->sftp = calloc(1, sizeof *t->sftp);
    if (t->sftp == NULL || sftp_new(&backend, t->sftp, t->connection->user, &t->sftp->session) != ST_OK) {
        error_set(&err, ERR_INTERNAL, NULL, "out of memory");
        talk_fail(t, &err);
        return;
    }
    t->sftp->talk = t;
    t->sftp->source = -1;
}

void sftp_talk_free(struct sftp_talk *s)
{
    if (s == NULL)
        return;
    sftp_upload_deinit(s);
    sftp_free(s->session);
    free(s);
}

const char *sftp_talk_instead_of(const char *command)
{
    if (strncmp(command, "scp ", 4) == 0)
        return "the old scp protocol is not spoken here: leave out -O, or use `sftp` (files go to inbox/)";
    if (strncmp(command, "rsync ", 6) == 0)
        return "rsync is not spoken here: use `scp FILE HOST:inbox/`, or `sftp`; `put -a` goes on with a file that was cut off";
    return NULL;
}

const struct verb_handler sftp_talk_handler = {
    .start = on_start, .reply = on_reply, .failed = on_failed, .input = on_input, .input_end = on_input_end
};
