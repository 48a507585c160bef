/* job_store.c - the SQLite side of jobs.  See job_store.h for the rules.
 *
 * All statements are prepared at the start and listed in one table; a function binds, steps and resets its own.
 * An id is 'j', five letters of the sequence number, so that ids sort by age and five letters name a job, and five random letters, so that
 * nobody guesses another's.  The alphabet has no i, l, o, u: ids are read aloud. */
#include "job_store.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "job_sql.h"
#include "log.h"

enum { SCHEMA_VERSION = 2, APPLICATION_ID = 0x57454952 };

_Static_assert(JOB_DELETED == 8 && JOB_COMPLETED == 4 && JOB_VALIDATING == 0, "job_sql.h names states by number");
_Static_assert(LINE_OPEN == 0 && LINE_ANSWERED == 1 && LINE_HELD == 3, "and those of lines");

enum statement {
#define X(name, sql) S_##name,
    JOB_SQL_STATEMENTS(X)
#undef X
        S_COUNT
};

static const char *const sql_of[S_COUNT] = {
#define X(name, sql) [S_##name] = sql,
    JOB_SQL_STATEMENTS(X)
#undef X
};

struct job_store {
    sqlite3 *db;
    sqlite3_stmt *statements[S_COUNT];
    bool early;                /* in a transaction of job_store_begin_early() */
    bool unsettled;            /* something failed since the last job_store_settle() */
};

const char *job_state_name(enum job_state s)
{
    static const char *const names[JOB_STATES] = { "validating",  "in_progress", "cancelling",
                                                   "in_progress", "completed",   "cancelled",
                                                   "expired",     "failed",      "deleted" };
    return s < JOB_STATES ? names[s] : "unknown";
}

static enum status failed(struct job_store *s, const char *what)
{
    log_error("store", "what=%s sqlite=\"%s\"", what, sqlite3_errmsg(s->db));
    s->unsettled = true;
    return ST_SYSTEM;
}

/* --- opening ------------------------------------------------------------------------------------ */

static enum status run_sql(struct job_store *s, const char *sql)
{
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? ST_OK : failed(s, "exec");
}

static int pragma_number(struct job_store *s, const char *sql)
{
    sqlite3_stmt *q = NULL;
    int n = -1;

    if (sqlite3_prepare_v2(s->db, sql, -1, &q, NULL) == SQLITE_OK && sqlite3_step(q) == SQLITE_ROW)
        n = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    return n;
}

static enum status prepare_schema(struct job_store *s, struct error *err)
{
    int version = pragma_number(s, "PRAGMA user_version");
    char sql[128];

    if (version == SCHEMA_VERSION && pragma_number(s, "PRAGMA application_id") == APPLICATION_ID)
        return ST_OK;
    bool upgrade = version == 1 && pragma_number(s, "PRAGMA application_id") == APPLICATION_ID;
    if (!upgrade && (version != 0 || pragma_number(s, "SELECT count(*) FROM sqlite_master") != 0)) {
        error_set(err, ERR_VERSION_MISMATCH, "state-dir",
                  "the job store has format %d, this program writes format %d", version, SCHEMA_VERSION);
        return ST_CORRUPT;
    }
    snprintf(sql, sizeof sql, "PRAGMA user_version=%d; PRAGMA application_id=%d;", SCHEMA_VERSION,
             APPLICATION_ID);
    enum status st = run_sql(s, "BEGIN IMMEDIATE");
    if (st == ST_OK)
        st = run_sql(s, upgrade ? JOB_SQL_UPGRADE : JOB_SQL_SCHEMA);
    if (st == ST_OK)
        st = run_sql(s, sql);
    if (st == ST_OK)
        st = run_sql(s, "COMMIT");
    if (st != ST_OK)
        error_set(err, ERR_INTERNAL, "state-dir", "cannot make the job store: %s", sqlite3_errmsg(s->db));
    return st;
}

enum status job_store_open(const char *path, struct job_store **ret_store, struct error *err)
{
    struct job_store *s = calloc(1, sizeof *s);
    enum status st = ST_SYSTEM;

