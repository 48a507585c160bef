/* takeover.c - see takeover.h.  The table of causes is the whole of it; what moves requests about is in death.c. */
#include "takeover.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

bool takeover_own_fault(int wait_code, int wait_status, enum kill_reason reason)
{
    if (reason == KILL_HANG || reason == KILL_BROKEN_RULE)
        return true;
    if (reason != KILL_NONE)
        return false;
    if (wait_code == CLD_EXITED)
        return wait_status != 0;
    switch (wait_status) {
    case SIGSEGV:
    case SIGABRT:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
    case SIGSYS:
    case SIGTRAP:
        return true;
    default:
        return false;
    }
}

enum takeover_action takeover_decide(const struct takeover_case *c)
{
    if (!c->wanted)
        return TAKEOVER_FORGET;
    if (c->finished)
        return TAKEOVER_COMPLETE;
    if (!c->own_fault)
        return c->suspect ? TAKEOVER_SUSPECT : TAKEOVER_REQUEUE;
    return c->suspect && c->alone ? TAKEOVER_BLAME : TAKEOVER_SUSPECT;
}

bool takeover_cleared(uint32_t bad_deaths, uint32_t n_new)
{
    return bad_deaths <= 1 && n_new >= TAKEOVER_PROBATION_TOKENS;
}

static const char *name_of(enum kill_reason r)
{
    static const char *const names[] = {
        [KILL_NONE] = "none",
        [KILL_HANG] = "hang",
        [KILL_BROKEN_RULE] = "broken-rule",
        [KILL_START_TIMEOUT] = "start-timeout",
        [KILL_SHUTDOWN] = "shutdown",
    };
    return names[r];
}

void takeover_cause_text(int wait_code, int wait_status, enum kill_reason reason, char ret_text[32])
{
    if (reason != KILL_NONE) {
        snprintf(ret_text, 32, "%s", name_of(reason));
    } else if (wait_code == CLD_EXITED) {
        snprintf(ret_text, 32, "exit-%d", wait_status);
    } else {
        const char *name = sigabbrev_np(wait_status);

        snprintf(ret_text, 32, "sig%s", name != NULL ? name : "?");
        for (char *c = ret_text; *c != '\0'; c++)
            if (*c >= 'A' && *c <= 'Z')
                *c += 'a' - 'A';
    }
}
