/* status.c - texts for enum status. */
#include "status.h"

static const char *const texts[] = {
#define X(name, text) [name] = text,
    STATUS_LIST(X)
#undef X
};

const char *status_text(enum status st)
{
    return (unsigned)st < sizeof(texts) / sizeof(texts[0]) ? texts[st] : "unknown status";
}