    if (s == NULL) {
        error_set(err, ERR_INTERNAL, "state-dir", "out of memory");
        return ST_NOMEM;
    }
    if (sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOFOLLOW,
                        NULL) != SQLITE_OK) {
        error_set(err, ERR_INTERNAL, "state-dir", "cannot open %s: %s", path,
                  s->db != NULL ? sqlite3_errmsg(s->db) : "out of memory");
        goto out;
    }
    sqlite3_busy_timeout(s->db, 2000); /* an administrator may be looking with the sqlite3 program */
    if (run_sql(s, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=OFF; PRAGMA "
                   "trusted_schema=OFF;"
                   "PRAGMA journal_size_limit=67108864;") != ST_OK) {
        error_set(err, ERR_INTERNAL, "state-dir", "%s: %s", path, sqlite3_errmsg(s->db));
        goto out;
    }
    st = prepare_schema(s, err);
    for (int i = 0; i < S_COUNT && st == ST_OK; i++) {
        if (sqlite3_prepare_v3(s->db, sql_of[i], -1, SQLITE_PREPARE_PERSISTENT, &s->statements[i], NULL) !=
            SQLITE_OK) {
            error_set(err, ERR_INTERNAL, "state-dir", "%s: %s", path, sqlite3_errmsg(s->db));
            st = ST_CORRUPT;
        }
    }
    if (st != ST_OK)
        goto out;
    *ret_store = s;
    s = NULL;
out:
    job_store_close(s);
    return st;
}

void job_store_close(struct job_store *s)
{
    if (s == NULL)
        return;
    for (int i = 0; i < S_COUNT; i++)
        sqlite3_finalize(s->statements[i]);
    if (s->db != NULL && sqlite3_close(s->db) != SQLITE_OK)
        log_error("store", "what=close");
    free(s);
}

/* --- small tools --------------------------------------------------------------------------------- */

/* Run a statement that gives no rows; its parameters are bound already. */
static enum status run(struct job_store *s, enum statement which)
{
    sqlite3_stmt *q = s->statements[which];
    int rc = sqlite3_step(q);

    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    if (rc == SQLITE_DONE)
        return ST_OK;
    if (rc == SQLITE_CONSTRAINT)
        return ST_INVALID;
    return failed(s, sql_of[which]);
}

static void bind_text(sqlite3_stmt *q, int i, const char *text)
{
    sqlite3_bind_text(q, i, text, -1, SQLITE_STATIC);
}

static void copy_text(char *to, size_t bytes, sqlite3_stmt *q, int column)
{
    const unsigned char *text = sqlite3_column_text(q, column);

    snprintf(to, bytes, "%s", text != NULL ? (const char *)text : "");
}

static void read_row(sqlite3_stmt *q, struct job_row *r)
{
    *r = (struct job_row){ .seq = sqlite3_column_int64(q, 0) };
    copy_text(r->id, sizeof r->id, q, 1);
    copy_text(r->user, sizeof r->user, q, 2);
    copy_text(r->name, sizeof r->name, q, 3);
    copy_text(r->key, sizeof r->key, q, 4);
    copy_text(r->digest, sizeof r->digest, q, 5);
    copy_text(r->model, sizeof r->model, q, 6);
    r->max_tokens = (uint32_t)sqlite3_column_int64(q, 7);
    r->priority = (uint32_t)sqlite3_column_int64(q, 8);
    int state = sqlite3_column_int(q, 9);
    r->state = state >= 0 && state < JOB_STATES ? (enum job_state)state : JOB_FAILED;
    r->created_ms = sqlite3_column_int64(q, 10);
    r->started_ms = sqlite3_column_int64(q, 11);
    r->ended_ms = sqlite3_column_int64(q, 12);
    r->deadline_ms = sqlite3_column_int64(q, 13);
    uint64_t *const counts[] = { &r->n_lines,       &r->n_done,        &r->n_failed,
                                 &r->n_retries,     &r->n_length,      &r->prompt_tokens,
                                 &r->cached_tokens, &r->completion_tokens, &r->input_bytes,
                                 &r->output_bytes,  &r->errors_bytes };
    for (int i = 0; i < 11; i++)
        *counts[i] = (uint64_t)sqlite3_column_int64(q, 14 + i);
    copy_text(r->error, sizeof r->error, q, 25);
    r->n_held = (uint64_t)sqlite3_column_int64(q, 26);
}

