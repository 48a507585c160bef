/* verb_plain.c - verbs that ask (b) one question at most and print the answer: help, whoami, version, home, models, pool, tokenize. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "connection.h"
#include "limits.h"
#include "version.h"
#include "verb_job.h"

/* --- help, version, whoami: no question at all ------------------------------------------------- */

static void print_object(struct talk *t, json_t *object)
{
    talk_print_json(t, object);
    json_decref(object);
}

static void start_help(struct talk *t)
{
    const struct verb *verb = NULL;
    struct error err;

    if (t->call.n_args == 1) {
        verb = verb_by_name(t->call.args[0]);
        if (verb == NULL) {
            error_set(&err, ERR_NOT_FOUND, NULL, "there is no verb \"%.40s\"; `help` lists them",
                      t->call.args[0]);
            talk_fail(t, &err);
            return;
        }
    }
    char *text = verb_help(verb);
    if (text == NULL) {
        talk_finish(t, EXIT_INTERNAL);
        return;
    }
    if (t->call.has[OPT_JSON])
        print_object(t, json_pack("{ss}", "help", text));
    else
        talk_print(t, "%s", text);
    free(text);
    talk_finish(t, EXIT_OK);
}

static void start_version(struct talk *t)
{
    if (t->call.has[OPT_JSON])
        print_object(t, json_pack("{ssss}", "version", version_text(), "build", version_build_id()));
    else
        talk_print(t, "weir-gateway %s (%s)\n", version_text(), version_build_id());
    talk_finish(t, EXIT_OK);
}

static void start_whoami(struct talk *t)
{
    if (t->call.has[OPT_JSON])
        print_object(t, json_pack("{ss}", "user", t->connection->user));
    else
        talk_print(t, "%s\n", t->connection->user);
    talk_finish(t, EXIT_OK);
}

/* --- home: `ssh box` ---------------------------------------------------------------------------- */

static void ask_list(struct talk *t)
{
    uint8_t buffer[8];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    door_put_u32(&w, 0);
    talk_ask(t, DOOR_LIST, &w, -1);
}

static void home_reply(struct talk *t, struct door_reader *r, int fd)
{
    json_t *list = job_reply_json(t, r, fd);
    json_t *jobs = json_object_get(list, "jobs");

    if (list == NULL)
        return;
    if (t->call.has[OPT_JSON]) {
        print_object(t, json_pack("{sssO}", "user", t->connection->user, "jobs", jobs));
    } else {
        talk_print(t, "You are %s.\n\n", t->connection->user);
        job_print_list(t, jobs, 10);
        talk_print(t, "\nTry\n"
                      "  ssh HOST ask 'Why is the sky blue?'\n"
                      "  ssh HOST run <prompts.jsonl >answers.jsonl      one {\"prompt\": \"...\"} a line\n"
                      "  ssh HOST help\n");
    }
    json_decref(list);
    talk_finish(t, EXIT_OK);
}

/* --- models, pool ------------------------------------------------------------------------------- */

void pool_ask(struct talk *t, enum door_pool what)
{
    uint8_t buffer[8];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    door_put_u32(&w, what);
    talk_ask(t, DOOR_POOL, &w, -1);
}

static void ask_pool(struct talk *t)
{
    pool_ask(t, t->call.verb->id == VERB_MODELS ? DOOR_POOL_MODELS : DOOR_POOL_STATUS);
}

/* One line for each model: its name, then every scalar that the broker says of it. */
static void print_models(struct talk *t, json_t *models)
{
    size_t i;
    json_t *model, *value;
    const char *key;

    json_array_foreach(models, i, model)
    {
        const char *name = json_string_value(json_object_get(model, "name"));
        talk_print_safe(t, name != NULL ? name : "?", 0);
        json_object_foreach(model, key, value)
        {
            char *text = json_is_object(value) || json_is_array(value) || strcmp(key, "name") == 0
                             ? NULL
                             : json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
            if (text != NULL)
                talk_print(t, "  %s=%s", key, text);
            free(text);
        }
        talk_print(t, "\n");
    }
}

static void print_number(struct talk *t, const json_t *of, const char *key, const char *noun)
{
    talk_print(t, "  %" JSON_INTEGER_FORMAT " %s", json_integer_value(json_object_get(of, key)), noun);
}

static void print_word(struct talk *t, const json_t *of, const char *key)
{
    const char *word = json_string_value(json_object_get(of, key));

    talk_print(t, "  ");
    talk_print_safe(t, word != NULL ? word : "?", 0);
}

