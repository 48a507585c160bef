/* gguf_writer.h - build small GGUF files in memory for tests.
 *
 *   struct gguf_writer w = { 0 };
 *   gguf_writer_string(&w, "general.architecture", "llama");
 *   gguf_writer_tensor(&w, "token_embd.weight", TENSOR_F32, 2, (uint64_t[]){ 64, 100 }, NULL);
 *   struct span file = gguf_writer_finish(&w);      (lives until gguf_writer_deinit)
 *
 * A writer aborts on lack of memory.  Setting override fields before finish() makes files that lie. */
#ifndef TESTS_GGUF_WRITER_H
#define TESTS_GGUF_WRITER_H

#include "model.h"
#include "span.h"
#include "worker/gguf.h"

struct gguf_writer_buffer {
    uint8_t *at;
    size_t n, cap;
};

struct gguf_writer {
    struct gguf_writer_buffer pairs, infos, data, file;
    uint64_t n_pairs, n_tensors;
    uint32_t version;                    /* 0 = 3 */
    uint32_t alignment;                  /* 0 = 32; only pads: write general.alignment yourself */
    uint64_t claim_pairs, claim_tensors; /* 0 = the true counts */
    uint32_t seed;                       /* of the numbers that fill tensors without data */
};

void gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gguf_writer_f32(struct gguf_writer *w, const char *key, float v);
void gguf_writer_bool(struct gguf_writer *w, const char *key, bool v);
void gguf_writer_string(struct gguf_writer *w, const char *key, const char *v);
void gguf_writer_strings(struct gguf_writer *w, const char *key, const char *const *v, uint64_t n);
void gguf_writer_u32s(struct gguf_writer *w, const char *key, enum gguf_type type, const uint32_t *v,
                      uint64_t n);
void gguf_writer_f32s(struct gguf_writer *w, const char *key, const float *v, uint64_t n);
void gguf_writer_bools(struct gguf_writer *w, const char *key, const bool *v, uint64_t n);
/* A pair given as raw bytes: type and value. */
void gguf_writer_raw(struct gguf_writer *w, const char *key, uint32_t type, const void *value, size_t bytes);
/* The string array of n spans, which may hold any bytes. */
void gguf_writer_spans(struct gguf_writer *w, const char *key, const struct span *v, uint64_t n);

/* data NULL: small numbers from w->seed (F32), zero bytes (all else). */
void gguf_writer_tensor(struct gguf_writer *w, const char *name, enum tensor_type type, uint32_t n_dims,
                        const uint64_t *ne, const void *data);
/* A tensor info only, with any numbers in it. */
void gguf_writer_info(struct gguf_writer *w, const char *name, uint32_t n_dims, const uint64_t *ne,
                      uint32_t type, uint64_t offset);

struct span gguf_writer_finish(struct gguf_writer *w);
void gguf_writer_deinit(struct gguf_writer *w);

/* All keys and tensors of a small model of one architecture ("llama", "qwen2", "qwen3", "gemma3"), F32, with a vocabulary of
 * n_vocab; no tokenizer.  2 layers, E 32, F 64, H 4, G 2, D 8. */
void gguf_writer_tiny_model(struct gguf_writer *w, const char *arch, uint32_t n_vocab);

#endif