/* Step a bound query for one job. */
static enum status one_row(struct job_store *s, enum statement which, struct job_row *ret_row)
{
    sqlite3_stmt *q = s->statements[which];
    int rc = sqlite3_step(q);
    enum status st = ST_NOT_FOUND;

    if (rc == SQLITE_ROW) {
        read_row(q, ret_row);
        st = ST_OK;
    } else if (rc != SQLITE_DONE) {
        st = failed(s, sql_of[which]);
    }
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    return st;
}

/* --- transactions --------------------------------------------------------------------------------- */

/* Every commit is synced again.  A store that cannot be told so must not go on: it would print ids that are not on disk. */
static void end_early(struct job_store *s)
{
    if (!s->early)
        return;
    s->early = false;
    if (run_sql(s, "PRAGMA synchronous=FULL") != ST_OK)
        abort();
}

enum status job_store_begin(struct job_store *s)
{
    return run(s, S_BEGIN);
}

enum status job_store_begin_early(struct job_store *s)
{
    enum status st = run_sql(s, "PRAGMA synchronous=NORMAL");

    s->early = true;
    if (st == ST_OK)
        st = job_store_begin(s);
    if (st != ST_OK)
        end_early(s);
    return st;
}

enum status job_store_commit(struct job_store *s)
{
    enum status st = run(s, S_COMMIT);

    if (st != ST_OK)
        job_store_rollback(s);
    end_early(s);
    return st;
}

void job_store_rollback(struct job_store *s)
{
    if (sqlite3_get_autocommit(s->db) == 0 && run(s, S_ROLLBACK) != ST_OK)
        log_error("store", "what=rollback");
    end_early(s);
}

/* Any commit will do: it begins where the one that failed began, whose end is then no longer part of the log. */
enum status job_store_settle(struct job_store *s)
{
    char sql[64];

    if (!s->unsettled)
        return ST_OK;
    snprintf(sql, sizeof sql, "PRAGMA user_version=%d", SCHEMA_VERSION); /* writes, though it changes nothing */
    enum status st = run_sql(s, sql);
    s->unsettled = st != ST_OK;
    return st;
}

/* --- jobs ----------------------------------------------------------------------------------------- */

static void make_id(int64_t seq, char id[JOB_ID_BYTES])
{
    static const char letters[] = "0123456789abcdefghjkmnpqrstvwxyz";
    uint8_t dice[5];
    char *at = id;

    *at++ = 'j';
    for (int shift = 20; shift >= 0; shift -= 5)
        *at++ = letters[(seq >> shift) & 31];
    if (getrandom(dice, sizeof dice, 0) != sizeof dice)
        memset(dice, (int)(seq & 31), sizeof dice);
    for (int i = 0; i < 5; i++)
        *at++ = letters[dice[i] & 31];
    *at = '\0';
}

enum status job_store_add(struct job_store *s, struct job_row *row)
{
    sqlite3_stmt *q = s->statements[S_ADD];
    char provisional[40];
    uint64_t dice = 0;

    if (getrandom(&dice, sizeof dice, 0) != sizeof dice)
        return ST_SYSTEM;
    snprintf(provisional, sizeof provisional, "new-%llx",
             (unsigned long long)dice); /* the id needs the number, the row an id */
    bind_text(q, 1, provisional);
    bind_text(q, 2, row->user);
    bind_text(q, 3, row->name);
    if (row->key[0] != '\0')
        bind_text(q, 4, row->key);
    bind_text(q, 5, row->digest);
    bind_text(q, 6, row->model);
    sqlite3_bind_int64(q, 7, row->max_tokens);
    sqlite3_bind_int64(q, 8, row->priority);
    sqlite3_bind_int(q, 9, (int)row->state);
    sqlite3_bind_int64(q, 10, row->created_ms);
    sqlite3_bind_int64(q, 11, row->deadline_ms);
    sqlite3_bind_int64(q, 12, (int64_t)row->input_bytes);
    enum status st = run(s, S_ADD);
    if (st != ST_OK)
        return st;
    int64_t seq = sqlite3_last_insert_rowid(s->db);
    char id[JOB_ID_BYTES];
    make_id(seq, id);
    q = s->statements[S_SET_ID];
    sqlite3_bind_int64(q, 1, seq);
    bind_text(q, 2, id);
    st = run(s, S_SET_ID);
    if (st != ST_OK)
        return st;
    row->seq = seq;
    memcpy(row->id, id, sizeof id);
    return ST_OK;
}

