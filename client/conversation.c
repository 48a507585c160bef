/* conversation.c - see conversation.h. */
#include "conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "limits.h"

enum { WHY_BYTES = 128 };

const char conversation_help[] =
    "/reset          begin a new conversation\n"
    "/system TEXT    the same, with another system prompt (without TEXT: the model's own)\n"
    "/quit           end (^D does too)\n"
    "^C stops an answer.  A line that ends in \\ goes on in the next; one that begins with a blank is no "
    "command.\n";

void conversation_forget(struct conversation *c, size_t keep)
{
    while (c->n > keep)
        free((void *)c->messages[--c->n].content);
}

bool conversation_say(struct conversation *c, const char *role, const char *text, size_t bytes)
{
    if (c->n == c->capacity) {
        size_t more = c->capacity == 0 ? 32 : c->capacity * 2;
        struct weir_message *grown = realloc(c->messages, more * sizeof(*grown));
        if (grown == NULL)
            return false;
        c->messages = grown;
        c->capacity = more;
    }
    char *copy = malloc(bytes + 1);
    if (copy == NULL)
        return false;
    if (bytes > 0)
        memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    c->messages[c->n++] = (struct weir_message){role, copy, bytes};
    return true;
}

static void drop_input(struct conversation *c)
{
    free(c->input);
    c->input = NULL;
    c->input_bytes = 0;
}

bool conversation_begin(struct conversation *c, const char *system)
{
    char *copy = system != NULL ? strdup(system) : NULL;

    if (system != NULL && copy == NULL)
        return false;
    conversation_forget(c, 0);
    free(c->system);
    c->system = copy;
    return copy == NULL || conversation_say(c, "system", copy, strlen(copy));
}

void conversation_deinit(struct conversation *c)
{
    conversation_forget(c, 0);
    drop_input(c);
    free(c->messages);
    free(c->system);
    *c = (struct conversation){0};
}

static enum conversation_input command(struct conversation *c, const char *line, char *ret_why)
{
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0)
        return INPUT_QUIT;
    if (strcmp(line, "/help") == 0)
        return INPUT_HELP;
    bool system = strcmp(line, "/system") == 0 || strncmp(line, "/system ", 8) == 0;
    if (!system && strcmp(line, "/reset") != 0) {
        snprintf(ret_why, WHY_BYTES, "there is no %.*s", (int)strcspn(line, " ") < 60 ? (int)strcspn(line, " ") : 60, line);
        return INPUT_UNKNOWN;
    }
    char *text = system ? (line[7] != '\0' ? strdup(line + 8) : NULL) : c->system != NULL ? strdup(c->system) : NULL;
    bool ok = conversation_begin(c, text);
    free(text);
    if (ok)
        return INPUT_DONE;
    snprintf(ret_why, WHY_BYTES, "out of memory");
    return INPUT_REFUSED;
}

/* Put the line behind those that ended in "\". */
static bool append(struct conversation *c, const char *line, size_t bytes)
{
    char *grown = realloc(c->input, c->input_bytes + bytes + 1);

    if (grown == NULL)
        return false;
    if (bytes > 0)
        memcpy(grown + c->input_bytes, line, bytes);
    c->input = grown;
    c->input_bytes += bytes;
    grown[c->input_bytes] = '\0';
    return true;
}

enum conversation_input conversation_line(struct conversation *c, const char *line, size_t bytes, char *ret_why)
{
    if (!c->goes_on)
        drop_input(c);
    c->goes_on = false;
    if (bytes > PROMPT_BYTES_MAX - c->input_bytes) {
        snprintf(ret_why, WHY_BYTES, "the input is over the limit of %d bytes", PROMPT_BYTES_MAX);
        drop_input(c);
        return INPUT_REFUSED;
    }
    if (!append(c, line, bytes)) {
        snprintf(ret_why, WHY_BYTES, "out of memory");
        drop_input(c);
        return INPUT_REFUSED;
    }
    if (bytes > 0 && line[bytes - 1] == '\\') {
        c->input[c->input_bytes - 1] = '\n';
        c->goes_on = true;
        return INPUT_GOES_ON;
    }
    if (c->input_bytes == 0)
        return INPUT_NOTHING;
    return c->input[0] == '/' ? command(c, c->input, ret_why) : INPUT_QUESTION;
}
