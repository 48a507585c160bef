/* hooks.c - see hooks.h. */
#include "hooks.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "log.h"

enum { CPU_S_MAX = 600, DESCRIPTORS_MAX = 256 };

enum status hook_check(const char *program, struct error *err)
{
    struct stat s;
    const char *wrong = NULL;

    if (program[0] != '/')
        wrong = "has to be an absolute path";
    else if (stat(program, &s) != 0)
        wrong = strerror(errno);
    else if (!S_ISREG(s.st_mode) || access(program, X_OK) != 0)
        wrong = "is no file that can be executed";
    else if ((s.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        wrong = "can be written by others than its owner";
    else if (s.st_uid != 0 && s.st_uid != geteuid())
        wrong = "belongs neither to root nor to the user the gateway runs as";
    if (wrong == NULL)
        return ST_OK;
    error_set(err, ERR_INVALID_PARAMETER, "job-hook", "--job-hook %s %s", program, wrong);
    return ST_INVALID;
}

static bool take_word(struct door_reader *r, char word[HOOK_WORD_BYTES])
{
    struct span s = door_get_str(r);
    bool ok = !r->failed && s.n > 0 && s.n < HOOK_WORD_BYTES && s.at[0] != '-';

    for (size_t i = 0; i < s.n && ok; i++) {
        char c = (char)s.at[i];
        ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    }
    if (ok) {
        memcpy(word, s.at, s.n);
        word[s.n] = '\0';
    }
    return ok;
}

void hooks_add(struct hooks *h, struct door_reader *r)
{
    struct hook hook = { 0 };
    bool words = take_word(r, hook.job) && take_word(r, hook.user) && take_word(r, hook.status);

    hook.lines = door_get_u64(r);
    hook.failed = door_get_u64(r);
    if (h->program == NULL)
        return;
    if (!words || !door_read_all(r)) {
        log_error("hook", "refused=message");
        return;
    }
    if (h->n == HOOKS_QUEUED_MAX) {
        h->n_dropped++;
        log_error("hook", "job=%s dropped=queue_full limit=%d", hook.job, HOOKS_QUEUED_MAX);
        return;
    }
    h->queue[(h->first + h->n++) % HOOKS_QUEUED_MAX] = hook;
}

static void lower_limit(int resource, rlim_t most)
{
    struct rlimit l;

    if (getrlimit(resource, &l) == 0 && (l.rlim_max == RLIM_INFINITY || l.rlim_max > most))
        l.rlim_max = most;
    l.rlim_cur = l.rlim_max;
    (void)setrlimit(resource, &l);
}

/* In the child. */
static _Noreturn void become(const char *program, const struct hook *hook)
{
    char job[96], user[96], status[96], lines[48], failed[48], path[] = "PATH=/usr/local/bin:/usr/bin:/bin", lang[] = "LANG=C.UTF-8";
    char *environment[] = { path, lang, job, user, status, lines, failed, NULL };
    const char *argv[] = { program, hook->job, hook->user, hook->status, NULL };
    sigset_t none;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    snprintf(job, sizeof job, "WEIR_JOB=%s", hook->job);
    snprintf(user, sizeof user, "WEIR_USER=%s", hook->user);
    snprintf(status, sizeof status, "WEIR_STATUS=%s", hook->status);
    snprintf(lines, sizeof lines, "WEIR_LINES=%" PRIu64, hook->lines);
    snprintf(failed, sizeof failed, "WEIR_FAILED=%" PRIu64, hook->failed);
    if (null < 0 || dup2(null, 0) < 0 || dup2(2, 1) < 0 || close_range(3, ~0u, 0) != 0 || setsid() < 0 || chdir("/") != 0)
        _exit(126);
    lower_limit(RLIMIT_CORE, 0);
    lower_limit(RLIMIT_CPU, CPU_S_MAX);
    lower_limit(RLIMIT_NOFILE, DESCRIPTORS_MAX);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(program, (char *const *)(uintptr_t)argv, environment);
    _exit(127);
}

static void start(struct hooks *h, struct hook *slot, uint64_t now_ns)
{
    *slot = h->queue[h->first];
    h->first = (h->first + 1) % HOOKS_QUEUED_MAX;
    h->n--;
    slot->since_ns = now_ns;
    slot->pid = fork();
    if (slot->pid == 0)
        become(h->program, slot);
    if (slot->pid < 0) {
        log_error("hook", "job=%s error=%d", slot->job, errno);
        h->n_failed++;
        slot->pid = 0;
        return;
    }
    h->n_running++;
    h->n_run++;
    log_debug("hook", "job=%s pid=%d", slot->job, (int)slot->pid);
}

static void kill_one(struct hook *hook)
{
    hook->killed = true;
    if (kill(-hook->pid, SIGKILL) != 0) /* it has not come to setsid() yet */
        kill(hook->pid, SIGKILL);
}

void hooks_step(struct hooks *h, uint64_t now_ns)
{
    for (int i = 0; i < HOOKS_RUNNING_MAX; i++) {
        struct hook *slot = &h->running[i];
        if (slot->pid == 0 && h->n > 0)
            start(h, slot, now_ns);
        else if (slot->pid > 0 && !slot->killed && now_ns - slot->since_ns >= h->timeout_ns)
            kill_one(slot);
    }
}

bool hooks_reaped(struct hooks *h, pid_t pid, int wait_status)
{
    for (int i = 0; i < HOOKS_RUNNING_MAX; i++) {
        struct hook *slot = &h->running[i];
        if (slot->pid == 0 || slot->pid != pid)
            continue;
        if (wait_status != 0) {
            h->n_failed++;
            log_warn("hook", "job=%s exit=%d signal=%d reason=%s", slot->job, WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 0,
                     WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0, slot->killed ? "timeout" : "its_own");
        }
        kill(-pid, SIGKILL); /* what it has left behind in its group */
        slot->pid = 0;
        h->n_running--;
        return true;
    }
    return false;
}

bool hooks_busy(const struct hooks *h)
{
    return h->n_running > 0 || h->n > 0;
}

void hooks_kill(struct hooks *h)
{
    h->n = 0;
    for (int i = 0; i < HOOKS_RUNNING_MAX; i++) {
        if (h->running[i].pid > 0)
            kill_one(&h->running[i]);
    }
}

uint64_t hooks_next_ns(const struct hooks *h)
{
    uint64_t next = h->n > 0 && h->n_running < HOOKS_RUNNING_MAX ? 0 : UINT64_MAX;

    for (int i = 0; i < HOOKS_RUNNING_MAX; i++) {
        const struct hook *slot = &h->running[i];
        if (slot->pid > 0 && !slot->killed && slot->since_ns + h->timeout_ns < next)
            next = slot->since_ns + h->timeout_ns;
    }
    return next;
}
