/* utf8.h - is it UTF-8?  (RFC 3629: no surrogates, nothing above U+10FFFF, no overlong forms.) */
#ifndef UTF8_H
#define UTF8_H

#include <stdbool.h>

#include "span.h"

bool utf8_valid(struct span text);

/* Bytes of the longest prefix that is valid and ends on a whole character. */
size_t utf8_valid_prefix(struct span text);

#endif
