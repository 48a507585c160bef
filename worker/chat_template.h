/* chat_template.h - a conversation to the ids that a chat model was trained on.
 *
 * Models carry a template in the Jinja language.  We do not run Jinja: a template is foreign code that would work on users'
 * texts.  The families that our architectures use write one of a few formats; which one is found from marks in the template's
 * source, together with its variations (a default system prompt, trimmed contents, where BOS stands), and a small
 * formatter writes it.  A template of no known family is refused when a conversation comes, not when the model is loaded:
 * plain completions need none.
 *
 * Only the template's own words can become control tokens.  What users write stays text, whatever it spells.
 *
 *   name          looks like
 *   chatml        <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
 *   llama2        <s>[INST] <<SYS>>\n...\n<</SYS>>\n\nHi [/INST] Hello </s>
 *   llama3        <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>
 *   gemma         <start_of_turn>user\nHi<end_of_turn>\n          no system role: its text opens the first user turn
 *   mistral-v1    <s> [INST] Hi [/INST] Hello</s>
 *   mistral-v3    <s>[INST] Hi[/INST] Hello</s>
 *   mistral-tekken  <s>[INST]Hi[/INST]Hello</s>
 *   mistral-v7    <s>[SYSTEM_PROMPT] ...[/SYSTEM_PROMPT][INST] Hi[/INST] Hello</s>
 *   mistral-v7-tekken  the same without the blanks
 *   zephyr        <|user|>\nHi</s>\n<|assistant|>\n
 * "mistral" is another name of mistral-v3.  In llama2, gemma and the mistrals before v7 a system text has no turn of its own.
 *
 * Not followed: what templates do with tools, with the reasoning of earlier replies (it stays as it was sent) and with today's
 * date (the same conversation is the same prompt on every day).
 *
 * Threads: read-only after chat_template_init(). */
#ifndef CHAT_TEMPLATE_H
#define CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "encoder.h"
#include "error.h"
#include "gguf.h"
#include "limits.h"
#include "span.h"
#include "status.h"

struct chat_message {
    struct span role;    /* "system", "user" or "assistant" */
    struct span content; /* UTF-8 */
};

enum chat_format {
    CHAT_UNKNOWN,
    CHAT_CHATML,
    CHAT_LLAMA2,
    CHAT_LLAMA3,
    CHAT_GEMMA,
    CHAT_MISTRAL_V1,
    CHAT_MISTRAL_V3,
    CHAT_MISTRAL_TEKKEN,
    CHAT_MISTRAL_V7,
    CHAT_MISTRAL_V7_TEKKEN,
    CHAT_ZEPHYR,
    CHAT_FORMAT_COUNT
};

enum { CHAT_DEFAULT_SYSTEM_BYTES_MAX = 4096 };

/* A plain value: copy it freely. */
struct chat_template {
    enum chat_format format;
    bool begins_with_bos;   /* the conversation does */
    bool bos_each_turn;     /* llama2: so does each user turn after the first */
    bool alternates;        /* roles must alternate, user first; else any order goes */
    bool trims;             /* all contents lose white space at both ends */
    bool trims_reply;       /* the assistant's do */
    bool marks_system;      /* llama2: <<SYS>> around the system text; else it is followed by an empty line */
    bool spaces_reply;      /* llama2: blanks on both sides of a reply */
    bool space_after_reply; /* llama2: a blank after the EOS of a reply */
    bool system_at_last;    /* mistral: the system text opens the last user turn, not the first */
    bool dated; /* llama3: a system turn is always there and begins with the cut-off date and a fixed day */
    size_t default_system_bytes; /* chatml: a system turn for conversations that have none; 0: none */
    char default_system[CHAT_DEFAULT_SYSTEM_BYTES_MAX];
};

/* The template of a file.  A file without one, or with one of no known family, gives CHAT_UNKNOWN and ST_OK.  ST_INVALID: the
 * key is no string; ST_LIMIT: over TEMPLATE_BYTES_MAX. */
MUST_CHECK enum status chat_template_init(const struct gguf *g, struct chat_template *ret_template,
                                          struct error *err);

/* Recognise a template's source. */
struct chat_template chat_template_detect(struct span source);

/* A format by its name, with the family's usual variations.  ST_NOT_FOUND: *err lists the names. */
MUST_CHECK enum status chat_template_by_name(struct span name, struct chat_template *ret_template,
                                             struct error *err);

const char *chat_template_name(const struct chat_template *c); /* "chatml"; "unknown" */

/* Begin a text in e that is the conversation; the caller goes on with encoder_step().  generation_prompt: end with the opening
 * of the assistant's turn.  Borrows the messages until it returns.
 * ST_OK; ST_INVALID: a role is unknown or out of order, or there is no message (*err names `messages[i].role`);
 * ST_UNSUPPORTED: CHAT_UNKNOWN; ST_LIMIT: see encoder_add(), or more than MESSAGES_MAX messages. */
MUST_CHECK enum status chat_template_encode(const struct chat_template *c, struct encoder *e,
                                            const struct chat_message *messages, size_t n_messages,
                                            bool generation_prompt, struct error *err);

#endif
