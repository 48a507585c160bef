/* serve_child.c - see serve_child.h. */
#include "serve_child.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands.h"

void serve_child_init(struct serve_child *c, const char *name)
{
    memset(c, 0, sizeof(*c));
    c->name = name;
    c->ready_fd = -1;
    c->args[c->n_args++] = name;
}

void serve_child_add(struct serve_child *c, const char *flag, const char *value)
{
    assert(c->n_args + 3 <= SERVE_ARGS_MAX); /* `weir serve` bounds its lists */
    c->args[c->n_args++] = flag;
    if (value != NULL)
        c->args[c->n_args++] = value;
}

void serve_child_add_number(struct serve_child *c, const char *flag, unsigned long long value)
{
    char *text = c->numbers[c->n_numbers++];

    assert(c->n_numbers <= sizeof(c->numbers) / sizeof(c->numbers[0]));
    snprintf(text, sizeof(c->numbers[0]), "%llu", value);
    serve_child_add(c, flag, text);
}

/* In the child.  Does not return. */
static void become(const struct serve_child *c, pid_t parent, int ready_fd)
{
    char path[4096];
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) /* it died before we could ask to be told */
        _exit(1);
    if (ready_fd == SERVE_READY_FD)
        fcntl(ready_fd, F_SETFD, 0);
    else
        dup2(ready_fd, SERVE_READY_FD);
    execvp(command_sibling(c->name, path), (char *const *)(uintptr_t)c->args);
    fprintf(stderr, "weir serve: cannot start %s: %s\n", path, strerror(errno));
    _exit(127);
}

bool serve_child_start(struct serve_child *c)
{
    int fds[2];
    pid_t parent = getpid();

    serve_child_add_number(c, "--ready-fd", SERVE_READY_FD);
    c->args[c->n_args] = NULL;
    if (pipe2(fds, O_CLOEXEC) != 0) {
        fprintf(stderr, "weir serve: cannot make a pipe: %s\n", strerror(errno));
        return false;
    }
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        become(c, parent, fds[1]);
    close(fds[1]);
    if (pid < 0) {
        fprintf(stderr, "weir serve: cannot fork: %s\n", strerror(errno));
        close(fds[0]);
        return false;
    }
    c->pid = pid;
    c->ready_fd = fds[0];
    return true;
}

bool serve_child_hear(struct serve_child *c)
{
    if (c->ready_fd < 0)
        return false;
    ssize_t n = read(c->ready_fd, c->line + c->n_line, sizeof(c->line) - 1 - c->n_line);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n > 0)
        c->n_line += (size_t)n;
    c->line[c->n_line] = '\0';
    char *newline = strchr(c->line, '\n');
    if (newline == NULL && n > 0 && c->n_line + 1 < sizeof(c->line))
        return false;
    close(c->ready_fd); /* a line, or its end without one */
    c->ready_fd = -1;
    if (newline == NULL || strncmp(c->line, "ready", 5) != 0)
        return false;
    *newline = '\0';
    memmove(c->line, c->line + 5 + (c->line[5] == ' '), strlen(c->line + 5 + (c->line[5] == ' ')) + 1);
    c->ready = true;
    return true;
}

bool serve_child_reaped(struct serve_child *c, pid_t pid, int status)
{
    if (c->pid == 0 || c->pid != pid)
        return false;
    c->pid = 0;
    c->ended = true;
    c->status = status;
    return true;
}

void serve_child_signal(const struct serve_child *c, int signal_number)
{
    if (c->pid > 0)
        kill(c->pid, signal_number);
}

const char *serve_child_fate(const struct serve_child *c, char text[64])
{
    if (WIFSIGNALED(c->status))
        snprintf(text, 64, "was killed by signal %d (%s)", WTERMSIG(c->status), strsignal(WTERMSIG(c->status)));
    else
        snprintf(text, 64, "ended with exit code %d", WEXITSTATUS(c->status));
    return text;
}
