/* answer.c - see answer.h.  An end-of-text token adds no text; it is counted as a generated token all the same. */
#include "answer.h"

#include <assert.h>
#include <string.h>

void answer_init(struct answer *a, const struct answer_rules *rules, uint64_t n_sent_before)
{
    *a = (struct answer){ .rules = rules, .n_sent_before = n_sent_before, .stop_index = -1 };
}

void answer_after(struct answer *a, const int32_t *prompt, uint32_t n_prompt)
{
    uint8_t tail[4 + PIECE_BYTES_MAX];
    size_t n_tail = 0;

    for (uint32_t i = n_prompt > 3 ? n_prompt - 3 : 0; i < n_prompt; i++) {
        struct span piece = tokenizer_piece(a->rules->tokenizer, prompt[i], false);
        if (tokenizer_is_control(a->rules->tokenizer, prompt[i]))
            n_tail = 0;
        if (piece.n > 0)
            memcpy(tail + n_tail, piece.at, piece.n);
        n_tail += piece.n;
        if (n_tail > 3) {
            memmove(tail, tail + n_tail - 3, 3);
            n_tail = 3;
        }
    }
    utf8_hold_after(&a->hold, span_of(tail, n_tail));
}

/* Text that left the hold: through the stop strings to out [at most in.n + STOP_BYTES_MAX bytes]. */
static size_t match(struct answer *a, struct span in, uint8_t *out)
{
    size_t n = stop_match_push(&a->match, &a->rules->stops, in, out);
    if (a->match.hit && a->finish == FINISH_NONE) {
        a->finish = FINISH_STOP;
        a->stop_index = a->match.which;
    }
    return n;
}

/* Leave out what the client already has. */
static size_t drop_sent(struct answer *a, uint8_t *out, size_t n)
{
    uint64_t before = a->n_text;
    a->n_text += n;
    if (before >= a->n_sent_before)
        return n;
    uint64_t skip = a->n_sent_before - before;
    while (skip < n && (out[skip] & 0xc0) == 0x80) /* a count that ends within a character is not ours: whole ones only */
        skip++;
    if (skip >= n)
        return 0;
    memmove(out, out + skip, n - skip);
    return n - skip;
}

size_t answer_push(struct answer *a, int32_t token, bool is_last, uint8_t *out)
{
    uint8_t whole[UTF8_HOLD_OUT_MAX(PIECE_BYTES_MAX) + 3];
    assert(a->finish == FINISH_NONE);

    bool ends = !a->rules->ignore_eos && tokenizer_is_end(a->rules->tokenizer, token);
    struct span piece = ends ? span_of(NULL, 0) : tokenizer_piece(a->rules->tokenizer, token, false);
    assert(piece.n <= PIECE_BYTES_MAX);

    size_t n_whole = utf8_hold_push(&a->hold, piece, whole);
    if (ends || is_last)
        n_whole += utf8_hold_finish(&a->hold, whole + n_whole);
    size_t n = match(a, span_of(whole, n_whole), out);
    if (a->finish == FINISH_NONE && (ends || is_last)) {
        n += stop_match_finish(&a->match, out + n);
        a->finish = ends ? FINISH_STOP : FINISH_LENGTH;
    }
    return drop_sent(a, out, n);
}
