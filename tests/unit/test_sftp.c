/* test_sftp.c - paths, names, packets, and whole sftp sessions without ssh: against what the draft of version 3 says, and random
 * sessions in pieces of every size against the same sessions in one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/support/random.h"
#include "tests/support/sftp_memory.h"

static struct random dice;

/* --- paths ------------------------------------------------------------------------------------------ */

static void paths_become_places_by_their_words(void **state)
{
    static const struct {
        const char *path;
        enum sftp_kind kind;
        const char *job, *name;
    } cases[] = {
        { "", PLACE_ROOT, "", "" },
        { "/", PLACE_ROOT, "", "" },
        { ".", PLACE_ROOT, "", "" },
        { "/../..", PLACE_ROOT, "", "" },
        { "inbox", PLACE_INBOX, "", "" },
        { "//inbox/./", PLACE_INBOX, "", "" },
        { "inbox/a.jsonl", PLACE_INBOX_FILE, "", "a.jsonl" },
        { "a.jsonl", PLACE_INBOX_FILE, "", "a.jsonl" },
        { "inbox/../a", PLACE_INBOX_FILE, "", "a" },
        { "inbox/a/b", PLACE_NOWHERE, "", "" },
        { "etc/passwd", PLACE_NOWHERE, "", "" },
        { "/inbox/../../../etc/passwd", PLACE_NOWHERE, "", "" },
        { "jobs", PLACE_JOBS, "", "" },
        { "inbox/../jobs", PLACE_JOBS, "", "" },
        { "jobs/last", PLACE_JOB, "last", "" },
        { "jobs/j1/output.jsonl", PLACE_JOB_FILE, "j1", "output.jsonl" },
        { "jobs/j1/status.json", PLACE_JOB_FILE, "j1", "status.json" },
        { "jobs/j1/jobs.db", PLACE_NOWHERE, "j1", "jobs.db" },
        { "jobs/j1/output.jsonl/x", PLACE_NOWHERE, "j1", "" },
        { "inbox/a\x1b[1m", PLACE_NOWHERE, "", "" },
        { "inboxes", PLACE_INBOX_FILE, "", "inboxes" },
    };
    struct sftp_place p;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sftp_place_of(span_str(cases[i].path), &p);
        assert_int_equal(p.kind, cases[i].kind);
        if (p.kind != PLACE_NOWHERE) {
            assert_string_equal(p.job, cases[i].job);
            assert_string_equal(p.name, cases[i].name);
        }
    }
    sftp_place_of(span_of("inbox/a\0b", 9), &p);
    assert_int_equal(p.kind, PLACE_NOWHERE);
}

/* The oracle keeps a list of words. */
static void canonical_paths_are_those_of_a_list_of_words(void **state)
{
    static const char *const words[] = { "a", "..", ".", "", "bc", "...", "inbox", "jobs" };

    (void)state;
    for (int round = 0; round < 20000; round++) {
        char path[256] = "", canonical[SFTP_PATH_BYTES_MAX + 2], wanted[256] = "";
        const char *kept[16];
        size_t n = 0;
        for (unsigned k = (unsigned)random_below(&dice, 12); k > 0; k--) {
            const char *word = words[random_below(&dice, 8)];
            size_t end = strlen(path);
            snprintf(path + end, sizeof path - end, "%s%s", random_below(&dice, 4) ? "/" : "//", word);
            if (strcmp(word, "..") == 0)
                n -= n > 0;
            else if (word[0] != '\0' && strcmp(word, ".") != 0)
                kept[n++] = word;
        }
        for (size_t i = 0; i < n; i++) {
            size_t end = strlen(wanted);
            snprintf(wanted + end, sizeof wanted - end, "/%s", kept[i]);
        }
        assert_int_equal(sftp_path_canonical(span_str(path), canonical, sizeof canonical), ST_OK);
        assert_string_equal(canonical, n > 0 ? wanted : "/");
    }
}