enum status job_store_save(struct job_store *s, const struct job_row *row)
{
    sqlite3_stmt *q = s->statements[S_SAVE];
    const uint64_t counts[] = { row->n_lines,       row->n_done,        row->n_failed,          row->n_retries,
                                row->n_length,      row->prompt_tokens, row->cached_tokens, row->completion_tokens,
                                row->output_bytes,  row->errors_bytes };

    sqlite3_bind_int64(q, 1, row->seq);
    sqlite3_bind_int(q, 2, (int)row->state);
    sqlite3_bind_int64(q, 3, row->started_ms);
    sqlite3_bind_int64(q, 4, row->ended_ms);
    for (int i = 0; i < 10; i++)
        sqlite3_bind_int64(q, 5 + i, (int64_t)counts[i]);
    bind_text(q, 15, row->error);
    bind_text(q, 16, row->digest);
    if (row->key[0] != '\0' && row->state != JOB_DELETED) /* a deleted job gives its key free */
        bind_text(q, 17, row->key);
    sqlite3_bind_int64(q, 18, row->deadline_ms);
    sqlite3_bind_int64(q, 19, (int64_t)row->n_held);
    return run(s, S_SAVE);
}

enum status job_store_by_seq(struct job_store *s, int64_t seq, struct job_row *ret_row)
{
    sqlite3_bind_int64(s->statements[S_BY_SEQ], 1, seq);
    return one_row(s, S_BY_SEQ, ret_row);
}

enum status job_store_by_key(struct job_store *s, const char *user, const char *key, struct job_row *ret_row)
{
    bind_text(s->statements[S_BY_KEY], 1, user);
    bind_text(s->statements[S_BY_KEY], 2, key);
    return one_row(s, S_BY_KEY, ret_row);
}

static enum status find_by(struct job_store *s, enum statement which, const char *user, const char *what,
                           struct job_row *ret_row)
{
    bind_text(s->statements[which], 1, user);
    if (what != NULL)
        bind_text(s->statements[which], 2, what);
    return one_row(s, which, ret_row);
}

/* The only job whose id begins so.  ST_INVALID: there are several. */
static enum status find_by_prefix(struct job_store *s, const char *user, const char *what,
                                  struct job_row *ret_row)
{
    sqlite3_stmt *q = s->statements[S_BY_PREFIX];
    struct job_row row;
    enum status st = ST_NOT_FOUND;

    bind_text(q, 1, user);
    bind_text(q, 2, what);
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW) {
        read_row(q, &row);
        rc = sqlite3_step(q);
        st = rc == SQLITE_ROW ? ST_INVALID : ST_OK;
    }
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        st = failed(s, "prefix");
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    if (st == ST_OK)
        *ret_row = row;
    return st;
}

enum status job_store_find(struct job_store *s, const char *user, const char *what, struct job_row *ret_row,
                           struct error *err)
{
    enum status st = find_by(s, S_BY_ID, user, what, ret_row);

    if (st == ST_NOT_FOUND && strcmp(what, "last") == 0) {
        st = find_by(s, S_LAST, user, NULL, ret_row);
        if (st == ST_NOT_FOUND) {
            error_set(err, ERR_NOT_FOUND, NULL, "you have no jobs");
            return st;
        }
    }
    if (st == ST_NOT_FOUND)
        st = find_by(s, S_BY_NAME, user, what, ret_row);
    if (st == ST_NOT_FOUND && what[0] != '\0')
        st = find_by_prefix(s, user, what, ret_row);
    if (st == ST_INVALID) {
        error_set(err, ERR_NOT_FOUND, NULL, "\"%.40s\" is the beginning of several job ids; give more of it",
                  what);
        return ST_NOT_FOUND;
    }
    if (st == ST_NOT_FOUND)
        error_set(err, ERR_NOT_FOUND, NULL, "you have no job \"%.40s\"; `list --all` shows them", what);
    else if (st != ST_OK)
        error_set(err, ERR_INTERNAL, NULL, "the job store cannot be read");
    return st;
}

