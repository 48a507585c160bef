/* job_sql.h - the tables of the job store and every statement on them; only job_store.c includes it.
 *
 *   jobs    one row a job; counters are columns
 *   lines   where a line is in the input, whether it is done (enum line_state), where its answer is in the output
 *   ids     custom_id -> line, to find duplicates
 *   usage   what a user used on a day (UTC), kept when jobs are deleted */
#ifndef JOB_SQL_H
#define JOB_SQL_H

#define JOB_SQL_SCHEMA                                                                                       \
    "CREATE TABLE jobs("                                                                                     \
    "  seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, user TEXT NOT NULL,"                  \
    "  name TEXT NOT NULL, key TEXT, digest TEXT NOT NULL, model TEXT NOT NULL,"                             \
    "  max_tokens INTEGER NOT NULL, priority INTEGER NOT NULL, state INTEGER NOT NULL,"                      \
    "  created_ms INTEGER NOT NULL, started_ms INTEGER NOT NULL DEFAULT 0,"                                  \
    "  ended_ms INTEGER NOT NULL DEFAULT 0, deadline_ms INTEGER NOT NULL,"                                   \
    "  n_lines INTEGER NOT NULL DEFAULT 0, n_done INTEGER NOT NULL DEFAULT 0,"                               \
    "  n_failed INTEGER NOT NULL DEFAULT 0, n_retries INTEGER NOT NULL DEFAULT 0,"                           \
    "  n_length INTEGER NOT NULL DEFAULT 0, prompt_tokens INTEGER NOT NULL DEFAULT 0,"                       \
    "  cached_tokens INTEGER NOT NULL DEFAULT 0, completion_tokens INTEGER NOT NULL DEFAULT 0,"              \
    "  input_bytes INTEGER NOT NULL, output_bytes INTEGER NOT NULL DEFAULT 0,"                               \
    "  errors_bytes INTEGER NOT NULL DEFAULT 0, error TEXT NOT NULL DEFAULT '',"                             \
    "  n_held INTEGER NOT NULL DEFAULT 0);"                                                                  \
    "CREATE UNIQUE INDEX jobs_key ON jobs(user, key) WHERE key IS NOT NULL;"                                 \
    "CREATE INDEX jobs_user ON jobs(user, seq);"                                                             \
    "CREATE INDEX jobs_state ON jobs(state);"                                                                \
    "CREATE TABLE lines("                                                                                    \
    "  job INTEGER NOT NULL, line INTEGER NOT NULL, offset INTEGER NOT NULL, bytes INTEGER NOT NULL,"        \
    "  state INTEGER NOT NULL DEFAULT 0, place INTEGER NOT NULL DEFAULT 0,"                                  \
    "  place_bytes INTEGER NOT NULL DEFAULT 0, PRIMARY KEY(job, line)) WITHOUT ROWID;"                       \
    "CREATE TABLE ids("                                                                                      \
    "  job INTEGER NOT NULL, custom_id TEXT NOT NULL, line INTEGER NOT NULL,"                                \
    "  PRIMARY KEY(job, custom_id)) WITHOUT ROWID;" JOB_SQL_USAGE

#define JOB_SQL_USAGE                                                                                        \
    "CREATE TABLE usage("                                                                                    \
    "  user TEXT NOT NULL, day INTEGER NOT NULL, jobs INTEGER NOT NULL DEFAULT 0,"                           \
    "  questions INTEGER NOT NULL DEFAULT 0, answers INTEGER NOT NULL DEFAULT 0,"                            \
    "  errors INTEGER NOT NULL DEFAULT 0, prompt_tokens INTEGER NOT NULL DEFAULT 0,"                         \
    "  cached_tokens INTEGER NOT NULL DEFAULT 0, completion_tokens INTEGER NOT NULL DEFAULT 0,"              \
    "  PRIMARY KEY(user, day)) WITHOUT ROWID;"

/* From format 1. */
#define JOB_SQL_UPGRADE "ALTER TABLE jobs ADD COLUMN n_held INTEGER NOT NULL DEFAULT 0;" JOB_SQL_USAGE

/* In the order in which read_row() takes them. */
#define JOB_SQL_COLUMNS                                                                                      \
    "seq, id, user, name, key, digest, model, max_tokens, priority, state, created_ms, started_ms,"          \
    " ended_ms, deadline_ms, n_lines, n_done, n_failed, n_retries, n_length, prompt_tokens,"                 \
    " cached_tokens, completion_tokens, input_bytes, output_bytes, errors_bytes, error, n_held"

#define JOB_SQL_SELECT "SELECT " JOB_SQL_COLUMNS " FROM jobs WHERE "

