/* chat_template.c - write a conversation in the format of its model family.
 *
 * A formatter is a few calls of put_*(): template words go in as control text, contents as plain text, BOS and EOS as ids.  The
 * encoder keeps the three apart, so nothing here has to look into what users write.
 *
 * Errors stick in the writer and are looked at once, at the end. */
#include "chat_template.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "unicode.h"

static const struct {
    const char *name;
    enum chat_format format;
} names[] = {
    {"chatml", CHAT_CHATML},
    {"llama2", CHAT_LLAMA2},
    {"llama3", CHAT_LLAMA3},
    {"gemma", CHAT_GEMMA},
    {"mistral-v1", CHAT_MISTRAL_V1},
    {"mistral-v3", CHAT_MISTRAL_V3},
    {"mistral-tekken", CHAT_MISTRAL_TEKKEN},
    {"mistral-v7", CHAT_MISTRAL_V7},
    {"mistral-v7-tekken", CHAT_MISTRAL_V7_TEKKEN},
    {"zephyr", CHAT_ZEPHYR},
    {"mistral", CHAT_MISTRAL_V3}, /* after its own name, which chat_template_name() gives */
};

/* The marks of the mistral formats: around a user's text, before a reply, around a system text (v7). */
static const struct {
    const char *user_open, *user_close, *reply_open, *system_open, *system_close;
} mistral[CHAT_FORMAT_COUNT] = {
    [CHAT_MISTRAL_V1] = {" [INST] ", " [/INST]", " ", NULL, NULL},
    [CHAT_MISTRAL_V3] = {"[INST] ", "[/INST]", " ", NULL, NULL},
    [CHAT_MISTRAL_TEKKEN] = {"[INST]", "[/INST]", "", NULL, NULL},
    [CHAT_MISTRAL_V7] = {"[INST] ", "[/INST]", " ", "[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"},
    [CHAT_MISTRAL_V7_TEKKEN] = {"[INST]", "[/INST]", "", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
};

static const char llama3_dates[] = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";

const char *chat_template_name(const struct chat_template *c)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i].format == c->format)
            return names[i].name;
    return "unknown";
}

/* --- recognising a source ------------------------------------------------------------------------------------------------ */

static bool has(struct span source, const char *text)
{
    return memmem(source.at, source.n, text, strlen(text)) != NULL;
}

static bool has_any(struct span source, const char *const *texts)
{
    for (; *texts != NULL; texts++)
        if (has(source, *texts))
            return true;
    return false;
}

static bool trims_contents(struct span source)
{
    static const char *const forms[] = {"content'] | trim", "content']|trim",    "content\"] | trim",
                                        "content\"]|trim",  "content | trim",    "content|trim",
                                        "content.strip()",  "content'].strip()", NULL};

    return has_any(source, forms);
}

/* A string literal's characters up to <|im_end|>: NULL when the literal ends before, or holds an expression.  quote 0: the text stands
 * in the template itself.  Returns the number of bytes written to out. */
static size_t literal_until_end(struct span rest, char quote, char *out)
{
    static const char end[] = "<|im_end|>";
    size_t n = 0;

    for (size_t i = 0; i < rest.n && n < CHAT_DEFAULT_SYSTEM_BYTES_MAX; i++) {
        char c = (char)rest.at[i];

        if (rest.n - i >= sizeof(end) - 1 && memcmp(rest.at + i, end, sizeof(end) - 1) == 0)
            return n;
        if ((quote != 0 && c == quote) || (quote == 0 && c == '{'))
            return 0;
        if (quote != 0 && c == '\\' && i + 1 < rest.n) {
            c = (char)rest.at[++i];
            c = c == 'n' ? '\n' : c == 't' ? '\t' : c;
        }
        out[n++] = c;
    }
    return 0;
}

/* SmolLM2 and Qwen write a system turn of their own when a conversation begins without one: a literal that opens a system turn,
 * text, and closes it. */