static enum status each_row(struct job_store *s, enum statement which,
                            bool (*each)(const struct job_row *, void *), void *arg)
{
    sqlite3_stmt *q = s->statements[which];
    enum status st = ST_OK;
    int rc;

    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        struct job_row row;
        read_row(q, &row);
        if (!each(&row, arg))
            break;
    }
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        st = failed(s, sql_of[which]);
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    return st;
}

enum status job_store_each(struct job_store *s, const char *user, int64_t since_ms,
                           bool (*each)(const struct job_row *, void *), void *arg)
{
    if (user == NULL)
        return each_row(s, S_UNFINISHED, each, arg);
    bind_text(s->statements[S_LIST], 1, user);
    sqlite3_bind_int64(s->statements[S_LIST], 2, since_ms);
    return each_row(s, S_LIST, each, arg);
}

enum status job_store_count_open(struct job_store *s, const char *user, uint64_t *ret_n)
{
    sqlite3_stmt *q = s->statements[S_COUNT_OPEN];
    enum status st = ST_OK;

    bind_text(q, 1, user);
    if (sqlite3_step(q) == SQLITE_ROW)
        *ret_n = (uint64_t)sqlite3_column_int64(q, 0);
    else
        st = failed(s, "count");
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    return st;
}

enum status job_store_count_states(struct job_store *s, uint64_t ret_n[JOB_STATES])
{
    sqlite3_stmt *q = s->statements[S_COUNT_STATES];
    uint64_t n[JOB_STATES] = { 0 };
    int rc;

    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        int state = sqlite3_column_int(q, 0);
        if (state >= 0 && state < JOB_STATES)
            n[state] = (uint64_t)sqlite3_column_int64(q, 1);
    }
    enum status st = rc == SQLITE_DONE ? ST_OK : failed(s, "count_states");
    sqlite3_reset(q);
    if (st == ST_OK)
        memcpy(ret_n, n, sizeof n);
    return st;
}

/* --- lines ---------------------------------------------------------------------------------------- */

enum status job_store_add_line(struct job_store *s, int64_t seq, const struct line_ref *line,
                               const char *custom_id, uint32_t *ret_first)
{
    sqlite3_stmt *q = s->statements[S_ADD_ID];

    sqlite3_bind_int64(q, 1, seq);
    bind_text(q, 2, custom_id);
    sqlite3_bind_int64(q, 3, line->number);
    enum status st = run(s, S_ADD_ID);
    if (st == ST_INVALID) {
        q = s->statements[S_FIND_ID];
        sqlite3_bind_int64(q, 1, seq);
        bind_text(q, 2, custom_id);
        if (sqlite3_step(q) == SQLITE_ROW)
            *ret_first = (uint32_t)sqlite3_column_int64(q, 0);
        sqlite3_reset(q);
        sqlite3_clear_bindings(q);
        return ST_INVALID;
    }
    if (st != ST_OK)
        return st;
    q = s->statements[S_ADD_LINE];
    sqlite3_bind_int64(q, 1, seq);
    sqlite3_bind_int64(q, 2, line->number);
    sqlite3_bind_int64(q, 3, (int64_t)line->offset);
    sqlite3_bind_int64(q, 4, line->bytes);
    return run(s, S_ADD_LINE) == ST_OK ? ST_OK : ST_SYSTEM;
}

enum status job_store_line_done(struct job_store *s, int64_t seq, uint32_t number, enum line_state state,
                                uint64_t offset, uint32_t bytes)
{
    sqlite3_stmt *q = s->statements[S_LINE_DONE];

    sqlite3_bind_int64(q, 1, seq);
    sqlite3_bind_int64(q, 2, number);
    sqlite3_bind_int(q, 3, (int)state);
    sqlite3_bind_int64(q, 4, (int64_t)offset);
    sqlite3_bind_int64(q, 5, bytes);
    enum status st = run(s, S_LINE_DONE);
    if (st == ST_OK && sqlite3_changes(s->db) != 1) {
        log_error("store", "what=line_done_twice line=%u",
                  number); /* the promise of this file: refuse the transaction */
        return ST_CORRUPT;
    }
    return st;
}

