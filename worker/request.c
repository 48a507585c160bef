/* request.c - encode the prompt and build the sequences.
 *
 * All memory a request will ever use is taken here, off the step thread: token arrays as long as the answer may become, block
 * tables, counts for the penalties.  A step then allocates nothing. */
#include "request_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void free_choice(struct choice *c)
{
    free(c->seq.tokens);
    free(c->seq.blocks);
    free(c->pending);
    token_counts_deinit(&c->counts);
}

void request_free(struct request *r)
{
    if (r == NULL)
        return;
    for (uint32_t i = 0; r->choices != NULL && i < r->head.n_choices; i++)
        free_choice(&r->choices[i]);
    free(r->choices);
    free(r->ids);
    free(r->record);
    free(r);
}

bool request_needs_encoder(const struct request *r)
{
    return r->error.code == ERR_NONE && r->head.prompt_kind != WORK_PROMPT_IDS;
}

uint32_t request_prompt_bytes(const struct request *r)
{
    return r->head.prompt.bytes;
}

static enum status encode_messages(struct request *r, struct encoder *e)
{
    enum status st = ST_NOMEM;
    struct chat_message *messages = calloc(r->head.n_messages + 1, sizeof(*messages));
    if (messages != NULL) {
        request_messages(r, messages);
        st = chat_template_encode(&r->chat, e, messages, r->head.n_messages, true, &r->error);
    }
    free(messages);
    return st;
}

void request_encode(struct request *r, struct encoder *e)
{
    assert(request_needs_encoder(r));
    enum status st = ST_OK;
    encoder_begin(e);
    if (r->head.prompt_kind == WORK_PROMPT_MESSAGES) {
        st = encode_messages(r, e);
    } else {
        enum encoder_part part = (r->head.flags & WORK_RAW) != 0 ? ENCODE_CONTROL : ENCODE_PLAIN;
        if (r->head.kind == WORK_GENERATE)
            st = encoder_add_bos(e, &r->error);
        if (st == ST_OK)
            st = encoder_add(e, span_of(request_part(r, r->head.prompt), r->head.prompt.bytes), part, &r->error);
    }
    if (st != ST_OK && r->error.code == ERR_NONE)
        error_set(&r->error, ERR_INTERNAL, "", "cannot encode the prompt: %s", status_text(st));
}

static bool has_penalty(const struct sampling *s)
{
    return s->repetition_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0;
}

/* Ring slots that one more token may take: the token with its log-probabilities, the text it releases, FINISH and DONE. */
static uint32_t event_slots_for(const struct request *r)
{
    const struct sampling *s = &r->head.sampling;
    uint32_t one = 10 + r->limits->piece_bytes_max;
    uint32_t token = s->logprobs || s->n_logprobs > 0 ? event_slots((1 + s->n_logprobs) * one) : 1;
    return token + event_slots(answer_text_max(r->limits->piece_bytes_max)) + 2;
}

static bool set_up_choice(struct request *r, uint32_t i, const int32_t *prompt, uint32_t n_before)
{
    const struct request_limits *l = r->limits;
    struct choice *c = &r->choices[i];
    uint64_t tokens_max = r->head.max_tokens > 0 ? (uint64_t)r->n_prompt + r->head.max_tokens : l->context_tokens;
    if (tokens_max > l->context_tokens)
        tokens_max = l->context_tokens;
    if (tokens_max < (uint64_t)r->n_prompt + n_before)
        tokens_max = (uint64_t)r->n_prompt + n_before; /* another worker with a larger context began it */

    c->request = r;
    answer_init(&c->answer, &r->rules, 0);
    answer_after(&c->answer, prompt, r->n_prompt);
    c->seq = (struct sequence){
        .owner = c,
        .n_prompt = r->n_prompt,
        .n_tokens = r->n_prompt,
        .tokens_max = (uint32_t)tokens_max,
        .scope = { { r->head.scope[0], r->head.scope[1] } },
        .cache_off = (r->head.flags & WORK_CACHE_OFF) != 0,
        .interactive = (r->head.flags & WORK_INTERACTIVE) != 0,
        .fair_tag = r->head.fair_tag,
        .choice = i,
        .event_slots_max = event_slots_for(r),
        .sampling = &r->head.sampling,
        .bias = r->bias,
        .n_bias = r->head.bias.bytes / (uint32_t)sizeof(struct logit_bias),
    };
    c->seq.tokens = calloc(tokens_max, sizeof(int32_t));
    c->seq.blocks = calloc(blocks_for((uint32_t)tokens_max), sizeof(uint32_t));
    if (c->seq.tokens == NULL || c->seq.blocks == NULL)
        return false;
    memcpy(c->seq.tokens, prompt, r->n_prompt * sizeof(int32_t));
    if (!has_penalty(&r->head.sampling))
        return true;
    if (token_counts_init(&c->counts, (uint32_t)tokens_max, l->n_vocab) != ST_OK)
        return false;
    token_counts_add_prompt(&c->counts, prompt, r->n_prompt);
    return true;
}