/* State 8 is JOB_DELETED, 4 JOB_COMPLETED, the first that has ended. */
#define JOB_SQL_STATEMENTS(X)                                                                                \
    X(BEGIN, "BEGIN IMMEDIATE")                                                                              \
    X(COMMIT, "COMMIT")                                                                                      \
    X(ROLLBACK, "ROLLBACK")                                                                                  \
    X(ADD, "INSERT INTO jobs(id, user, name, key, digest, model, max_tokens, priority, state, created_ms,"   \
           " deadline_ms, input_bytes) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)")          \
    X(SET_ID, "UPDATE jobs SET id=?2 WHERE seq=?1")                                                          \
    X(SAVE, "UPDATE jobs SET state=?2, started_ms=?3, ended_ms=?4, n_lines=?5, n_done=?6, n_failed=?7,"      \
            " n_retries=?8, n_length=?9, prompt_tokens=?10, cached_tokens=?11, completion_tokens=?12,"       \
            " output_bytes=?13, errors_bytes=?14, error=?15, digest=?16, key=?17, deadline_ms=?18,"          \
            " n_held=?19 WHERE seq=?1")                                                                      \
    X(ADD_LINE, "INSERT INTO lines(job, line, offset, bytes) VALUES (?1, ?2, ?3, ?4)")                       \
    X(ADD_ID, "INSERT INTO ids(job, custom_id, line) VALUES (?1, ?2, ?3)")                                   \
    X(FIND_ID, "SELECT line FROM ids WHERE job=?1 AND custom_id=?2")                                         \
    X(LINE_DONE, "UPDATE lines SET state=?3, place=?4, place_bytes=?5 WHERE job=?1 AND line=?2 AND state=0") \
    X(REOPEN_LINES, "UPDATE lines SET state=0, place=0, place_bytes=0 WHERE job=?1 AND state=?2")            \
    X(HOLD_LINES, "UPDATE lines SET state=3 WHERE job=?1 AND state=0 AND line NOT IN"                        \
                  " (SELECT line FROM lines WHERE job=?1 AND state=0 ORDER BY random() LIMIT ?2)")           \
    X(ADD_USAGE, "INSERT INTO usage(user, day, jobs, questions, answers, errors, prompt_tokens,"             \
                 " cached_tokens, completion_tokens) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"            \
                 " ON CONFLICT(user, day) DO UPDATE SET jobs=jobs+?3, questions=questions+?4,"               \
                 " answers=answers+?5, errors=errors+?6, prompt_tokens=prompt_tokens+?7,"                    \
                 " cached_tokens=cached_tokens+?8, completion_tokens=completion_tokens+?9")                  \
    X(USAGE, "SELECT sum(jobs), sum(questions), sum(answers), sum(errors), sum(prompt_tokens),"              \
             " sum(cached_tokens), sum(completion_tokens) FROM usage WHERE user=?1 AND day>=?2")             \
    X(PAIRS, "SELECT i.custom_id, n.line, n.bytes, n.offset, o.line, o.bytes, o.offset, o.place,"            \
             " o.place_bytes FROM ids i JOIN ids j ON j.job=?2 AND j.custom_id=i.custom_id"                  \
             " JOIN lines n ON n.job=?1 AND n.line=i.line"                                                   \
             " JOIN lines o ON o.job=?2 AND o.line=j.line AND o.state=1"                                     \
             " WHERE i.job=?1 AND i.custom_id>?3 ORDER BY i.custom_id LIMIT ?4")                             \
    X(OPEN_LINES, "SELECT line, bytes, offset FROM lines WHERE job=?1 AND line>?2 AND state=0"               \
                  " ORDER BY line LIMIT ?3")                                                                 \
    X(PLACES, "SELECT place, place_bytes, line FROM lines WHERE job=?1 AND state=1 ORDER BY line")           \
    X(BY_SEQ, JOB_SQL_SELECT "seq=?1 AND state<>8")                                                          \
    X(BY_ID, JOB_SQL_SELECT "id=?2 AND user=?1 AND state<>8")                                                \
    X(LAST, JOB_SQL_SELECT "user=?1 AND state<>8 AND state<>0 ORDER BY seq DESC LIMIT 1")                    \
    X(BY_NAME, JOB_SQL_SELECT "user=?1 AND name=?2 AND state<>8 AND state<>0 ORDER BY seq DESC LIMIT 1")     \
    X(BY_PREFIX, JOB_SQL_SELECT "user=?1 AND substr(id,1,length(?2))=?2 AND state<>8 LIMIT 2")               \
    X(BY_KEY, JOB_SQL_SELECT "user=?1 AND key=?2 AND state<>8")                                              \
    X(LIST, JOB_SQL_SELECT "user=?1 AND state<>8 AND (state<4 OR ended_ms>=?2) ORDER BY seq DESC")           \
    X(UNFINISHED, JOB_SQL_SELECT "state<4 ORDER BY seq")                                                     \
    X(COUNT_OPEN, "SELECT count(*) FROM jobs WHERE user=?1 AND state<4")                                     \
    X(COUNT_STATES, "SELECT state, count(*) FROM jobs GROUP BY state")                                       \
    X(DELETED, JOB_SQL_SELECT "state=8 LIMIT 1")                                                             \
    X(DROP_LINES, "DELETE FROM lines WHERE job=?1 AND line IN"                                               \
                  " (SELECT line FROM lines WHERE job=?1 LIMIT ?2)")                                         \
    X(DROP_IDS, "DELETE FROM ids WHERE job=?1 AND custom_id IN"                                              \
                " (SELECT custom_id FROM ids WHERE job=?1 LIMIT ?2)")                                        \
    X(DROP_JOB, "DELETE FROM jobs WHERE seq=?1")                                                             \
    X(EXPIRE, "UPDATE jobs SET state=8, key=NULL WHERE state>=4 AND state<8 AND ended_ms<?1")

#endif