enum status job_store_open_lines(struct job_store *s, int64_t seq, uint32_t after, struct line_ref *ret_lines,
                                 size_t max, size_t *ret_n)
{
    sqlite3_stmt *q = s->statements[S_OPEN_LINES];
    enum status st = ST_OK;
    size_t n = 0;
    int rc = SQLITE_DONE;

    sqlite3_bind_int64(q, 1, seq);
    sqlite3_bind_int64(q, 2, after);
    sqlite3_bind_int64(q, 3, (int64_t)max);
    while (n < max && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        ret_lines[n++] = (struct line_ref){ .number = (uint32_t)sqlite3_column_int64(q, 0),
                                            .bytes = (uint32_t)sqlite3_column_int64(q, 1),
                                            .offset = (uint64_t)sqlite3_column_int64(q, 2) };
    }
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        st = failed(s, "open_lines");
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    if (st == ST_OK)
        *ret_n = n;
    return st;
}

static struct line_ref read_ref(sqlite3_stmt *q, int column)
{
    return (struct line_ref){ .number = (uint32_t)sqlite3_column_int64(q, column),
                              .bytes = (uint32_t)sqlite3_column_int64(q, column + 1),
                              .offset = (uint64_t)sqlite3_column_int64(q, column + 2) };
}

enum status job_store_pairs(struct job_store *s, int64_t to, int64_t from, char *after, size_t after_bytes,
                            struct line_pair *ret_pairs, size_t max, size_t *ret_n)
{
    sqlite3_stmt *q = s->statements[S_PAIRS];
    char last[CUSTOM_ID_BYTES_MAX + 64] = "";
    enum status st = ST_OK;
    size_t n = 0;
    int rc = SQLITE_DONE;

    sqlite3_bind_int64(q, 1, to);
    sqlite3_bind_int64(q, 2, from);
    bind_text(q, 3, after);
    sqlite3_bind_int64(q, 4, (int64_t)max);
    while (n < max && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        copy_text(last, sizeof last, q, 0);
        ret_pairs[n] = (struct line_pair){ .to = read_ref(q, 1), .from = read_ref(q, 4) };
        ret_pairs[n].place = (struct line_place){ .number = ret_pairs[n].from.number,
                                                  .offset = (uint64_t)sqlite3_column_int64(q, 7),
                                                  .bytes = (uint32_t)sqlite3_column_int64(q, 8) };
        n++;
    }
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        st = failed(s, "pairs");
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    if (st != ST_OK)
        return st;
    if (n > 0)
        snprintf(after, after_bytes, "%s", last);
    *ret_n = n;
    return ST_OK;
}

enum status job_store_places(struct job_store *s, int64_t seq, struct line_place **ret_places, size_t *ret_n)
{
    sqlite3_stmt *q = s->statements[S_PLACES];
    struct line_place *places = NULL;
    size_t n = 0, capacity = 0;
    enum status st = ST_OK;
    int rc;

    sqlite3_bind_int64(q, 1, seq);
    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        if (n == capacity) {
            capacity = capacity == 0 ? 1024 : capacity * 2;
            struct line_place *bigger = realloc(places, capacity * sizeof *places);
            if (bigger == NULL) {
                st = ST_NOMEM;
                break;
            }
            places = bigger;
        }
        places[n++] = (struct line_place){ .offset = (uint64_t)sqlite3_column_int64(q, 0),
                                           .bytes = (uint32_t)sqlite3_column_int64(q, 1),
                                           .number = (uint32_t)sqlite3_column_int64(q, 2) };
    }
    if (st == ST_OK && rc != SQLITE_DONE)
        st = failed(s, "places");
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    if (st != ST_OK) {
        free(places);
        return st;
    }
    *ret_places = places;
    *ret_n = n;
    return ST_OK;
}

enum status job_store_reopen_lines(struct job_store *s, int64_t seq, enum line_state which)
{
    sqlite3_stmt *q = s->statements[S_REOPEN_LINES];

    sqlite3_bind_int64(q, 1, seq);
    sqlite3_bind_int(q, 2, (int)which);
    return run(s, S_REOPEN_LINES);
}