void request_count_token(struct choice *c, int32_t token)
{
    if (c->counts.list == NULL)
        return;
    token_counts_add_answer(&c->counts, token);
    c->seq.seen = c->counts.list;
    c->seq.n_seen = c->counts.n;
}

/* Push what another worker generated through the answer's state again. */
static bool replay(struct choice *c, const struct work_resume *w, const int32_t *ids)
{
    uint32_t n_left = c->seq.tokens_max - c->seq.n_prompt;
    uint64_t cap = 0;
    c->n_before = w->n_ids;
    c->over = w->finished == 1;
    c->answer.n_sent_before = w->released_bytes;
    for (uint32_t k = 0; k < w->n_ids; k++) {
        uint8_t out[ANSWER_TEXT_MAX];
        if (c->answer.finish != FINISH_NONE) { /* tokens after the end: not an answer any worker gave */
            error_set(&c->request->error, ERR_MALFORMED_MESSAGE, "resume", "choice %u goes on after its end", w->choice);
            return true;
        }
        size_t n = answer_push(&c->answer, ids[k], k + 1 == n_left, out);
        if (c->n_pending + n > cap) {
            cap = 2 * (c->n_pending + n) + 256;
            uint8_t *grown = realloc(c->pending, cap);
            if (grown == NULL)
                return false;
            c->pending = grown;
        }
        if (n > 0)
            memcpy(c->pending + c->n_pending, out, n);
        c->n_pending += (uint32_t)n;
        c->seq.tokens[c->seq.n_tokens++] = ids[k];
        request_count_token(c, ids[k]);
    }
    if (c->over)
        c->n_pending = 0;
    return true;
}

static bool build_choices(struct request *r, const int32_t *prompt)
{
    struct work_resume resume[CHOICES_MAX] = { { 0 } };
    const int32_t *ids[CHOICES_MAX] = { NULL };
    struct work_resume w;
    const int32_t *w_ids;
    uint32_t at = 0;
    for (uint32_t i = 0; i < r->head.n_resume && request_resume_next(r, &at, &w, &w_ids); i++) {
        resume[w.choice] = w;
        ids[w.choice] = w_ids;
    }
    r->choices = calloc(r->head.n_choices, sizeof(*r->choices));
    if (r->choices == NULL)
        return false;
    struct sequence *leader = NULL;
    for (uint32_t i = 0; i < r->head.n_choices; i++) {
        struct choice *c = &r->choices[i];
        if (!set_up_choice(r, i, prompt, resume[i].n_ids) || !replay(c, &resume[i], ids[i]))
            return false;
        c->seq.seen = c->counts.list;
        c->seq.n_seen = c->counts.n;
        r->n_completion_tokens += resume[i].n_ids;
        if (c->over || c->answer.finish != FINISH_NONE)
            continue; /* nothing to compute: it leads nobody */
        c->seq.leader = leader;
        leader = leader == NULL ? &c->seq : leader;
    }
    return true;
}

static void keep_ids(struct request *r, const int32_t *ids, uint32_t n)
{
    r->ids = malloc(n > 0 ? n * sizeof(*ids) : 1);
    if (r->ids == NULL) {
        error_set(&r->error, ERR_INTERNAL, "", "out of memory for %u token ids", n);
        return;
    }
    if (n > 0)
        memcpy(r->ids, ids, n * sizeof(*ids));
    r->n_ids = n;
}

void request_build(struct request *r, const struct encoder *e)
{
    size_t n = r->head.prompt.bytes / 4;
    const int32_t *ids = (const int32_t *)request_part(r, r->head.prompt);
    if (r->error.code != ERR_NONE)
        return;
    if (e != NULL)
        ids = encoder_ids(e, &n);
    if (r->head.kind == WORK_TOKENIZE) {
        keep_ids(r, ids, (uint32_t)n);
        return;
    }
    if (n == 0) {
        error_set(&r->error, ERR_INVALID_PARAMETER, "prompt", "the prompt is empty");
        return;
    }
    if (n >= r->limits->context_tokens) {
        error_set(&r->error, ERR_CONTEXT_OVERFLOW, "prompt", "prompt has %zu tokens, this worker takes %u with the answer",
                  n, r->limits->context_tokens);
        return;
    }
    r->n_prompt = (uint32_t)n;
    if (!build_choices(r, ids))
        error_set(&r->error, ERR_INTERNAL, "", "out of memory for %u choices", r->head.n_choices);
}

bool request_is_over(const struct request *r)
{
    for (uint32_t i = 0; r->choices != NULL && i < r->head.n_choices; i++)
        if (!r->choices[i].over)
            return false;
    return true;
}
