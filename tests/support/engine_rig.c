/* engine_rig.c - see engine_rig.h.  Every failure ends the program: a test has nothing to say without a model. */
#include "tests/support/engine_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void stop(const char *what, const struct error *err)
{
    fprintf(stderr, "rig: %s: %s (%s)\n", what, err->message, err->param);
    exit(1);
}

enum status rig_try_open(struct rig *r, const char *path, const struct backend_options *o, struct error *err)
{
    memset(err, 0, sizeof(*err));
    *r = (struct rig){ .api = backend_cpu(), .options = *o };
    if (gguf_open(path, &r->gguf, err) != ST_OK || model_open(r->gguf, &r->model, err) != ST_OK)
        stop(path, err);
    r->options.n_threads = o->n_threads ? o->n_threads : 2;
    r->options.max_rows = o->max_rows ? o->max_rows : 512;
    r->options.max_seqs = o->max_seqs ? o->max_seqs : 64;
    r->options.n_blocks = o->n_blocks ? o->n_blocks : 512;
    r->options.context_tokens = o->context_tokens ? o->context_tokens : r->model->context_tokens < 4096 ? r->model->context_tokens : 4096;
    enum status st = r->api->open(r->model, &r->options, &r->backend, err);
    if (st != ST_OK)
        rig_close(r);
    return st;
}

void rig_open(struct rig *r, const char *path, const struct backend_options *o)
{
    struct error err;

    if (rig_try_open(r, path, o, &err) != ST_OK)
        stop(path, &err);
}

void rig_close(struct rig *r)
{
    r->api->close(r->backend);
    model_close(r->model);
    gguf_close(r->gguf);
    memset(r, 0, sizeof(*r));
}

void rig_blocks(uint32_t *blocks, uint32_t n, uint32_t first)
{
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = first + i;
}

void rig_step(struct rig *r, const struct plan_entry *entries, uint32_t n, struct step_result *results)
{
    static struct step_result unused[SEQS_MAX];
    struct plan p = { .entries = entries, .n_entries = n };
    backend_ticket t;

    for (uint32_t i = 0; i < n; i++)
        p.n_rows += entries[i].n_tokens;
    if (r->api->step_submit(r->backend, &p, &t) != ST_OK || r->api->step_wait(r->backend, t, results ? results : unused) != ST_OK) {
        fprintf(stderr, "rig: step failed\n");
        exit(1);
    }
}

void rig_feed(struct rig *r, const int32_t *ids, uint32_t first, uint32_t last, uint32_t chunk, const uint32_t *blocks,
              float *logits)
{
    for (uint32_t at = first, n; at < last; at += n) {
        n = last - at < chunk ? last - at : chunk;
        struct plan_entry e = { .tokens = ids + at, .n_tokens = n, .n_past = at, .blocks = blocks, .from_entry = -1 };
        e.want = logits == NULL ? WANT_NOTHING : WANT_ALL_LOGITS;
        e.logits = logits == NULL ? NULL : logits + (size_t)(at - first) * r->model->n_vocab;
        rig_step(r, &e, 1, NULL);
    }
}

static bool is_half(enum tensor_type t)
{
    return t == TENSOR_F16 || t == TENSOR_BF16;
}

static bool is_int8(enum tensor_type t)
{
    return !is_half(t) && t != TENSOR_F32;
}

double model_half_bound(const struct model *m, enum kv_type kv_type)
{
    bool half = is_half(m->output.type);
    bool int8 = kv_type == KV_Q8 || is_int8(m->output.type);

    for (uint32_t i = 0; i < m->n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        const struct tensor *t[] = { &l->attn_q, &l->attn_k, &l->attn_v, &l->attn_output, &l->ffn_gate, &l->ffn_up, &l->ffn_down };
        for (size_t j = 0; j < sizeof(t) / sizeof(t[0]); j++) {
            half |= is_half(t[j]->type);
            int8 |= is_int8(t[j]->type);
        }
    }
    return !half ? 0 : int8 ? 1e-3 : 1e-5;
}