enum status job_store_hold_lines(struct job_store *s, int64_t seq, uint64_t n, uint64_t *ret_held)
{
    sqlite3_stmt *q = s->statements[S_HOLD_LINES];

    sqlite3_bind_int64(q, 1, seq);
    sqlite3_bind_int64(q, 2, (int64_t)n);
    enum status st = run(s, S_HOLD_LINES);
    if (st == ST_OK)
        *ret_held = (uint64_t)sqlite3_changes(s->db);
    return st;
}

/* --- usage ---------------------------------------------------------------------------------------- */

int64_t usage_day(int64_t real_ms)
{
    return real_ms / 86400000;
}

int64_t usage_month(int64_t real_ms)
{
    time_t seconds = (time_t)(real_ms / 1000);
    struct tm tm;

    return gmtime_r(&seconds, &tm) != NULL ? usage_day(real_ms) - (tm.tm_mday - 1) : usage_day(real_ms);
}

enum status job_store_add_usage(struct job_store *s, const char *user, int64_t day, const struct usage *more)
{
    sqlite3_stmt *q = s->statements[S_ADD_USAGE];
    const uint64_t counts[] = { more->jobs,          more->questions,     more->answers,          more->errors,
                                more->prompt_tokens, more->cached_tokens, more->completion_tokens };

    bind_text(q, 1, user);
    sqlite3_bind_int64(q, 2, day);
    for (int i = 0; i < 7; i++)
        sqlite3_bind_int64(q, 3 + i, (int64_t)counts[i]);
    return run(s, S_ADD_USAGE);
}

enum status job_store_usage(struct job_store *s, const char *user, int64_t since, struct usage *ret_usage)
{
    sqlite3_stmt *q = s->statements[S_USAGE];
    struct usage u = { 0 };
    uint64_t *const counts[] = { &u.jobs,          &u.questions,     &u.answers,          &u.errors,
                                 &u.prompt_tokens, &u.cached_tokens, &u.completion_tokens };
    enum status st = ST_OK;

    bind_text(q, 1, user);
    sqlite3_bind_int64(q, 2, since);
    if (sqlite3_step(q) != SQLITE_ROW)
        st = failed(s, "usage");
    for (int i = 0; i < 7 && st == ST_OK; i++)
        *counts[i] = (uint64_t)sqlite3_column_int64(q, i);
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    if (st == ST_OK)
        *ret_usage = u;
    return st;
}

/* --- removal -------------------------------------------------------------------------------------- */

static enum status drop_some(struct job_store *s, enum statement which, int64_t seq, unsigned max,
                             int *ret_dropped)
{
    sqlite3_stmt *q = s->statements[which];

    sqlite3_bind_int64(q, 1, seq);
    sqlite3_bind_int64(q, 2, max);
    enum status st = run(s, which);
    if (st == ST_OK)
        *ret_dropped = sqlite3_changes(s->db);
    return st;
}

enum status job_store_sweep(struct job_store *s, unsigned lines_max,
                            void (*remove)(const struct job_row *, void *), void *arg, bool *ret_left)
{
    struct job_row row;
    int lines = 0, ids = 0;
    enum status st = one_row(s, S_DELETED, &row);

    if (st == ST_NOT_FOUND) {
        *ret_left = false;
        return ST_OK;
    }
    if (st == ST_OK)
        st = job_store_begin(s);
    if (st != ST_OK)
        return st;
    st = drop_some(s, S_DROP_LINES, row.seq, lines_max, &lines);
    if (st == ST_OK)
        st = drop_some(s, S_DROP_IDS, row.seq, lines_max, &ids);
    if (st == ST_OK && lines == 0 && ids == 0) {
        remove(&row, arg); /* files first: without the row nobody would know of them */
        sqlite3_bind_int64(s->statements[S_DROP_JOB], 1, row.seq);
        st = run(s, S_DROP_JOB);
    }
    if (st != ST_OK) {
        job_store_rollback(s);
        return st;
    }
    *ret_left = true;
    return job_store_commit(s);
}

enum status job_store_expire(struct job_store *s, int64_t ended_before_ms)
{
    sqlite3_bind_int64(s->statements[S_EXPIRE], 1, ended_before_ms);
    return run(s, S_EXPIRE);
}
