/* tokenizer.h - a model's vocabulary: how text becomes token ids (with encoder.h) and ids become bytes.
 *
 * Two kinds, as the file says in tokenizer.ggml.model:
 *   "gpt2"   byte-level BPE: text is cut into words by a splitter (tokenizer.ggml.pre), each word's bytes are merged by the
 *            ranked merge list
 *   "llama"  SentencePiece BPE ("SPM"): characters are merged by the scores of the tokens they make; a character without
 *            a token becomes byte tokens <0xXX>
 * Other kinds and other splitters are refused by name.
 *
 * Words:  normal token     a piece of ordinary text
 *         control token    <|im_start|>, <bos>: structure.  Made from text only where the caller says so
 *         user-defined     fixed texts that are always one token (runs of spaces, <table>); ordinary text otherwise
 *         byte token       one raw byte (SPM)
 *         piece            the bytes a token stands for
 *
 * Threads: read-only after tokenizer_new(), so any number may use it.  Memory: its own; the gguf may be closed. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "gguf.h"
#include "span.h"
#include "status.h"

enum { TOKEN_NONE = -1 };

struct tokenizer; /* opaque */

/* ST_OK, ST_INVALID (a broken vocabulary), ST_UNSUPPORTED, ST_LIMIT, ST_NOMEM; *err names key and entry. */
MUST_CHECK enum status tokenizer_new(const struct gguf *g, struct tokenizer **ret_tokenizer,
                                     struct error *err);
void tokenizer_free(struct tokenizer *t); /* NULL is fine */

uint32_t tokenizer_n_tokens(const struct tokenizer *t);

/* The bytes that token id adds to the text: at most PIECE_BYTES_MAX, possibly part of a UTF-8 character, never changed by
 * its neighbours.  Control tokens give nothing unless with_control is set; an id outside the vocabulary gives nothing.
 * Borrowed from the tokenizer.  A generated text keeps the space its first piece may begin with: it continues the prompt. */
struct span tokenizer_piece(const struct tokenizer *t, int32_t id, bool with_control);

/* The token whose text is this, of any type (SPM: with U+2581 for a space; BPE: in the file's byte alphabet); TOKEN_NONE. */
int32_t tokenizer_find(const struct tokenizer *t, struct span text);
/* The token's text as the file writes it. */
struct span tokenizer_text(const struct tokenizer *t, int32_t id);

bool tokenizer_is_control(const struct tokenizer *t, int32_t id); /* false for ids outside the vocabulary */

/* Does generating this token end the answer?  The file's eos, eot and eom ids, and control tokens whose text is one of the
 * known ends (<|im_end|>, <end_of_turn>, ...).  Fill-in-the-middle and repository marks are not ends. */
bool tokenizer_is_end(const struct tokenizer *t, int32_t id);

int32_t tokenizer_bos(const struct tokenizer *t); /* TOKEN_NONE when the file names none */
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t); /* does a plain prompt begin with it? */

/* The text of a whole sequence of ids, as the model family's own decoder gives it: where the vocabulary prefixes texts with
 * a space, one leading space is dropped.  Writes at most buf_bytes; returns the length of the whole. */
size_t tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n_ids, bool with_control,
                        uint8_t *buf, size_t buf_bytes);

#endif
