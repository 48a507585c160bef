/* splitter.h - cut text into the words that byte-level BPE merges within (the "pre-tokenizer" of tokenizer.ggml.pre).
 *
 * Other programs give the rules as lists of regular expressions, each splitting the pieces that the one before left, what does
 * not match staying as a piece of its own.  Five lists cover the models we run; here they are written out as scanners:
 *
 *   gpt-2       's 't 're 've 'm 'll 'd | ?L+ | ?N+ | ?(not space, L, N)+ | spaces but the last before a word | spaces
 *   smollm      first each N alone, then gpt-2
 *   llama-bpe   the same contractions in any case | (not CR, LF, L, N)?L+ | N{1,3} | ?(not space, L, N)+[CR LF]* |
 *               spaces up to the last line end | spaces but the last before a word | spaces
 *   qwen2       as llama-bpe, each N alone
 *   default     runs of punctuation and $+<=>^~| | gpt-2 | runs of N | three ASCII digits
 *   (L, N: letters and numbers of Unicode; " ?" an optional blank)
 *
 * Time: every scanner looks at a character a bounded number of times, so a text of one word costs as much as any other. */
#ifndef SPLITTER_H
#define SPLITTER_H

#include <stdbool.h>

#include "span.h"

enum splitter_kind { SPLITTER_GPT2, SPLITTER_SMOLLM, SPLITTER_LLAMA3, SPLITTER_QWEN2, SPLITTER_DEFAULT };

enum { SPLITTER_LEVELS_MAX = 4 };

/* What a name of tokenizer.ggml.pre means; NULL when it is none we know. */
struct splitter_name {
    const char *name;
    enum splitter_kind kind;
    bool whole_words; /* a word that is a token is that token, whatever the merges say */
    bool adds_bos;    /* unless tokenizer.ggml.add_bos_token says otherwise */
};
const struct splitter_name *splitter_find(struct span name);

/* Where the pieces that hold position `at` end, one level inside the other. */
struct splitter {
    enum splitter_kind kind;
    size_t ends[SPLITTER_LEVELS_MAX];
};

/* Begin with a new text, or with another place in it. */
void splitter_begin(struct splitter *s, enum splitter_kind kind);

/* The end of the word that begins at `at`, at < text.n; call again with that end. */
size_t splitter_next(struct splitter *s, struct span text, size_t at);

#endif
