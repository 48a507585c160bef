/* jobs_page.c - see jobs_page.h.  Counters begin at zero with each life of the process; what jobs there are comes from the store. */
#include "jobs_page.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/statvfs.h>

#include "log.h"
#include "metrics.h"

static void put_connections(const struct desk *d, FILE *f)
{
    uint32_t n_users = 0;

    for (const struct conn *c = d->conns; c != NULL; c = c->next)
        n_users += c->user[0] != '\0';
    metrics_head(f, "weir_ssh_logins_total", "counter", "Logins by a known key.");
    fprintf(f, "weir_ssh_logins_total %" PRIu64 "\n", d->n_logins);
    tally_print(&d->logins_refused, f, "weir_ssh_logins_refused_total", "reason",
                "Logins refused; no_known_key: a connection that offered keys and went away without a login.");
    metrics_head(f, "weir_ssh_connections_logged_in", "gauge", "Connections of users.");
    fprintf(f, "weir_ssh_connections_logged_in %" PRIu32 "\n", n_users);
    metrics_head(f, "weir_users", "gauge", "Users in the users file.");
    fprintf(f, "weir_users %" PRIu32 "\n", d->users.n);
    metrics_head(f, "weir_gateway_broker_up", "gauge", "1 while the broker answers.");
    fprintf(f, "weir_gateway_broker_up %d\n", d->link->up);
}

static void put_jobs(const struct desk *d, FILE *f)
{
    const struct runner *r = d->runner;
    uint64_t n[JOB_STATES] = { 0 }, open = 0, flying = 0, pending = 0;

    if (job_store_count_states(d->store, n) != ST_OK)
        return; /* logged */
    metrics_head(f, "weir_jobs", "gauge", "Jobs in the store, by state.");
    for (int s = 0; s < JOB_DELETED; s++)
        if (s != JOB_EXPIRING) /* shown as in_progress */
            fprintf(f, "weir_jobs{state=\"%s\"} %" PRIu64 "\n", job_state_name((enum job_state)s),
                    n[s] + (s == JOB_IN_PROGRESS ? n[JOB_EXPIRING] : 0));
    for (const struct job *j = r->jobs; j != NULL; j = j->next) {
        uint64_t ended = j->row.n_done + j->row.n_failed + j->n_flying + j->n_pending;

        flying += j->n_flying;
        pending += j->n_pending;
        open += j->row.n_lines > ended ? j->row.n_lines - ended : 0;
    }
    metrics_head(f, "weir_job_lines", "gauge", "Lines of jobs that run: open wait, flying are with the broker, pending are about to be written.");
    fprintf(f, "weir_job_lines{state=\"open\"} %" PRIu64 "\n", open);
    fprintf(f, "weir_job_lines{state=\"flying\"} %" PRIu64 "\n", flying);
    fprintf(f, "weir_job_lines{state=\"pending\"} %" PRIu64 "\n", pending);
    metrics_head(f, "weir_job_lines_total", "counter", "Lines on disk, by what they are.");
    fprintf(f, "weir_job_lines_total{result=\"answered\"} %" PRIu64 "\n", r->n_answered);
    fprintf(f, "weir_job_lines_total{result=\"failed\"} %" PRIu64 "\n", r->n_failed);
    metrics_head(f, "weir_job_line_retries_total", "counter", "Lines put back because their request failed for a reason of ours.");
    fprintf(f, "weir_job_line_retries_total %" PRIu64 "\n", r->n_retried);
    metrics_head(f, "weir_job_commits_failed_total", "counter", "Times the disk refused answers; they are kept and tried again.");
    fprintf(f, "weir_job_commits_failed_total %" PRIu64 "\n", r->n_refused);
}

static void put_disk(const struct desk *d, FILE *f)
{
    struct statvfs s;

    if (fstatvfs(d->files->state_fd, &s) != 0)
        return;
    metrics_head(f, "weir_state_free_bytes", "gauge", "Room on the disk of the state folder.");
    fprintf(f, "weir_state_free_bytes %" PRIu64 "\n", (uint64_t)s.f_bavail * s.f_frsize);
    metrics_head(f, "weir_state_size_bytes", "gauge", "Size of the disk of the state folder.");
    fprintf(f, "weir_state_size_bytes %" PRIu64 "\n", (uint64_t)s.f_blocks * s.f_frsize);
}

void jobs_page_write(struct board_page *p, const struct desk *d)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);

    if (f == NULL)
        return;
    put_connections(d, f);
    put_jobs(d, f);
    put_disk(d, f);
    metrics_process(f, "weir_jobs_process_");
    if (fclose(f) == 0 && board_write(p, text, n, d->link->up, d->link->up ? "" : "the broker does not answer", d->now_ns) != ST_OK)
        log_error("metrics", "what=page bytes=%zu", n);
    free(text);
}
