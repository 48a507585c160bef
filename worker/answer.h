/* answer.h - the text of one choice while it is generated: bytes of pieces in, text that may be released out.
 *
 *     token -> piece -> whole UTF-8 characters (utf8_hold) -> minus stop strings (stop_match) -> minus what was sent before
 *
 * A choice that another worker began is rebuilt by pushing its tokens through answer_push() again: the state comes out
 * equal, and the first released_bytes of the text, which the client has, stay in.
 *
 * Threads: none.  Memory: none of its own. */
#ifndef ANSWER_H
#define ANSWER_H

#include "stop_match.h"
#include "tokenizer.h"
#include "utf8_hold.h"
#include "work.h"

enum {
    /* The most text one token can release: its piece, every byte of it replaced; what a stop string held back; the end of both. */
    ANSWER_TEXT_MAX = UTF8_HOLD_OUT_MAX(PIECE_BYTES_MAX) + 3 + 2 * STOP_BYTES_MAX,
};

struct answer_rules { /* the same for all choices of a request; borrowed by them */
    const struct tokenizer *tokenizer;
    struct stop_set stops;
    bool ignore_eos;
};

struct answer {
    const struct answer_rules *rules;
    struct utf8_hold hold;
    struct stop_match match;
    uint64_t n_text;             /* bytes of text so far, sent or not */
    uint64_t n_sent_before;      /* of them, the first ones that the client has from another worker */
    enum finish_reason finish;   /* FINISH_NONE: goes on */
    int32_t stop_index;          /* which stop string ended it; -1: none */
};

void answer_init(struct answer *a, const struct answer_rules *rules, uint64_t n_sent_before);

/* The answer goes on behind these tokens.  A prompt given as ids may end within a character: its first bytes are held, and the
 * answer that completes it releases it whole. */
void answer_after(struct answer *a, const int32_t *prompt, uint32_t n_prompt);

/* The next token.  is_last: no more will follow, so what is held comes out.  Writes the text to be sent to out
 * [ANSWER_TEXT_MAX] and returns its bytes; a->finish says whether the answer ended with this token, and how. */
size_t answer_push(struct answer *a, int32_t token, bool is_last, uint8_t *out);

/* The most text that one token can release with a vocabulary whose longest piece has piece_bytes. */
static inline uint32_t answer_text_max(uint32_t piece_bytes)
{
    return (uint32_t)UTF8_HOLD_OUT_MAX(piece_bytes) + 3 + 2 * STOP_BYTES_MAX;
}

#endif
