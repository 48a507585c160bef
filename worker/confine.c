/* confine.c - see confine.h.
 *
 * Each of these is a second line of defence: where the kernel refuses one, the worker says so in the log and serves all the
 * same. */
#include "confine.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "log.h"

static void want(int rc, const char *what)
{
    if (rc != 0)
        log_warn("confine_failed", "what=%s errno=%d", what, errno);
}

void confine_follow_parent(void)
{
    static const char score[] = "900";
    want(prctl(PR_SET_PDEATHSIG, SIGKILL), "pdeathsig");
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, score, strlen(score)) < 0)
        log_debug("confine_failed", "what=oom_score_adj errno=%d", errno); /* the broker set it already, as a rule */
    if (fd >= 0)
        close(fd);
}

void confine_self(void)
{
    const struct rlimit none = { 0, 0 };
    want(setrlimit(RLIMIT_CORE, &none), "rlimit_core");
    want(prctl(PR_SET_DUMPABLE, 0), "dumpable");
    want(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
}
