/* tally.h - counts by a few fixed words (reasons, ends), for the metrics.  Words are string constants of the program, never input. */
#ifndef TALLY_H
#define TALLY_H

#include <stdint.h>
#include <stdio.h>

enum { TALLY_WORDS_MAX = 12 };

struct tally {
    const char *words[TALLY_WORDS_MAX];
    uint64_t n[TALLY_WORDS_MAX];
};

/* Count one.  Aborts at the word too many: that is a programming error. */
void tally_add(struct tally *t, const char *word);

/* `name{label="word"} n` lines, as counter. */
void tally_print(const struct tally *t, FILE *f, const char *name, const char *label, const char *help);

#endif
