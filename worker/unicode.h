/* unicode.h - what the splitters of tokenizers need to know of characters: letter, number, punctuation, white space. */
#ifndef UNICODE_H
#define UNICODE_H

#include <stdint.h>

#include "span.h"

enum unicode_class {
    UNICODE_OTHER,       /* all else: symbols, marks, controls, unassigned */
    UNICODE_LETTER,      /* general category L* */
    UNICODE_NUMBER,      /* N* */
    UNICODE_PUNCTUATION, /* P* */
    UNICODE_SPACE,       /* the White_Space property, which wins over the category */
};

enum unicode_class unicode_class_of(uint32_t code_point);

/* One character at text.at; text.n > 0.  Bytes that are not UTF-8 give UNICODE_INVALID one at a time.  Returns its length. */
enum { UNICODE_INVALID = 0x110000 };
unsigned unicode_decode(struct span text, uint32_t *ret_code_point);

/* In unicode_tables.c, which unicode_tables.py writes: ranges in ascending order, all of them not UNICODE_OTHER. */
struct unicode_range {
    uint32_t first, last;
    uint8_t class;
};
extern const struct unicode_range unicode_ranges[];
extern const uint32_t unicode_n_ranges;

#endif