static void find_default_system(struct span source, struct chat_template *c)
{
    static const char open[] = "<|im_start|>system";
    const size_t n_open = sizeof(open) - 1;
    struct span rest = source;

    while (c->default_system_bytes == 0) {
        const uint8_t *at = memmem(rest.at, rest.n, open, n_open);

        if (at == NULL)
            return;
        char quote = at > source.at && (at[-1] == '\'' || at[-1] == '"') ? (char)at[-1] : 0;

        rest = span_of(at + n_open, rest.n - (size_t)(at - rest.at) - n_open);
        if (rest.n > 0 && rest.at[0] == '\n')
            rest = span_of(rest.at + 1, rest.n - 1);
        else if (quote != 0 && rest.n > 1 && rest.at[0] == '\\' && rest.at[1] == 'n')
            rest = span_of(rest.at + 2, rest.n - 2);
        else
            continue;
        c->default_system_bytes = literal_until_end(rest, quote, c->default_system);
    }
}

static void detect_inst(struct span source, struct chat_template *c)
{
    static const char *const v1[] = {"\" [INST] \" + system_message", "' [INST] ' + system_message",
                                     "\" [INST] \" + message", "' [INST] ' + message", NULL};
    static const char *const spaced[] = {"\"[INST] \"", "'[INST] '", "[INST] {{", NULL};
    static const char *const spaced_system[] = {"\"[SYSTEM_PROMPT] \"", "'[SYSTEM_PROMPT] '",
                                                "[SYSTEM_PROMPT] {{", NULL};
    static const char *const trimmed_reply[] = {"|trim + eos_token", "| trim + eos_token", NULL};
    static const char *const each_bos[] = {"bos_token + '[INST]", "bos_token + \"[INST]", NULL};
    static const char *const at_last[] = {"loop.last and system_message",
                                          "user_messages[-1]) and system_message",
                                          "last_user_message and system_message", NULL};

    c->trims_reply = has_any(source, trimmed_reply);
    c->system_at_last = has_any(source, at_last);
    if (has(source, "[SYSTEM_PROMPT]")) {
        c->format = has_any(source, spaced_system) ? CHAT_MISTRAL_V7 : CHAT_MISTRAL_V7_TEKKEN;
    } else if (has_any(source, v1)) {
        c->format = CHAT_MISTRAL_V1;
    } else if (has(source, "[AVAILABLE_TOOLS]") || c->system_at_last) {
        c->format = has_any(source, spaced) ? CHAT_MISTRAL_V3 : CHAT_MISTRAL_TEKKEN;
    } else {
        c->format = CHAT_LLAMA2;
        c->trims = trims_contents(source);
        c->marks_system = has(source, "<<SYS>>");
        c->bos_each_turn = has_any(source, each_bos);
        c->spaces_reply = has(source, "' ' + eos_token") || has(source, "\" \" + eos_token");
        c->space_after_reply = has(source, "eos_token + ' '") || has(source, "eos_token + \" \"");
    }
}

struct chat_template chat_template_detect(struct span source)
{
    struct chat_template c = {.format = CHAT_UNKNOWN};

    c.begins_with_bos = has(source, "bos_token");
    c.alternates = has(source, "alternate");
    if (has(source, "<|im_start|>")) {
        if (has(source, "<|im_sep|>") || has(source, "<end_of_utterance>"))
            return c;
        c.format = CHAT_CHATML;
        c.trims = trims_contents(source);
        if (has(source, "messages[0]"))
            find_default_system(source, &c);
    } else if (has(source, "[INST]")) {
        detect_inst(source, &c);
    } else if (has(source, "<start_of_turn>")) {
        c.format = CHAT_GEMMA;
        c.trims = trims_contents(source);
    } else if (has(source, "<|start_header_id|>") && has(source, "<|end_header_id|>")) {
        c.format = CHAT_LLAMA3;
        c.trims = trims_contents(source);
        c.dated = has(source, "Cutting Knowledge Date: December 2023");
    } else if (has(source, "<|user|>") && has(source, "<|assistant|>") && !has(source, "<|end|>") &&
               (has(source, "eos_token") || has(source, "<|endoftext|>"))) {
        c.format = CHAT_ZEPHYR;
        c.trims = trims_contents(source);
    }
    return c;
}

enum status chat_template_init(const struct gguf *g, struct chat_template *ret_template, struct error *err)
{
    struct span source = span_of(NULL, 0);
    enum status st = ST_OK;