static void names_say_where_they_are_stored(void **state)
{
    static const char *const stored[][3] = { { "a.jsonl", "a.jsonl.incomplete", "a.jsonl.incomplete.txt" },
                                             { "a.part", "a.part", "a.part.incomplete.txt" },
                                             { ".a", ".a", ".a.incomplete.txt" },
                                             { "a.incomplete", "a.incomplete", "a.incomplete.txt" } };
    char to[SFTP_NAME_BYTES], note[SFTP_NAME_BYTES], name[65], longest[INBOX_NAME_BYTES_MAX + 2];

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        inbox_stored_name(stored[i][0], to);
        assert_string_equal(to, stored[i][1]);
        inbox_note_name(stored[i][1], to);
        assert_string_equal(to, stored[i][2]);
        assert_true(inbox_name_is_note(to) && !inbox_name_writable(to));
        assert_true(inbox_name_unfinished(stored[i][1]));
    }
    memset(longest, 'x', sizeof longest);
    longest[INBOX_NAME_BYTES_MAX + 1] = '\0';
    assert_false(inbox_name_writable(longest));
    longest[INBOX_NAME_BYTES_MAX] = '\0';
    assert_true(inbox_name_writable(longest));
    inbox_stored_name(longest, to);
    assert_int_equal(strlen(to), INBOX_NAME_BYTES_MAX + strlen(".incomplete"));
    inbox_note_name(to, note);
    assert_int_equal(strlen(note), INBOX_NAME_BYTES_MAX + strlen(".incomplete.txt"));
    assert_true(inbox_name_valid(span_str(note)));
    inbox_stored_name(note, to);
    assert_string_equal(to, note); /* so it can be read and removed */
    inbox_job_name("night.jsonl.gz", name, sizeof name);
    assert_string_equal(name, "night");
    inbox_job_name("\xff.jsonl", name, sizeof name);
    assert_string_equal(name, "");
}

/* --- packets ------------------------------------------------------------------------------------------ */

struct packet {
    uint8_t at[4 + 70000];
    struct byte_writer w;
};

static void begin(struct packet *p, enum sftp_type type, uint32_t id)
{
    p->w = (struct byte_writer){ .at = p->at, .capacity = sizeof p->at };
    sftp_begin(&p->w, type, id);
}

static void a_packet_cut_anywhere_is_told_and_never_read_over(void **state)
{
    static struct packet p;
    static const struct sftp_attrs attrs = { .has_size = true, .has_mode = true, .has_times = true, .size = 5 };
    struct sftp_request q;

    (void)state;
    begin(&p, SFTP_OPEN, 77);
    sftp_put_string(&p.w, span_str("inbox/a"));
    sftp_put_u32(&p.w, SFTP_FLAG_READ);
    sftp_put_attrs(&p.w, &attrs);
    struct span whole = sftp_end(&p.w);
    for (size_t n = 0; n < whole.n - 4; n++) {
        uint8_t *copy = malloc(n + 1); /* its own block: a sanitizer sees a byte too many */
        memcpy(copy, whole.at + 4, n);
        assert_int_equal(sftp_parse(span_of(copy, n), &q), n < 5 ? ST_CORRUPT : ST_INVALID);
        free(copy);
    }
    assert_int_equal(sftp_parse(span_of(whole.at + 4, whole.n - 4), &q), ST_OK);
    assert_true(q.type == SFTP_OPEN && q.id == 77 && span_is(q.path, "inbox/a") && q.attrs.has_size && q.attrs.size == 5);
    assert_int_equal(sftp_parse(span_of(whole.at + 4, whole.n - 3), &q), ST_INVALID); /* one byte too many */
}

/* --- sessions ----------------------------------------------------------------------------------------- */

static struct memory m;
static size_t read_at;

static void give(struct span bytes)
{
    assert_int_equal(sftp_take(m.session, bytes, 1, 1000000000), bytes.n);
}

static void hello(void)
{
    memory_init(&m);
    give(span_of("\0\0\0\x05\x01\0\0\0\x03", 9));
    read_at = m.out_n;
}

/* The next reply: its type, and what is behind its id. */
static uint8_t next_reply(struct span *ret_rest)
{
    assert_true(m.out_n >= read_at + 9);
    const uint8_t *at = m.out + read_at;
    size_t n = 4 + sftp_u32(at);
    assert_true(m.out_n >= read_at + n);
    read_at += n;
    *ret_rest = span_of(at + 9, n - 9);
    return at[4];
}

