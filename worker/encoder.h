/* encoder.h - text to token ids, in slices.
 *
 * An encoder is the working memory of one thread that tokenizes; the tokenizer it works with is shared.  One text after
 * another goes through it:
 *
 *   encoder_begin(e);
 *   st = encoder_add_bos(e, &err);                          if the model wants one
 *   st = encoder_add(e, prompt, ENCODE_PLAIN, &err);        copies; the caller's bytes are free again
 *   while (encoder_step(e, 20000) == ST_AGAIN)              a slice; other work may be done between
 *       ;
 *   ids = encoder_ids(e, &n_ids);                           valid until the next encoder_begin()
 *
 * Parts.  ENCODE_PLAIN text never becomes a control token, whatever it says; ENCODE_CONTROL text does where it spells one.
 * A chat template adds its own words as ENCODE_CONTROL and the user's as ENCODE_PLAIN.  Parts that touch are one text for
 * everything else: the ids are those of the whole text, except that no control token is found in or across plain parts.
 * User-defined tokens are found everywhere.  encoder_add_token() puts an id in between and separates the texts around it.
 *
 * Where special texts overlap, the leftmost wins, then the longest.
 *
 * Time: close to linear in the text's bytes for any text: n log n heap steps with a small constant when the whole text is
 * one word (BPE) or one line (SPM).  encoder_work() counts them.
 * Memory: address space for the largest text is taken by encoder_new(); pages come with use, and what a large text has
 * touched goes back at the next encoder_begin().  Nothing else allocates.
 *
 * Any bytes are taken: what is not UTF-8 is encoded byte by byte.  Some vocabularies have no token for some bytes (SmolLM2:
 * twenty-one, mostly bytes that UTF-8 never holds and a few control characters); such bytes are left out as their reference tokenizers do, and
 * counted by encoder_dropped_bytes(). */
#ifndef ENCODER_H
#define ENCODER_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"
#include "limits.h"
#include "span.h"
#include "status.h"
#include "tokenizer.h"

enum {
    ENCODER_BYTES_MAX =
        PROMPT_BYTES_MAX + MESSAGES_MAX * 256 + 16384, /* all parts: a prompt and a template around it */
    ENCODER_PARTS_MAX = MESSAGES_MAX * 8 + 64,
};

enum encoder_part { ENCODE_PLAIN, ENCODE_CONTROL };

struct encoder; /* opaque */

/* Borrows t until encoder_free().  ST_OK or ST_NOMEM. */
MUST_CHECK enum status encoder_new(const struct tokenizer *t, struct encoder **ret_encoder);
void encoder_free(struct encoder *e); /* NULL is fine */

const struct tokenizer *encoder_tokenizer(const struct encoder *e);

/* Forget the last text and start another. */
void encoder_begin(struct encoder *e);

/* Add a part.  Only before the first encoder_step().  ST_OK, or ST_LIMIT (more than ENCODER_BYTES_MAX or ENCODER_PARTS_MAX;
 * *err says so; nothing was added). */
MUST_CHECK enum status encoder_add(struct encoder *e, struct span text, enum encoder_part part,
                                   struct error *err);
MUST_CHECK enum status encoder_add_token(struct encoder *e, int32_t id, struct error *err);
/* The model's BOS if its vocabulary says that prompts begin with one, else nothing. */
MUST_CHECK enum status encoder_add_bos(struct encoder *e, struct error *err);

/* All parts added so far, as one text; ids are there as their token's text.  Valid until the next add, step or begin. */
struct span encoder_text(const struct encoder *e);

/* Do about `work` units (a unit is a byte looked at or a step of a heap, some ten nanoseconds); a single word is cut too.
 * ST_OK: done, the ids are there.  ST_AGAIN: there is more. */
MUST_CHECK enum status encoder_step(struct encoder *e, uint64_t work);

/* The ids found so far, all of them once encoder_step() gave ST_OK.  Borrowed until encoder_begin(). */
const int32_t *encoder_ids(const struct encoder *e, size_t *ret_n_ids);

uint64_t encoder_work(const struct encoder *e);          /* since encoder_begin() */
uint64_t encoder_dropped_bytes(const struct encoder *e); /* likewise */

/* begin, add and all steps at once, without BOS. */
MUST_CHECK enum status encoder_encode(struct encoder *e, struct span text, enum encoder_part part,
                                      const int32_t **ret_ids, size_t *ret_n_ids, struct error *err);

#endif
