/* error.c - the table of error codes, and how an error is filled. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int http;
} codes[ERR_COUNT] = {
#define X(name, code, http) [name] = { code, http },
    ERROR_LIST(X)
#undef X
};

/* Cut s, which was longer than its buffer, at a whole character and end it with "...". */
static void end_with_dots(char *s, size_t buf_bytes)
{
    size_t n = buf_bytes - 4;

    while (n > 0 && ((unsigned char)s[n] & 0xC0) == 0x80)
        n--;
    memcpy(s + n, "...", 4);
}

void error_set(struct error *e, enum error_code code, const char *param, const char *format, ...)
{
    va_list args;

    e->code = code;
    if (snprintf(e->param, sizeof(e->param), "%s", param != NULL ? param : "") >= (int)sizeof(e->param))
        end_with_dots(e->param, sizeof(e->param));
    va_start(args, format);
    int n = vsnprintf(e->message, sizeof(e->message), format, args);
    va_end(args);
    if (n >= (int)sizeof(e->message))
        end_with_dots(e->message, sizeof(e->message));
}

const char *error_code_name(enum error_code code)
{
    return (unsigned)code < ERR_COUNT ? codes[code].name : codes[ERR_INTERNAL].name;
}

int error_code_http(enum error_code code)
{
    return (unsigned)code < ERR_COUNT ? codes[code].http : codes[ERR_INTERNAL].http;
}

enum error_code error_code_from_name(const char *name, unsigned long name_bytes)
{
    for (unsigned i = 0; i < ERR_COUNT; i++)
        if (strlen(codes[i].name) == name_bytes && memcmp(codes[i].name, name, name_bytes) == 0)
            return (enum error_code)i;
    return ERR_INTERNAL;
}