    if (gguf_has(g, "tokenizer.chat_template"))
        st = gguf_string(g, "tokenizer.chat_template", &source, err);
    if (st == ST_OK && source.n > TEMPLATE_BYTES_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED, "model",
                  "tokenizer.chat_template has %zu bytes, limit %d (TEMPLATE_BYTES_MAX)", source.n,
                  TEMPLATE_BYTES_MAX);
        st = ST_LIMIT;
    }
    if (st == ST_OK)
        *ret_template =
            source.n > 0 ? chat_template_detect(source) : (struct chat_template){.format = CHAT_UNKNOWN};
    return st;
}

enum status chat_template_by_name(struct span name, struct chat_template *ret_template, struct error *err)
{
    struct chat_template c = {.format = CHAT_UNKNOWN};
    char list[256] = "";
    size_t n = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (span_is(name, names[i].name))
            c.format = names[i].format;
        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%s", i > 0 ? ", " : "", names[i].name);
        assert(n < sizeof(list));
    }
    if (c.format == CHAT_UNKNOWN) {
        error_set(err, ERR_NOT_FOUND, "chat_template", "no chat template of this name; there are %s", list);
        return ST_NOT_FOUND;
    }
    c.begins_with_bos = c.format != CHAT_CHATML && c.format != CHAT_ZEPHYR;
    c.alternates = c.format != CHAT_CHATML && c.format != CHAT_ZEPHYR && c.format != CHAT_LLAMA3;
    c.trims = c.format == CHAT_LLAMA2 || c.format == CHAT_LLAMA3 || c.format == CHAT_GEMMA;
    c.bos_each_turn = c.marks_system = c.spaces_reply = c.format == CHAT_LLAMA2;
    c.system_at_last = c.format == CHAT_MISTRAL_V3 || c.format == CHAT_MISTRAL_TEKKEN;
    *ret_template = c;
    return ST_OK;
}

/* --- writing -------------------------------------------------------------------------------------------------------------- */

struct writer {
    const struct chat_template *c;
    struct encoder *e;
    struct error *err;
    enum status st;
};

static void put(struct writer *w, struct span text, enum encoder_part part)
{
    if (w->st == ST_OK)
        w->st = encoder_add(w->e, text, part, w->err);
}

static void put_control(struct writer *w, const char *text)
{
    put(w, span_str(text), ENCODE_CONTROL);
}

static void put_id(struct writer *w, int32_t id)
{
    if (w->st == ST_OK && id != TOKEN_NONE)
        w->st = encoder_add_token(w->e, id, w->err);
}

static void put_bos(struct writer *w)
{
    put_id(w, tokenizer_bos(encoder_tokenizer(w->e)));
}

static void put_eos(struct writer *w)
{
    put_id(w, tokenizer_eos(encoder_tokenizer(w->e)));
}

/* White space as the strip() of templates knows it. */
static bool is_space(uint32_t c)
{
    return (c >= 0x1C && c <= 0x1F) || unicode_class_of(c) == UNICODE_SPACE;
}

static struct span trim_end(struct span s)
{
    uint32_t c;

    while (s.n > 0) {
        size_t at = s.n - 1;

        while (at > 0 && s.n - at < 4 && (s.at[at] & 0xC0) == 0x80)
            at--;
        if (unicode_decode(span_of(s.at + at, s.n - at), &c) != s.n - at || !is_space(c))
            break;
        s.n = at;
    }
    return s;
}

static struct span trim(struct span s)
{
    uint32_t c;

    while (s.n > 0) {
        unsigned n = unicode_decode(s, &c);

        if (!is_space(c))
            break;
        s = span_of(s.at + n, s.n - n);
    }
    return trim_end(s);
}

static void put_content(struct writer *w, const struct chat_message *m)
{
    bool trimmed = w->c->trims || (w->c->trims_reply && span_is(m->role, "assistant"));

    put(w, trimmed ? trim(m->content) : m->content, ENCODE_PLAIN);
}

static bool is_role(const struct chat_message *m, const char *role)
{
    return span_is(m->role, role);
}

/* The role's word, once it is known to be one of three. */
static const char *role_word(const struct chat_message *m)
{
    return is_role(m, "system") ? "system" : is_role(m, "user") ? "user" : "assistant";
}

/* The message whose turn the system text opens, in formats without a system turn. */
static size_t system_host(const struct chat_template *c, const struct chat_message *m, size_t n)
{
    size_t host = n;

    for (size_t i = 0; i < n; i++)
        if (is_role(&m[i], "user") && (host == n || c->system_at_last))
            host = i;
    return host;
}