static uint32_t next_status(void)
{
    struct span rest;
    assert_int_equal(next_reply(&rest), SFTP_STATUS_REPLY);
    return sftp_u32(rest.at);
}

static struct span open_file(const char *path, uint32_t flags)
{
    static struct packet p;
    struct span rest;

    begin(&p, SFTP_OPEN, 1);
    sftp_put_string(&p.w, span_str(path));
    sftp_put_u32(&p.w, flags);
    sftp_put_u32(&p.w, 0);
    give(sftp_end(&p.w));
    assert_int_equal(next_reply(&rest), SFTP_HANDLE_REPLY);
    assert_int_equal(rest.n, 4 + SFTP_HANDLE_BYTES);
    return span_of(rest.at + 4, SFTP_HANDLE_BYTES);
}

static void send_handle(enum sftp_type type, struct span handle)
{
    static struct packet p;
    begin(&p, type, 2);
    sftp_put_string(&p.w, handle);
    give(sftp_end(&p.w));
}

static void send_write(struct span handle, uint64_t at, struct span data)
{
    static struct packet p;
    begin(&p, SFTP_WRITE, 3);
    sftp_put_string(&p.w, handle);
    sftp_put_u64(&p.w, at);
    sftp_put_string(&p.w, data);
    give(sftp_end(&p.w));
}

static void send_path(enum sftp_type type, const char *path)
{
    static struct packet p;
    begin(&p, type, 4);
    sftp_put_string(&p.w, span_str(path));
    give(sftp_end(&p.w));
}

static void a_file_is_written_closed_and_asked_for(void **state)
{
    struct span rest;

    (void)state;
    hello();
    struct span handle = open_file("inbox/a.jsonl", SFTP_FLAG_WRITE | SFTP_FLAG_CREATE);
    send_write(handle, 0, span_str("{}\n"));
    assert_int_equal(next_status(), SFTP_OK);
    send_handle(SFTP_CLOSE, handle);
    assert_int_equal(next_status(), SFTP_OK);
    assert_int_equal(m.n_joined, 1);
    send_path(SFTP_STAT, "inbox/a.jsonl"); /* it is a job: whoever put it may still ask */
    assert_int_equal(next_reply(&rest), SFTP_ATTRS_REPLY);
    assert_int_equal(sftp_u32(rest.at + 8), 3);
    send_handle(SFTP_CLOSE, handle);
    assert_int_equal(next_status(), SFTP_FAILURE);
    send_path(SFTP_STAT, "inbox/b.jsonl");
    assert_int_equal(next_status(), SFTP_NO_SUCH_FILE);
    memory_deinit(&m);
}

static void send_rename(const char *from, const char *to)
{
    static struct packet p;
    begin(&p, SFTP_RENAME, 5);
    sftp_put_string(&p.w, span_str(from));
    sftp_put_string(&p.w, span_str(to));
    give(sftp_end(&p.w));
}

static void a_file_is_not_renamed_while_it_is_open_for_writing(void **state)
{
    (void)state;
    hello();
    struct span handle = open_file("inbox/a.jsonl", SFTP_FLAG_WRITE | SFTP_FLAG_CREATE);
    send_rename("inbox/a.jsonl.incomplete", "inbox/b.jsonl"); /* as it is called until it is closed */
    assert_int_equal(next_status(), SFTP_FAILURE);
    send_rename("inbox/a.jsonl", "inbox/b.part");
    assert_int_equal(next_status(), SFTP_FAILURE);
    send_write(handle, 0, span_str("{}\n"));
    assert_int_equal(next_status(), SFTP_OK);
    send_handle(SFTP_CLOSE, handle);
    assert_int_equal(next_status(), SFTP_OK);
    assert_int_equal(m.n_joined, 1);
    memory_deinit(&m);
}