/* What a user of the pool wants to know: does it work, is it busy, with what.  --json has the rest. */
static void print_pool(struct talk *t, json_t *status)
{
    json_t *pool = json_object_get(status, "pool"), *worker;
    size_t i;

    talk_print(t, "pool");
    print_word(t, status, "state");
    print_number(t, pool, "running", "requests running");
    print_number(t, pool, "queued_interactive", "interactive and");
    print_number(t, pool, "queued_batch", "batch requests queued\n");
    json_array_foreach(json_object_get(status, "workers"), i, worker)
    {
        print_number(t, worker, "slot", "");
        print_word(t, worker, "state");
        print_word(t, worker, "model");
        print_word(t, worker, "device");
        print_number(t, worker, "running", "running");
        print_number(t, worker, "waiting", "waiting\n");
    }
}

static void pool_reply(struct talk *t, struct door_reader *r, int fd)
{
    json_t *reply = job_reply_json(t, r, fd);
    json_t *models = json_object_get(reply, "models");

    if (reply == NULL)
        return;
    if (t->call.verb->id == VERB_MODELS && !t->call.has[OPT_JSON] && json_is_array(models)) {
        print_models(t, models);
    } else if (!t->call.has[OPT_JSON]) {
        print_pool(t, reply);
    } else {
        talk_print_json(t, reply);
    }
    json_decref(reply);
    talk_finish(t, EXIT_OK);
}

/* --- tokenize: the text goes over in a memfd ----------------------------------------------------- */

static void ask_tokenize(struct talk *t)
{
    uint8_t buffer[NAME_BYTES_MAX + 64];
    struct byte_writer w = { .at = buffer, .capacity = sizeof buffer };

    door_put_str(&w, span_str(t->call.has[OPT_MODEL] ? t->call.text[OPT_MODEL] : ""));
    door_put_u32(&w, t->call.has[OPT_SPECIAL]);
    talk_ask(t, DOOR_TOKENIZE, &w, t->file_fd);
}

static void spool_text(struct talk *t, struct span text)
{
    if (text.n > 0 && write(t->file_fd, text.at, text.n) != (ssize_t)text.n)
        talk_finish(t, EXIT_INTERNAL);
}

static void start_tokenize(struct talk *t)
{
    if (door_memfd(span_of("", 0), &t->file_fd) != ST_OK) {
        talk_finish(t, EXIT_INTERNAL);
        return;
    }
    for (size_t i = 0; i < t->call.n_args && !t->finished; i++) {
        if (i > 0)
            spool_text(t, span_str(" "));
        spool_text(t, span_str(t->call.args[i]));
    }
    if (t->call.n_args > 0 && !t->finished)
        ask_tokenize(t);
}

static void tokenize_input(struct talk *t, struct span data)
{
    struct error err;

    if (t->call.n_args > 0)
        return;
    if (t->input_bytes > DOOR_ASK_BYTES_MAX) {
        error_set(&err, ERR_LIMIT_EXCEEDED, NULL, "the text is over the limit of %d bytes",
                  DOOR_ASK_BYTES_MAX);
        talk_fail(t, &err);
    } else {
        spool_text(t, data);
    }
}

static void tokenize_end(struct talk *t)
{
    if (t->call.n_args == 0)
        ask_tokenize(t);
}

static void tokenize_reply(struct talk *t, struct door_reader *r, int fd)
{
    json_t *reply = job_reply_json(t, r, fd);
    json_t *ids = json_object_get(reply, "ids"), *id;
    size_t i;

    if (reply == NULL)
        return;
    if (t->call.has[OPT_JSON]) {
        talk_print_json(t, reply);
    } else {
        json_array_foreach(ids, i, id)
            talk_print(t, "%s%" JSON_INTEGER_FORMAT, i > 0 ? " " : "", json_integer_value(id));
        talk_print(t, "\n");
    }
    json_decref(reply);
    talk_finish(t, EXIT_OK);
}

const struct verb_handler verb_help_handler = { .start = start_help };
const struct verb_handler verb_version_handler = { .start = start_version };
const struct verb_handler verb_whoami_handler = { .start = start_whoami };
const struct verb_handler verb_home_handler = { .start = ask_list, .reply = home_reply };
const struct verb_handler verb_pool_handler = { .start = ask_pool, .reply = pool_reply };
const struct verb_handler verb_tokenize_handler = {
    .start = start_tokenize, .input = tokenize_input, .input_end = tokenize_end, .reply = tokenize_reply
};