static void write_chatml(struct writer *w, const struct chat_message *m, size_t n, bool generation_prompt)
{
    if (w->c->default_system_bytes > 0 && !is_role(&m[0], "system")) {
        put_control(w, "<|im_start|>system\n");
        put(w, span_of(w->c->default_system, w->c->default_system_bytes), ENCODE_PLAIN);
        put_control(w, "<|im_end|>\n");
    }
    for (size_t i = 0; i < n; i++) {
        put_control(w, "<|im_start|>");
        put_control(w, role_word(&m[i]));
        put_control(w, "\n");
        put_content(w, &m[i]);
        put_control(w, "<|im_end|>\n");
    }
    if (generation_prompt)
        put_control(w, "<|im_start|>assistant\n");
}

static void write_llama3(struct writer *w, const struct chat_message *m, size_t n, bool generation_prompt)
{
    if (w->c->dated && !is_role(&m[0], "system")) {
        put_control(w, "<|start_header_id|>system<|end_header_id|>\n\n");
        put_control(w, llama3_dates);
        put_control(w, "<|eot_id|>");
    }
    for (size_t i = 0; i < n; i++) {
        put_control(w, "<|start_header_id|>");
        put_control(w, role_word(&m[i]));
        put_control(w, "<|end_header_id|>\n\n");
        if (w->c->dated && i == 0 && is_role(&m[0], "system"))
            put_control(w, llama3_dates);
        put_content(w, &m[i]);
        put_control(w, "<|eot_id|>");
    }
    if (generation_prompt)
        put_control(w, "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

static void write_zephyr(struct writer *w, const struct chat_message *m, size_t n, bool generation_prompt)
{
    for (size_t i = 0; i < n; i++) {
        put_control(w, "<|");
        put_control(w, role_word(&m[i]));
        put_control(w, "|>\n");
        put_content(w, &m[i]);
        put_eos(w);
        put_control(w, "\n");
    }
    if (generation_prompt)
        put_control(w, "<|assistant|>\n");
}

static void write_gemma(struct writer *w, const struct chat_message *m, size_t n, bool generation_prompt)
{
    size_t host = system_host(w->c, m, n);

    for (size_t i = is_role(&m[0], "system") ? 1 : 0; i < n; i++) {
        put_control(w, is_role(&m[i], "user") ? "<start_of_turn>user\n" : "<start_of_turn>model\n");
        if (i == host && is_role(&m[0], "system")) {
            put(w, m[0].content, ENCODE_PLAIN);
            put_control(w, "\n\n");
        }
        put_content(w, &m[i]);
        put_control(w, "<end_of_turn>\n");
    }
    if (generation_prompt)
        put_control(w, "<start_of_turn>model\n");
}

static void write_llama2(struct writer *w, const struct chat_message *m, size_t n)
{
    bool has_system = is_role(&m[0], "system");
    size_t host = system_host(w->c, m, n), first = has_system ? 1 : 0;

    for (size_t i = first; i < n; i++) {
        struct span content = w->c->trims ? trim(m[i].content) : m[i].content;

        if (is_role(&m[i], "assistant")) {
            put_control(w, w->c->spaces_reply ? " " : "");
            put_content(w, &m[i]);
            put_control(w, w->c->spaces_reply ? " " : "");
            put_eos(w);
            put_control(w, w->c->space_after_reply ? " " : "");
            continue;
        }
        if (w->c->bos_each_turn && i > first)
            put_bos(w);
        put_control(w, "[INST] ");
        if (i == host && has_system) {
            put_control(w, w->c->marks_system ? "<<SYS>>\n" : "");
            put(w, m[0].content, ENCODE_PLAIN);
            put_control(w, w->c->marks_system ? "\n<</SYS>>\n\n" : "\n\n");
            content = w->c->trims ? trim_end(m[i].content) : m[i].content; /* both texts are trimmed as one */
        }
        put(w, content, ENCODE_PLAIN);
        put_control(w, " [/INST]");
    }
}

static void write_mistral(struct writer *w, const struct chat_message *m, size_t n)
{
    enum chat_format f = w->c->format;
    bool own_turn = mistral[f].system_open != NULL;
    bool has_system = is_role(&m[0], "system") && !own_turn;
    size_t host = system_host(w->c, m, n);

    for (size_t i = has_system ? 1 : 0; i < n; i++) {
        bool user = is_role(&m[i], "user"), reply = is_role(&m[i], "assistant");

        put_control(w, user ? mistral[f].user_open : reply ? mistral[f].reply_open : mistral[f].system_open);
        if (i == host && has_system) {
            put(w, m[0].content, ENCODE_PLAIN);
            put_control(w, "\n\n");
        }
        put_content(w, &m[i]);
        if (reply)
            put_eos(w);
        else
            put_control(w, user ? mistral[f].user_close : mistral[f].system_close);
    }
}

/* --- checking ------------------------------------------------------------------------------------------------------------- */

/* May a system message stand anywhere, with a turn of its own? */
static bool has_system_turns(enum chat_format f)
{
    return f == CHAT_CHATML || f == CHAT_LLAMA3 || f == CHAT_ZEPHYR || f == CHAT_MISTRAL_V7 ||
           f == CHAT_MISTRAL_V7_TEKKEN;
}

/* What is wrong with the role of message i; NULL when nothing is.  n_turns: user and assistant messages before it. */
static const char *role_fault(const struct chat_template *c, const struct chat_message *m, size_t i,
                              size_t n_turns)
{
    if (is_role(&m[i], "system"))
        return i > 0 && !has_system_turns(c->format)
                   ? "a system message can only be the first one in this template"
                   : NULL;
    if (!is_role(&m[i], "user") && !is_role(&m[i], "assistant"))
        return "role must be system, user or assistant";
    if (c->alternates && is_role(&m[i], "user") != (n_turns % 2 == 0))
        return n_turns % 2 == 0 ? "a user message must come here: roles alternate in this template"
                                : "an assistant message must come here: roles alternate in this template";
    return NULL;
}

static enum status check(const struct chat_template *c, const struct chat_message *m, size_t n,
                         struct error *err)
{
    char param[40];
    size_t n_turns = 0;

    if (c->format == CHAT_UNKNOWN) {
        error_set(err, ERR_INVALID_REQUEST, "messages",
                  "the model has no chat template that is known here; name one, or send a prompt");
        return ST_UNSUPPORTED;
    }
    if (n == 0) {
        error_set(err, ERR_INVALID_PARAMETER, "messages", "there is no message");
        return ST_INVALID;
    }
    if (n > MESSAGES_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED, "messages", "%zu messages, limit %d (MESSAGES_MAX)", n,
                  MESSAGES_MAX);
        return ST_LIMIT;
    }
    for (size_t i = 0; i < n; i++) {
        const char *fault = role_fault(c, m, i, n_turns);

        if (fault != NULL) {
            snprintf(param, sizeof(param), "messages[%zu].role", i);
            error_set(err, ERR_INVALID_PARAMETER, param, "%s", fault);
            return ST_INVALID;
        }
        n_turns += !is_role(&m[i], "system");
    }
    if (!has_system_turns(c->format) && is_role(&m[0], "system") && system_host(c, m, n) == n) {
        error_set(err, ERR_INVALID_PARAMETER, "messages[0].role",
                  "a system message needs a user message after it in this template");
        return ST_INVALID;
    }
    return ST_OK;
}

enum status chat_template_encode(const struct chat_template *c, struct encoder *e,
                                 const struct chat_message *messages, size_t n_messages,
                                 bool generation_prompt, struct error *err)
{
    struct writer w = {c, e, err, ST_OK};
    enum status st = check(c, messages, n_messages, err);

    if (st != ST_OK)
        return st;
    encoder_begin(e);
    if (c->begins_with_bos)
        put_bos(&w);
    if (c->format == CHAT_CHATML)
        write_chatml(&w, messages, n_messages, generation_prompt);
    else if (c->format == CHAT_LLAMA3)
        write_llama3(&w, messages, n_messages, generation_prompt);
    else if (c->format == CHAT_ZEPHYR)
        write_zephyr(&w, messages, n_messages, generation_prompt);
    else if (c->format == CHAT_GEMMA)
        write_gemma(&w, messages, n_messages, generation_prompt);
    else if (c->format == CHAT_LLAMA2)
        write_llama2(&w, messages, n_messages);
    else
        write_mistral(&w, messages, n_messages);
    return w.st;
}