static void a_write_over_the_limit_spoils_the_file(void **state)
{
    (void)state;
    hello();
    struct span handle = open_file("inbox/a.jsonl", SFTP_FLAG_WRITE | SFTP_FLAG_CREATE);
    send_write(handle, MEMORY_FILE_BYTES_MAX - 2, span_str("{}\n"));
    assert_int_equal(next_status(), SFTP_FAILURE);
    send_write(handle, UINT64_MAX, span_str("{}\n"));
    assert_int_equal(next_status(), SFTP_FAILURE);
    send_write(handle, 0, span_str("{}\n"));
    assert_int_equal(next_status(), SFTP_OK);
    send_handle(SFTP_CLOSE, handle);
    assert_int_not_equal(next_status(), SFTP_OK);
    assert_int_equal(m.n_joined, 0);
    memory_deinit(&m);
}

static void handles_are_bounded_and_never_mistaken(void **state)
{
    struct span first = { 0 }, rest;
    static struct packet p;

    (void)state;
    hello();
    for (int i = 0; i < SFTP_HANDLES_MAX; i++) {
        struct span h = open_file("jobs/j/output.jsonl", SFTP_FLAG_READ);
        if (i == 0)
            first = h;
    }
    send_path(SFTP_OPENDIR, "/");
    assert_int_equal(next_status(), SFTP_FAILURE);
    send_handle(SFTP_CLOSE, first);
    assert_int_equal(next_status(), SFTP_OK);
    open_file("jobs/j/output.jsonl", SFTP_FLAG_READ); /* the same slot */
    begin(&p, SFTP_READ, 9);
    sftp_put_string(&p.w, first);
    sftp_put_u64(&p.w, 0);
    sftp_put_u32(&p.w, 10);
    give(sftp_end(&p.w));
    assert_int_equal(next_reply(&rest), SFTP_STATUS_REPLY);
    memory_deinit(&m);
}

static void nothing_is_taken_while_an_answer_is_owed_or_the_client_does_not_read(void **state)
{
    static struct packet p;

    (void)state;
    hello();
    m.delay = true;
    send_path(SFTP_STAT, "jobs/j");
    assert_true(sftp_waiting(m.session));
    begin(&p, SFTP_REALPATH, 5);
    sftp_put_string(&p.w, span_str("."));
    struct span packet = sftp_end(&p.w);
    assert_int_equal(sftp_take(m.session, packet, 1, 1), 0);
    memory_answer(&m);
    m.full = true;
    assert_int_equal(sftp_take(m.session, packet, 1, 1), 0);
    m.full = false;
    give(packet);
    struct span rest;
    assert_int_equal(next_reply(&rest), SFTP_ATTRS_REPLY);
    assert_int_equal(next_reply(&rest), SFTP_NAME_REPLY);
    memory_deinit(&m);
}

static void bytes_that_are_no_sftp_break_the_session(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } cases[] = { { "\0\0\0\x05\x11\0\0\0\x01", 9 }, { "\0\0\0\x04\x01\0\0\0", 8 }, { "\xff\xff\xff\xff", 4 }, { "GET / HTTP", 10 } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memory_init(&m);
        give(span_of(cases[i].bytes, cases[i].n));
        assert_true(sftp_broken(m.session));
        assert_int_equal(m.out_n, 0);
        memory_deinit(&m);
    }
    hello();
    give(span_of("\0\0\0\x05\x01\0\0\0\x03", 9)); /* a second INIT */
    assert_true(sftp_broken(m.session));
    memory_deinit(&m);
}

/* --- random sessions ---------------------------------------------------------------------------------- */

enum { STREAM_BYTES = 1 << 20 };

