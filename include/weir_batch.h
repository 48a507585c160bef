/* weir_batch.h - lines of batch files: one JSON text in, one request out; one answer in, one JSON text out.
 *
 * Shared by `weir batch` and by the jobs of weir-gateway, so that a file means the same wherever it is run.  Pure: no I/O, no
 * clock, no state between lines.  Any thread, as long as a line belongs to one at a time.
 *
 * Two forms of an input line:
 *
 *   OpenAI batch   {"custom_id": "a", "method": "POST", "url": "/v1/completions" | "/v1/chat/completions", "body": {...}}
 *   short          {"prompt": "..."} or {"prompt_ids": [..]} or {"messages": [..]}, with "id" (optional) and the same parameters
 *
 * A line is the OpenAI form if it has any of custom_id, method, url, body; mixing the forms is an error.
 *
 * Parameters (body, or beside prompt): model, max_tokens, max_completion_tokens (the same thing), n, seed, temperature, top_p, stop,
 * presence_penalty, frequency_penalty, logit_bias, logprobs, top_logprobs; and beyond OpenAI's: top_k, min_p, repetition_penalty, ignore_eos,
 * prompt_ids, raw, chat_template, cache ("on", "off"), deadline_ms, scope ("user", "pool"), salt.
 *   logprobs: true or false, or (as in /v1/completions) the number of alternatives.  prompt: a string, a list of token ids, or a
 *   list of one of these.  content of a message: a string, or a list of {"type": "text", "text": ...}, which are joined.
 *   null means "not given".  stream, echo and store may be false.
 * "metadata" and keys that begin with x_ are the writer's own and are allowed anywhere.  Every other key is an error that names it:
 * unsupported_parameter where weir_is_unsupported_parameter(), else unknown_field.  Twice the same key is an error.
 *
 * Output line (OpenAI's form):
 *   {"id": "batch_req_ID", "custom_id": .., "response": {"status_code": 200, "request_id": ID, "body": {..}}, "error": null}
 *   body: {"id", "object": "chat.completion" | "text_completion", "created", "model", "choices": [{"index", "message": {"role",
 *   "content"} | "text", "finish_reason", "logprobs", "n_tokens", "token_hash"}], "usage": {.., "prompt_tokens_details": {"cached_tokens"}}, "seed",
 *   "system_fingerprint"}.  token_hash is XXH3-128 of the token ids as little-endian 32-bit integers; with seed and fingerprint it is what
 *   `weir verify` needs.
 * Error line: both response and error are filled, so that no reader can take it for a success:
 *   {"id": .., "custom_id": .., "response": {"status_code": 400, "request_id": ID, "body": {"error": {"message", "type", "param", "code"}}},
 *    "error": {"code", "message", "param", "line"}}
 * Whoever gave no id finds the line by the custom_id "line-N" (N counts every line of the file from 1). */
#ifndef WEIR_BATCH_H
#define WEIR_BATCH_H

#include "weir.h"

#ifdef __cplusplus
extern "C" {
#endif

struct weir_line {
    uint64_t number;             /* as given to weir_line_parse */
    char *custom_id;             /* the line's own id, or "line-N"; never NULL after weir_line_parse, also when it failed,
                                  * except out of memory */
    bool has_custom_id;          /* the line gave it */
    bool chat;                   /* answered as chat.completion, else as text_completion */
    struct weir_request request; /* class batch; its pointers are owned by the line.  The caller may fill in what the line left
                                  * open (model, max_tokens, on_behalf_of, idempotency_key: borrowed from the caller then) */
    void *memory;                /* opaque */
};

/* Nothing but JSON white space (and a byte order mark)?  Such lines are skipped, but counted. */
bool weir_line_blank(const char *text, size_t bytes);

/* Parse one line, without its newline; a CR at the end and a byte order mark at the beginning of line 1 are accepted.
 * number: of the line, from 1.  Copies what it needs of text.
 * WEIR_OK or WEIR_FAILED: *err has code, sentence, and in param the place ("body.temperature", "messages[2].content").
 * Fills *ret_line in both cases (see custom_id); call weir_line_deinit() in both cases. */
int weir_line_parse(const char *text, size_t bytes, uint64_t number, struct weir_line *ret_line, struct weir_error *err);
void weir_line_deinit(struct weir_line *line); /* a zeroed line is fine */

/* Only the custom_id that weir_line_parse() gives to this line, also if it refuses the line: several times as fast.
 * ret_id [CUSTOM_ID_BYTES_MAX + 1].  WEIR_OK; WEIR_FAILED: out of memory. */
int weir_line_custom_id(const char *text, size_t bytes, uint64_t number, char *ret_id);

/* The answer as one JSON text without newline, NUL-terminated UTF-8 with control characters escaped; free() it.
 * id: unique name of this line's run, letters, digits and "-" ("12-7"); created_s: seconds since 1970.
 * NULL: out of memory. */
char *weir_line_output(const struct weir_line *line, const struct weir_answer *answer, const char *id, int64_t created_s,
                       size_t *ret_bytes);
char *weir_line_error(const struct weir_line *line, const struct weir_error *error, const char *id, size_t *ret_bytes);

#ifdef __cplusplus
}
#endif

#endif
