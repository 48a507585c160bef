/* tally.c - see tally.h. */
#include "tally.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "metrics.h"

void tally_add(struct tally *t, const char *word)
{
    int i = 0;

    while (i < TALLY_WORDS_MAX && t->words[i] != NULL && strcmp(t->words[i], word) != 0)
        i++;
    assert(i < TALLY_WORDS_MAX);
    t->words[i] = word;
    t->n[i]++;
}

void tally_print(const struct tally *t, FILE *f, const char *name, const char *label, const char *help)
{
    metrics_head(f, name, "counter", help);
    for (int i = 0; i < TALLY_WORDS_MAX && t->words[i] != NULL; i++)
        fprintf(f, "%s{%s=\"%s\"} %" PRIu64 "\n", name, label, t->words[i], t->n[i]);
}
