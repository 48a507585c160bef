/* sftp_path.c - paths made into places, by their words alone.  See sftp_path.h. */
#include "sftp_path.h"

#include <stdio.h>

#include "utf8.h"

#define INCOMPLETE ".incomplete"
#define NOTE       ".incomplete.txt"

static const char *const job_files[SFTP_JOB_FILES] = { "input.jsonl", "output.jsonl", "errors.jsonl", "status.json" };

/* --- paths --------------------------------------------------------------------------------------- */

enum status sftp_path_canonical(struct span path, char *to, size_t bytes)
{
    size_t n = 0;

    if (path.n > SFTP_PATH_BYTES_MAX || bytes < SFTP_PATH_BYTES_MAX + 2 || (path.n > 0 && memchr(path.at, 0, path.n) != NULL))
        return ST_INVALID;
    for (size_t i = 0; i < path.n;) {
        const uint8_t *word = path.at + i, *slash = memchr(word, '/', path.n - i);
        size_t length = slash != NULL ? (size_t)(slash - word) : path.n - i;
        i += length + 1;
        if (length == 0 || (length == 1 && word[0] == '.'))
            continue;
        if (length == 2 && word[0] == '.' && word[1] == '.') {
            while (n > 0 && to[--n] != '/')
                ;
            continue;
        }
        to[n++] = '/';
        memcpy(to + n, word, length);
        n += length;
    }
    if (n == 0)
        to[n++] = '/';
    to[n] = '\0';
    return ST_OK;
}

static bool copy_word(struct span s, char *to, size_t bytes)
{
    if (s.n >= bytes)
        return false;
    memcpy(to, s.at, s.n);
    to[s.n] = '\0';
    return true;
}

/* What is behind /inbox (depth 1: the name) or /jobs. */
static void place_below(const struct span *words, size_t n, struct sftp_place *p)
{
    bool inbox = span_is(words[0], "inbox");

    if (n == 1) {
        p->kind = inbox ? PLACE_INBOX : PLACE_JOBS;
    } else if (inbox) {
        if (n == 2 && inbox_name_valid(words[1]) && copy_word(words[1], p->name, sizeof p->name))
            p->kind = PLACE_INBOX_FILE;
    } else if (copy_word(words[1], p->job, sizeof p->job)) {
        if (n == 2)
            p->kind = PLACE_JOB;
        else if (n == 3 && copy_word(words[2], p->name, sizeof p->name) && sftp_job_file(p->name) >= 0)
            p->kind = PLACE_JOB_FILE;
    }
}

void sftp_place_of(struct span path, struct sftp_place *ret_place)
{
    enum { WORDS_MAX = 4 };
    char canonical[SFTP_PATH_BYTES_MAX + 2];
    struct span words[WORDS_MAX];
    size_t n = 0;

    *ret_place = (struct sftp_place){ .kind = PLACE_NOWHERE };
    if (sftp_path_canonical(path, canonical, sizeof canonical) != ST_OK)
        return;
    for (char *at = canonical + 1; *at != '\0' && n < WORDS_MAX;) {
        size_t length = strcspn(at, "/");
        words[n++] = span_of(at, length);
        at += length + (at[length] == '/');
    }
    if (n == 0)
        ret_place->kind = PLACE_ROOT;
    else if (span_is(words[0], "inbox") || span_is(words[0], "jobs"))
        place_below(words, n, ret_place);
    else if (n == 1 && inbox_name_valid(words[0]) && copy_word(words[0], ret_place->name, sizeof ret_place->name))
        ret_place->kind = PLACE_INBOX_FILE;
}

int sftp_job_file(const char *name)
{
    for (int i = 0; i < SFTP_JOB_FILES; i++) {
        if (strcmp(name, job_files[i]) == 0)
            return i;
    }
    return -1;
}

const char *sftp_job_file_name(enum sftp_job_file which)
{
    return job_files[which];
}

/* --- names of the inbox ---------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

/* What the name of a file that is still being written ends in; "": nothing of the kind. */
static const char *unfinished_ending(const char *name)
{
    static const char *const endings[] = { INCOMPLETE, ".filepart", ".part", ".tmp" };

    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        if (ends_with(name, endings[i]))
            return endings[i];
    }
    return "";
}

bool inbox_name_valid(struct span name)
{
    if (name.n == 0 || name.n >= SFTP_NAME_BYTES || span_is(name, ".") || span_is(name, ".."))
        return false;
    for (size_t i = 0; i < name.n; i++) {
        if (name.at[i] < 0x20 || name.at[i] == 0x7f || name.at[i] == '/')
            return false;
    }
    return true;
}

bool inbox_name_unfinished(const char *name)
{
    return name[0] == '.' || unfinished_ending(name)[0] != '\0';
}

bool inbox_name_is_note(const char *name)
{
    return ends_with(name, NOTE);
}

bool inbox_name_writable(const char *name)
{
    size_t n = strlen(name);

    if (ends_with(name, INCOMPLETE))
        n -= strlen(INCOMPLETE);
    return n <= INBOX_NAME_BYTES_MAX && !inbox_name_is_note(name);
}

void inbox_stored_name(const char *name, char to[SFTP_NAME_BYTES])
{
    const char *end = inbox_name_unfinished(name) || inbox_name_is_note(name) ? "" : INCOMPLETE;

    snprintf(to, SFTP_NAME_BYTES, "%.*s%s", SFTP_NAME_BYTES - 1 - (int)strlen(end), name, end);
}

void inbox_other_name(const char *stored, unsigned n, char to[SFTP_NAME_BYTES])
{
    const char *end = unfinished_ending(stored);
    size_t most = INBOX_NAME_BYTES_MAX - strlen("~99");
    size_t base = strlen(stored) - strlen(end);
    if (strcmp(end, INCOMPLETE) != 0)
        most -= strlen(end); /* its ending is a part of its name */
    if (base > most) {
        base = most;
        while (base > 0 && ((unsigned char)stored[base] & 0xc0) == 0x80)
            base--; /* not in the middle of a character */
    }
    snprintf(to, SFTP_NAME_BYTES, "%.*s~%u%s", (int)base, stored, n, end);
}

void inbox_note_name(const char *stored, char to[SFTP_NAME_BYTES])
{
    const char *end = ends_with(stored, INCOMPLETE) ? ".txt" : NOTE;

    snprintf(to, SFTP_NAME_BYTES, "%.*s%s", SFTP_NAME_BYTES - 1 - (int)strlen(end), stored, end);
}

void inbox_job_name(const char *name, char *to, size_t bytes)
{
    static const char *const endings[] = { ".gz", ".zst", ".jsonl", ".ndjson", ".json" };
    size_t n = strlen(name);

    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        size_t m = strlen(endings[i]);
        if (n > m && memcmp(name + n - m, endings[i], m) == 0)
            n -= m;
    }
    if (span_is(span_of(name, n), "last")) /* what the newest job is called */
        n = strlen(name) > n ? strlen(name) : 0;
    if (n >= bytes || !utf8_valid(span_of(name, n)))
        n = 0;
    memcpy(to, name, n);
    to[n] = '\0';
}