static void put_random_packet(uint8_t *to, size_t *n)
{
    static const char *const paths[] = { "inbox/a.jsonl", "inbox/b.part", "a", "jobs/j/output.jsonl", "inbox", "/", "jobs", "inbox/a.jsonl.incomplete",
                                         "../../etc/passwd", "inbox/c.part" };
    static const uint8_t types[] = { SFTP_OPEN, SFTP_CLOSE, SFTP_READ, SFTP_WRITE, SFTP_STAT, SFTP_FSTAT, SFTP_OPENDIR, SFTP_READDIR, SFTP_REMOVE,
                                     SFTP_REALPATH, SFTP_RENAME, SFTP_FSETSTAT, SFTP_MKDIR, 60 };
    struct byte_writer w = { .at = to + *n, .capacity = STREAM_BYTES - *n };
    uint8_t handle[8] = { 0, 0, 0, (uint8_t)random_below(&dice, 4), 0, 0, 0, (uint8_t)(1 + random_below(&dice, 3)) }, data[300] = "{}\n";
    uint8_t type = types[random_below(&dice, sizeof types)];
    struct span path = span_str(paths[random_below(&dice, 10)]);

    sftp_begin(&w, type, (uint32_t)random_below(&dice, 1000));
    bool by_handle = type == SFTP_CLOSE || type == SFTP_READ || type == SFTP_WRITE || type == SFTP_FSTAT || type == SFTP_READDIR || type == SFTP_FSETSTAT;
    sftp_put_string(&w, by_handle ? span_of(handle, 8) : path);
    if (type == SFTP_OPEN)
        sftp_put_u32(&w, (uint32_t)random_below(&dice, 64));
    if (type == SFTP_READ || type == SFTP_WRITE)
        sftp_put_u64(&w, random_below(&dice, 2000));
    if (type == SFTP_READ)
        sftp_put_u32(&w, (uint32_t)random_below(&dice, 3000));
    if (type == SFTP_WRITE)
        sftp_put_string(&w, span_of(data, random_below(&dice, sizeof data)));
    if (type == SFTP_RENAME)
        sftp_put_string(&w, span_str(paths[random_below(&dice, 10)]));
    if (type == SFTP_OPEN || type == SFTP_FSETSTAT || type == SFTP_MKDIR)
        sftp_put_attrs(&w, &(struct sftp_attrs){ .has_size = random_below(&dice, 2), .size = random_below(&dice, 2000) });
    if (random_below(&dice, 20) == 0)
        sftp_put_u32(&w, 0); /* too long */
    *n += sftp_end(&w).n;
}

static void play(struct span stream, bool in_pieces)
{
    memory_init(&m);
    m.delay = in_pieces;
    for (size_t at = 0; at < stream.n;) {
        size_t n = in_pieces ? 1 + random_below(&dice, 40) : stream.n;
        n = n < stream.n - at ? n : stream.n - at;
        m.full = in_pieces && random_below(&dice, 4) == 0;
        at += sftp_take(m.session, span_of(stream.at + at, n), 1, 1000000000);
        if (m.asked && random_below(&dice, 2))
            memory_answer(&m);
    }
    if (m.asked)
        memory_answer(&m);
}

static void a_session_in_pieces_with_late_answers_gives_the_same_replies(void **state)
{
    static uint8_t stream[STREAM_BYTES], replies[MEMORY_OUT_BYTES];

    (void)state;
    for (int round = 0; round < (int)random_ops(); round++) {
        size_t n = 9;
        memcpy(stream, "\0\0\0\x05\x01\0\0\0\x03", 9);
        for (int i = 0; i < 60; i++)
            put_random_packet(stream, &n);
        play(span_of(stream, n), false);
        size_t replies_n = m.out_n;
        memcpy(replies, m.out, replies_n);
        unsigned joined = m.n_joined;
        memory_deinit(&m);
        play(span_of(stream, n), true);
        assert_int_equal(m.out_n, replies_n);
        assert_memory_equal(m.out, replies, replies_n);
        assert_int_equal(m.n_joined, joined);
        memory_deinit(&m);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_become_places_by_their_words),
        cmocka_unit_test(canonical_paths_are_those_of_a_list_of_words),
        cmocka_unit_test(names_say_where_they_are_stored),
        cmocka_unit_test(a_packet_cut_anywhere_is_told_and_never_read_over),
        cmocka_unit_test(a_file_is_written_closed_and_asked_for),
        cmocka_unit_test(a_file_is_not_renamed_while_it_is_open_for_writing),
        cmocka_unit_test(a_write_over_the_limit_spoils_the_file),
        cmocka_unit_test(handles_are_bounded_and_never_mistaken),
        cmocka_unit_test(nothing_is_taken_while_an_answer_is_owed_or_the_client_does_not_read),
        cmocka_unit_test(bytes_that_are_no_sftp_break_the_session),
        cmocka_unit_test(a_session_in_pieces_with_late_answers_gives_the_same_replies),
    };

    dice = random_start(argc, argv, 300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
