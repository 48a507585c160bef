/* fault.c - see fault.h.  Empty in every build but that of the tests of faults. */
#include "fault.h"

#ifdef WEIR_FAULTS
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int token = -1;

/* At the start, because a worker may open nothing later. */
__attribute__((constructor)) static void open_token(void)
{
    const char *path = getenv("WEIR_FAULT_TOKEN");

    if (path != NULL)
        token = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
}

/* Is it this point's turn, with an action like this?  Gives the action's text behind the '='. */
static const char *due(const char *name)
{
    static _Atomic long hits;
    const char *wanted = getenv("WEIR_FAULT");
    char byte;
    size_t n = strlen(name);

    if (wanted == NULL || strncmp(wanted, name, n) != 0 || wanted[n] != '=')
        return NULL;
    const char *at = strchr(wanted, '@');
    if (atomic_fetch_add(&hits, 1) + 1 != (at != NULL ? atol(at + 1) : 1))
        return NULL;
    if (token >= 0 && read(token, &byte, 1) != 1)
        return NULL;
    return wanted + n + 1;
}

void fault_point(const char *name)
{
    const char *action = due(name);

    if (action == NULL)
        return;
    if (strncmp(action, "kill", 4) == 0)
        raise(SIGKILL);
    else if (strncmp(action, "abort", 5) == 0)
        abort();
    else if (strncmp(action, "exit", 4) == 0)
        _exit(1);
    while (strncmp(action, "hang", 4) == 0)
        pause();
}

bool fault_fails(const char *name)
{
    const char *action = due(name);

    return action != NULL && strncmp(action, "fail", 4) == 0;
}
#else
typedef int fault_is_not_compiled_in; /* a file may not be empty */
#endif
