/* vocabulary.h - small vocabularies for tests of tokenizers. */
#ifndef TESTS_VOCABULARY_H
#define TESTS_VOCABULARY_H

#include "tests/support/gguf_writer.h"
#include "worker/tokenizer.h"

/* The keys of a byte-level vocabulary: ids 0..255 are the bytes, then what the merges ("a b") make in their order, then the
 * control tokens. */
void vocabulary_bpe(struct gguf_writer *w, const char *pre, const char *const *control, size_t n_control,
                    const char *const *merges, size_t n_merges);
enum { VOCABULARY_FIRST_MERGED = 256 };

struct vocabulary_entry {
    const char *text;
    float score;
    uint32_t type; /* 0 = normal */
};

/* The keys of a SentencePiece vocabulary: <unk>, <s>, </s> (ids 0 to 2), <0x00>..<0xFF> (ids 3 to 258), then the entries. */
void vocabulary_spm(struct gguf_writer *w, const struct vocabulary_entry *entries, size_t n);
enum { VOCABULARY_SPM_FIRST_BYTE = 3, VOCABULARY_SPM_FIRST = 259 };

/* Finish the file and load its tokenizer; a failed assertion of cmocka if that is refused. */
struct tokenizer *vocabulary_load(struct gguf_writer *w);

#endif
