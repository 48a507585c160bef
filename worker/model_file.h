/* model_file.h - make a struct model (include/model.h) from a GGUF file.
 *
 * Architectures, by table: llama (Llama 1-3, SmolLM2, Mistral, TinyLlama), qwen2, qwen3, gemma3.  Everything else is
 * refused by name: another architecture, mixture of experts, partial or unknown RoPE, logit soft caps, per-layer sizes, and
 * any tensor that the table does not know (a bias that would silently be left out gives a model that answers badly).
 *
 * Guaranteed for what comes back: all shapes agree with each other and with the sizes in struct model; norms, biases and
 * freq_divisors are F32; data lies inside the mapping; n_heads is a multiple of n_kv_heads; head_dim is even; every float
 * is finite.  context_tokens is the file's own number and may be above CONTEXT_TOKENS_MAX: who runs the model says how much
 * of it is used.
 *
 * Threads: read-only after model_open(). */
#ifndef MODEL_FILE_H
#define MODEL_FILE_H

#include "error.h"
#include "gguf.h"
#include "model.h"
#include "status.h"

/* Check the file and hash it (reads every page once).  Borrows g until model_close(): close the gguf after the model.
 * ST_OK, ST_INVALID, ST_UNSUPPORTED, ST_NOMEM; *err says which key or tensor. */
MUST_CHECK enum status model_open(const struct gguf *g, struct model **ret_model, struct error *err);

void model_close(struct model *m); /* NULL is fine */

const char *model_arch_name(enum model_arch arch); /* "qwen2" */

/* A few lines for people: architecture, sizes, weight types with bytes, RoPE, windows, fingerprint.  Writes at most
 * buf_bytes with the NUL, cut at a line's end if it must be; returns buf. */
char *model_describe(const struct model *m, char *buf, size_t buf_bytes);

#endif
