/* answer_json.h - parts of answers as JSON, shared by batch lines and --json. */
#ifndef ANSWER_JSON_H
#define ANSWER_JSON_H

#include <jansson.h>

#include "weir.h"

/* A JSON string of any bytes: each that is not part of a UTF-8 character becomes U+FFFD.  NULL: out of memory. */
json_t *answer_json_text(const char *text, size_t bytes);

/* JSON has no infinity; OpenAI writes -9999 for a probability of nought. */
json_t *answer_json_logprob(double logprob);

/* {"content": [{"token", "logprob", "bytes", "top_logprobs"}, ..]}, or null where the choice has none. */
json_t *answer_json_logprobs(const struct weir_choice *c);

/* The whole answer as `weir generate --json` prints it. */
json_t *answer_json(const struct weir_answer *a);

#endif
