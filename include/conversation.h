/* conversation.h - what was said in a chat so far, and the commands that begin with "/".
 *
 * `weir chat` and the gateway's `chat` both keep one.  The whole conversation is sent each time; the pool's prefix cache makes that cheap.
 * Pure: no terminal, no connection.
 *
 *   conversation_line ──► INPUT_QUESTION: conversation_say("user", ...), send it, then
 *                             conversation_say("assistant", ...), or conversation_forget() back to where it was, if it failed */
#ifndef CONVERSATION_H
#define CONVERSATION_H

#include <stdbool.h>
#include <stddef.h>

#include "weir.h"

struct conversation {
    struct weir_message *messages; /* [n]; contents are ours, roles constants */
    size_t n, capacity;
    char *system;                  /* NULL: the model's own */
    char *input;                   /* lines that ended in "\", and the last one */
    size_t input_bytes;
    bool goes_on;                  /* its last line ended in "\" */
};

enum conversation_input {
    INPUT_NOTHING,   /* an empty line */
    INPUT_GOES_ON,   /* it ended in "\": the next line belongs to it */
    INPUT_QUESTION,  /* c->input, c->input_bytes */
    INPUT_DONE,      /* a command that was carried out */
    INPUT_QUIT,
    INPUT_HELP,      /* show conversation_help */
    INPUT_UNKNOWN,   /* no such command: *ret_why; show the help too */
    INPUT_REFUSED,   /* too long, or no memory: *ret_why */
};

extern const char conversation_help[];

/* Begin (again), with this system prompt, copied; NULL: the model's own.  A zeroed struct is the beginning of the first.  false: out of memory. */
bool conversation_begin(struct conversation *c, const char *system);
void conversation_deinit(struct conversation *c);

/* role: a constant.  Copies text.  false: out of memory. */
bool conversation_say(struct conversation *c, const char *role, const char *text, size_t bytes);
void conversation_forget(struct conversation *c, size_t keep); /* all but the first `keep` messages */

/* A line of input, without its newline.  ret_why [128]. */
enum conversation_input conversation_line(struct conversation *c, const char *line, size_t bytes, char *ret_why);

#endif
