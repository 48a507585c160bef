/* fuzz_command.c - any bytes as a command.  Target: command_line_split, verb_parse. */
#include <stdlib.h>
#include <string.h>

#include "gateway/verb.h"

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n)
{
    struct command_line line;
    struct verb_call call;
    struct error err;

    if (command_line_split(span_of(at, n), &line, &err) != ST_OK)
        return 0;
    size_t bytes = 0;
    for (size_t i = 0; i < line.n; i++)
        bytes += strlen(line.words[i]);
    if (bytes > n || line.words[line.n] != NULL)
        abort();
    if (verb_parse(&line, &call, &err) == ST_OK) {
        if (call.n_args < call.verb->args_min || call.n_args > call.verb->args_max)
            abort();
        verb_call_deinit(&call);
    }
    command_line_deinit(&line);
    return 0;
}
