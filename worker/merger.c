/* merger.c - see merger.h for the algorithm.
 *
 * The heap is binary and holds plain 64-bit keys, so an entry costs eight bytes and a comparison one instruction.  Stale entries
 * are left in it: taking them out would need to know where they are.  An entry that looks valid but was made for an earlier pair of
 * the same symbol and rank is no mistake: the pair that is there now has the same key. */
#include "merger.h"

#include <assert.h>
#include <string.h>

#include "unicode.h"

/* What the space of a SentencePiece text is, where it must be written in bytes */
static const uint8_t spm_space[3] = {0xE2, 0x96, 0x81};

void id_list_add(struct id_list *list, int32_t id)
{
    assert(list->n < list->cap);
    list->at[list->n++] = id;
}

/* --- heap -------------------------------------------------------------------------------------------------------------- */

static void heap_push(struct merger *m, uint64_t key, uint64_t *work)
{
    uint32_t i = m->n_heap++;

    while (i > 0 && m->heap[(i - 1) / 2] > key) {
        m->heap[i] = m->heap[(i - 1) / 2];
        i = (i - 1) / 2;
        (*work)++;
    }
    m->heap[i] = key;
    (*work)++;
}

static uint64_t heap_pop(struct merger *m, uint64_t *work)
{
    uint64_t top = m->heap[0], last = m->heap[--m->n_heap];
    uint32_t i = 0;

    for (;;) {
        uint32_t child = 2 * i + 1;

        (*work)++;
        if (child >= m->n_heap)
            break;
        if (child + 1 < m->n_heap && m->heap[child + 1] < m->heap[child])
            child++;
        if (m->heap[child] >= last)
            break;
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

/* --- pairs ------------------------------------------------------------------------------------------------------------- */

static uint32_t symbol_end(const struct merger *m, uint32_t i)
{
    return m->symbols[i].next == SYMBOL_END ? (uint32_t)m->word.n : m->symbols[m->symbols[i].next].at;
}

/* Look up the pair that begins with symbol i and, if it may merge, put it on the heap. */
static void find_pair(struct merger *m, uint32_t i, uint64_t *work)
{
    struct symbol *s = &m->symbols[i];
    const struct tokenizer *t = m->t;

    s->rank = PAIR_NONE;
    (*work)++;
    if (s->next == SYMBOL_END)
        return;
    if (t->kind == TOKENIZER_BPE) {
        const struct pair_rule *rule = pair_table_find(&t->pairs, s->id, m->symbols[s->next].id);

        if (rule != NULL) {
            s->rank = rule->rank;
            s->merged = rule->merged;
        }
    } else {
        uint32_t n = symbol_end(m, s->next) - s->at;
        int32_t id = n <= t->piece_bytes_max ? pieces_find(t, span_of(m->word.at + s->at, n)) : TOKEN_NONE;

        if (id != TOKEN_NONE) {
            s->rank = t->ranks[id];
            s->merged = id;
        }
    }
    if (s->rank != PAIR_NONE)
        heap_push(m, (uint64_t)s->rank << 32 | i, work);
}

static void merge(struct merger *m, uint32_t i, uint64_t *work)
{
    struct symbol *s = &m->symbols[i], *right = &m->symbols[s->next];

    s->id = s->merged;
    s->next = right->next;
    right->rank = PAIR_NONE;
    if (s->next != SYMBOL_END)
        m->symbols[s->next].prev = i;
    find_pair(m, i, work);
    if (s->prev != SYMBOL_END)
        find_pair(m, s->prev, work);
}

/* --- phases ------------------------------------------------------------------------------------------------------------ */

void merger_begin(struct merger *m, struct span word)
{
    assert(word.n > 0 && word.n < SYMBOL_END);
    m->word = word;
    m->phase = MERGER_LOAD;
    m->n_symbols = m->n_heap = m->at = 0;
}

/* Append the next symbol of the word and pair it with the one before. */
static void load_symbol(struct merger *m, uint64_t *work)
{
    struct span rest = span_of(m->word.at + m->at, m->word.n - m->at);
    uint32_t i = m->n_symbols++;
    struct symbol *s = &m->symbols[i];
    unsigned n = 1;

    s->at = m->at;
    s->prev = i == 0 ? SYMBOL_END : i - 1;
    s->next = SYMBOL_END;
    s->rank = PAIR_NONE;
    if (m->t->kind == TOKENIZER_BPE) {
        s->id = m->t->byte_tokens[rest.at[0]];
    } else {
        uint32_t c;

        n = unicode_decode(rest, &c);
        s->id = pieces_find(m->t, span_of(rest.at, n));
    }
    m->at += n;
    (*work)++;
    if (i > 0)
        m->symbols[i - 1].next = i;
    if (i > 1) /* the pair before the last: only now is the end of its right symbol known */
        find_pair(m, i - 2, work);
}

/* A symbol that is no token: its bytes as byte tokens, else the unknown token, else nothing. */
static void emit_bytes(const struct merger *m, struct span bytes, struct id_list *out)
{
    const struct tokenizer *t = m->t;
    bool whole = t->kind == TOKENIZER_SPM;

    if (t->kind == TOKENIZER_SPM && bytes.n == 1 && bytes.at[0] == ' ')
        bytes = span_of(spm_space, sizeof(spm_space));
    for (size_t i = 0; whole && i < bytes.n; i++)
        whole = t->byte_tokens[bytes.at[i]] != TOKEN_NONE;
    if (whole)
        for (size_t i = 0; i < bytes.n; i++)
            id_list_add(out, t->byte_tokens[bytes.at[i]]);
    else if (t->kind == TOKENIZER_SPM && t->unknown != TOKEN_NONE)
        id_list_add(out, t->unknown);
    else
        out->dropped_bytes += bytes.n;
}

static void emit_symbol(struct merger *m, struct id_list *out, uint64_t *work)
{
    const struct symbol *s = &m->symbols[m->at];

    if (s->id != TOKEN_NONE)
        id_list_add(out, s->id);
    else
        emit_bytes(m, span_of(m->word.at + s->at, symbol_end(m, m->at) - s->at), out);
    (*work)++;
    m->at = s->next;
}

bool merger_step(struct merger *m, struct id_list *out, uint64_t *work, uint64_t work_end)
{
    while (m->phase == MERGER_LOAD && *work < work_end) {
        if (m->at < m->word.n) {
            load_symbol(m, work);
            continue;
        }
        if (m->n_symbols > 1)
            find_pair(m, m->n_symbols - 2, work);
        m->n_touched = m->n_symbols > m->n_touched ? m->n_symbols : m->n_touched;
        m->phase = MERGER_MERGE;
    }
    while (m->phase == MERGER_MERGE && *work < work_end) {
        if (m->n_heap == 0) {
            m->phase = MERGER_EMIT;
            m->at = 0;
            break;
        }
        uint64_t top = heap_pop(m, work);

        if (m->symbols[(uint32_t)top].rank == (uint32_t)(top >> 32))
            merge(m, (uint32_t)top, work);
    }
    while (m->phase == MERGER_EMIT && *work < work_end) {
        emit_symbol(m, out, work);
        if (m->at == SYMBOL_END)
            m->phase = MERGER_DONE;
    }
    return m->phase == MERGER_DONE;
}
