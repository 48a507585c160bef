/* user_usage.c - `weir user usage`: what everybody used, as CSV for a spreadsheet or an invoice.
 *
 *   kind,name,group,period,jobs,questions,answers,errors,prompt_tokens,cached_tokens,completion_tokens
 *
 * kind is user or group (all its members of now together); period is today or month, both UTC.  Users who were removed but used something
 * are listed with group "-".  Reads the store beside a gateway that runs: SQLite's own locking keeps the two apart. */
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "job_store.h"
#include "user_command.h"
#include "verb.h"

enum { N_COUNTS = 7, BUSY_MS = 5000 };

static const char query[] = "SELECT user, sum(jobs), sum(questions), sum(answers), sum(errors), sum(prompt_tokens), sum(cached_tokens),"
                            " sum(completion_tokens) FROM usage WHERE day>=?1 GROUP BY user ORDER BY user";

static void print_row(const char *kind, const char *name, const char *group, const char *period, const int64_t counts[N_COUNTS])
{
    printf("%s,%s,%s,%s", kind, name, group, period);
    for (int i = 0; i < N_COUNTS; i++)
        printf(",%" PRId64, counts[i]);
    putchar('\n');
}

static int print_period(sqlite3 *db, const struct users *u, const char *period, int64_t since)
{
    static int64_t groups[GROUPS_MAX][N_COUNTS];
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db, query, -1, &q, NULL);

    memset(groups, 0, sizeof groups);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(q, 1, since);
    while (rc == SQLITE_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        const char *name = (const char *)sqlite3_column_text(q, 0);
        const struct user *user = name != NULL ? users_by_name(u, name) : NULL, *group = users_group_of(u, user);
        int64_t counts[N_COUNTS];
        for (int i = 0; i < N_COUNTS; i++) {
            counts[i] = sqlite3_column_int64(q, i + 1);
            if (group != NULL)
                groups[group - u->groups][i] += counts[i];
        }
        print_row("user", name != NULL ? name : "?", user == NULL ? "-" : user->group, period, counts);
        rc = SQLITE_OK;
    }
    sqlite3_finalize(q);
    for (uint32_t i = 0; i < u->n_groups && rc == SQLITE_DONE; i++)
        print_row("group", u->groups[i].name, u->groups[i].name, period, groups[i]);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int user_usage_run(const struct gateway_places *places, const struct users *u)
{
    char path[PATHS_BYTES + 16];
    sqlite3 *db = NULL;
    int64_t now_ms = clock_real_ms();
    int rc = SQLITE_OK;

    snprintf(path, sizeof path, "%s/jobs.db", places->state_dir);
    printf("kind,name,group,period,jobs,questions,answers,errors,prompt_tokens,cached_tokens,completion_tokens\n");
    if (access(path, F_OK) != 0)
        return EXIT_OK; /* nobody has used anything */
    rc = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_timeout(db, BUSY_MS);
    if (rc == SQLITE_OK)
        rc = print_period(db, u, "today", usage_day(now_ms));
    if (rc == SQLITE_OK)
        rc = print_period(db, u, "month", usage_month(now_ms));
    if (rc != SQLITE_OK)
        fprintf(stderr, "weir user: cannot read %s: %s\n", path, db != NULL ? sqlite3_errmsg(db) : sqlite3_errstr(rc));
    sqlite3_close(db);
    return rc == SQLITE_OK ? EXIT_OK : EXIT_INTERNAL;
}
