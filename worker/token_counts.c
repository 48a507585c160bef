/* token_counts.c - open addressing with linear probing; the table is never more than half full and nothing is removed. */
#include "token_counts.h"

#include <assert.h>
#include <stdlib.h>

enum status token_counts_init(struct token_counts *c, uint32_t tokens_max, uint32_t n_vocab)
{
    uint32_t n_max = tokens_max < n_vocab ? tokens_max : n_vocab;
    *c = (struct token_counts){ .n_slots = 16 };
    while (c->n_slots < 2 * n_max)
        c->n_slots *= 2;
    c->list = calloc(n_max, sizeof(*c->list));
    c->slots = calloc(c->n_slots, sizeof(*c->slots));
    if (c->list != NULL && c->slots != NULL)
        return ST_OK;
    token_counts_deinit(c);
    return ST_NOMEM;
}

void token_counts_deinit(struct token_counts *c)
{
    free(c->list);
    free(c->slots);
    *c = (struct token_counts){ 0 };
}

static struct token_count *find(struct token_counts *c, int32_t token)
{
    uint32_t at = (uint32_t)token * 2654435769u; /* Knuth's multiplicative hash */
    for (at &= c->n_slots - 1; c->slots[at] != 0; at = (at + 1) & (c->n_slots - 1))
        if (c->list[c->slots[at] - 1].token == token)
            return &c->list[c->slots[at] - 1];
    assert(c->n < c->n_slots / 2);
    struct token_count *e = &c->list[c->n++];
    e->token = token;
    c->slots[at] = c->n;
    return e;
}

void token_counts_add_prompt(struct token_counts *c, const int32_t *tokens, uint32_t n_tokens)
{
    for (uint32_t i = 0; i < n_tokens; i++)
        find(c, tokens[i])->in_prompt++;
}

void token_counts_add_answer(struct token_counts *c, int32_t token)
{
    find(c, token)->in_answer++;
}
