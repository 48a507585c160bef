/* verb_request.c - the options of `ask` and `chat` as a request, in the form of a line of a job. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verb_job.h"

static void put_options(json_t *request, const struct verb_call *call)
{
    static const struct {
        enum verb_option option;
        const char *key;
        enum { TEXT, COUNT, REAL, FLAG } type;
    } table[] = {
        { OPT_MODEL, "model", TEXT },
        { OPT_CHAT_TEMPLATE, "chat_template", TEXT },
        { OPT_CACHE, "cache", TEXT },
        { OPT_SCOPE, "scope", TEXT },
        { OPT_SALT, "salt", TEXT },
        { OPT_MAX_TOKENS, "max_tokens", COUNT },
        { OPT_TOP_K, "top_k", COUNT },
        { OPT_SEED, "seed", COUNT },
        { OPT_DEADLINE, "deadline_ms", COUNT },
        { OPT_TEMPERATURE, "temperature", REAL },
        { OPT_TOP_P, "top_p", REAL },
        { OPT_MIN_P, "min_p", REAL },
        { OPT_REPETITION_PENALTY, "repetition_penalty", REAL },
        { OPT_PRESENCE_PENALTY, "presence_penalty", REAL },
        { OPT_FREQUENCY_PENALTY, "frequency_penalty", REAL },
        { OPT_IGNORE_EOS, "ignore_eos", FLAG },
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        enum verb_option o = table[i].option;
        if (!call->has[o])
            continue;
        json_object_set_new(request, table[i].key,
                            table[i].type == TEXT    ? json_string(call->text[o])
                            : table[i].type == COUNT ? json_integer((json_int_t)call->number[o])
                            : table[i].type == REAL  ? json_real(call->real[o])
                                                     : json_true());
    }
    if (call->n_stops == 0)
        return;
    json_t *stops = json_array();
    for (size_t i = 0; i < call->n_stops; i++)
        json_array_append_new(stops, json_string(call->stops[i]));
    json_object_set_new(request, "stop", stops);
}

bool request_send(struct talk *t, enum door_session session, const struct weir_message *messages, size_t n)
{
    uint8_t buffer[8];
    struct byte_writer body = { .at = buffer, .capacity = sizeof buffer };
    json_t *request = json_object(), *list = json_array();
    struct error err;
    int fd = -1;
    bool ok = true;

    error_set(&err, ERR_INTERNAL, NULL, "out of memory");
    for (size_t i = 0; i < n && ok; i++) {
        json_t *text = json_stringn(messages[i].content, messages[i].content_bytes);
        if (text == NULL)
            error_set(&err, ERR_INVALID_REQUEST, "messages", "the text is not UTF-8");
        ok = text != NULL &&
             json_array_append_new(list, json_pack("{ss so}", "role", messages[i].role, "content", text)) == 0;
    }
    json_object_set_new(request, "messages", list);
    put_options(request, &t->call);
    char *line = ok ? json_dumps(request, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(request);
    ok = line != NULL && door_memfd(span_str(line), &fd) == ST_OK;
    free(line);
    if (ok) {
        door_put_u32(&body, session);
        talk_ask(t, DOOR_ASK, &body, fd);
        close(fd);
    } else if (t->handler->failed != NULL) {
        t->handler->failed(t, &err);
    } else {
        talk_fail(t, &err);
    }
    return ok;
}
