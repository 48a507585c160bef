/* over_ssh.c - see over_ssh.h. */
#include "over_ssh.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"

static const char *const passed_on[] = {"ask",   "submit",  "run",    "list",   "watch",
                                        "wait",  "results", "errors", "cancel", "delete",
                                        "retry", "release", "usage",  "whoami", "keys"};

bool over_ssh_has(const char *verb)
{
    for (size_t i = 0; i < sizeof(passed_on) / sizeof(passed_on[0]); i++)
        if (strcmp(passed_on[i], verb) == 0)
            return true;
    return false;
}

const char *const *over_ssh_verbs(size_t *ret_n)
{
    *ret_n = sizeof(passed_on) / sizeof(passed_on[0]);
    return passed_on;
}

/* ' ends the quotes, \' is one, ' begins them again. */
static char *put_quoted(char *to, const char *word)
{
    *to++ = '\'';
    for (; *word != '\0'; word++) {
        if (*word == '\'') {
            memcpy(to, "'\\'", 3);
            to += 3;
        }
        *to++ = *word;
    }
    *to++ = '\'';
    return to;
}

char *over_ssh_command(const char *verb, int n_words, char *const *words)
{
    size_t bytes = strlen(verb) + 1;

    for (int i = 0; i < n_words; i++)
        bytes += 4 * strlen(words[i]) + 3;
    char *command = malloc(bytes), *at = command;
    if (command == NULL)
        return NULL;
    at = stpcpy(at, verb);
    for (int i = 0; i < n_words; i++) {
        *at++ = ' ';
        at = put_quoted(at, words[i]);
    }
    *at = '\0';
    return command;
}

int over_ssh(const char *verb, int n_words, char *const *words)
{
    const char *host = getenv("WEIR_SSH_HOST"), *port = getenv("WEIR_SSH_PORT");
    bool live = strcmp(verb, "watch") == 0 && isatty(STDIN_FILENO) &&
                isatty(STDOUT_FILENO); /* its bar needs a terminal there too */
    char *command = over_ssh_command(verb, n_words, words);

    if (command == NULL) {
        fprintf(stderr, "weir: out of memory\n");
        return EXIT_FAILED;
    }
    execlp("ssh", "ssh", live ? "-t" : "-T", "-p", port != NULL && port[0] != '\0' ? port : "2222", "--",
           host != NULL && host[0] != '\0' ? host : "localhost", command, (char *)NULL);
    fprintf(stderr,
            "weir: `weir %s` goes through the ssh gateway of this machine, and ssh cannot be started: %s\n",
            verb, strerror(errno));
    free(command);
    return EXIT_FAILED;
}
