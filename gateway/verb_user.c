/* verb_user.c - verbs about the user: usage, keys.
 *
 * Fingerprints are computed here, not in (b): reading a key is reading what somebody sent.  `keys remove` learns the list first, finds the key
 * whose fingerprint was named, and asks for exactly that one to go. */
#include "verb_job.h"
#include "json_field.h"

#include <stdlib.h>
#include <string.h>

enum stage { STAGE_LISTED, STAGE_FIND, STAGE_CHANGED };

/* --- usage ------------------------------------------------------------------------------------------ */

static void start_usage(struct talk *t)
{
    talk_ask(t, DOOR_USAGE, NULL, -1);
}

static void usage_reply(struct talk *t, struct door_reader *r, int fd)
{
    static const struct {
        const char *key, *title;
    } rows[] = {{"jobs", "jobs"},
                {"questions", "questions"},
                {"answers", "lines answered"},
                {"errors", "lines failed"},
                {"prompt_tokens", "tokens read"},
                {"cached_tokens", "  from the cache"},
                {"completion_tokens", "tokens written"}};
    json_t *usage = job_reply_json(t, r, fd);
    const json_t *limit = json_object_get(usage, "max_tokens_a_day");

    if (usage == NULL)
        return;
    if (t->call.has[OPT_JSON]) {
        talk_print_json(t, usage);
    } else {
        talk_print(t, "%-18s %15s %15s\n", "", "TODAY", "THIS MONTH");
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
            talk_print(t, "%-18s %15" JSON_INTEGER_FORMAT " %15" JSON_INTEGER_FORMAT "\n", rows[i].title,
                       json_integer_value(json_object_get(json_object_get(usage, "today"), rows[i].key)),
                       json_integer_value(json_object_get(json_object_get(usage, "month"), rows[i].key)));
        if (json_is_integer(limit))
            talk_print(t, "You may use %" JSON_INTEGER_FORMAT " tokens a day.\n", json_integer_value(limit));
    }
    json_decref(usage);
    talk_finish(t, EXIT_OK);
}

/* --- keys ------------------------------------------------------------------------------------------- */

/* SHA256:... of a key, or NULL; ssh_string_free_char() it. */
static char *fingerprint_of(const json_t *key)
{
    const char *type = json_string_value(json_object_get(key, "type"));
    const char *blob = json_string_value(json_object_get(key, "key"));
    ssh_key public = NULL;
    unsigned char *hash = NULL;
    size_t hash_bytes = 0;
    char *text = NULL;

    if (type != NULL && blob != NULL &&
        ssh_pki_import_pubkey_base64(blob, ssh_key_type_from_name(type), &public) == SSH_OK &&
        ssh_get_publickey_hash(public, SSH_PUBLICKEY_HASH_SHA256, &hash, &hash_bytes) == 0)
        text = ssh_get_fingerprint_hash(SSH_PUBLICKEY_HASH_SHA256, hash, hash_bytes);
    ssh_clean_pubkey_hash(&hash);
    ssh_key_free(public);
    return text;
}

static void ask_keys(struct talk *t, enum door_keys what, const char *line)
{
    uint8_t buffer[20 << 10];
    struct byte_writer w = {.at = buffer, .capacity = sizeof buffer};

    door_put_u32(&w, what);
    door_put_str(&w, span_str(line));
    talk_ask(t, DOOR_KEYS, &w, -1);
}

static bool key_can_be_read(const char *line)
{
    char type[64];
    json_t *key;

    if (sscanf(line, "%63s", type) != 1)
        return false;
    const char *blob = line + strspn(line, " ") + strlen(type);
    blob += strspn(blob, " ");
    key = json_pack("{ss ss%}", "type", type, "key", blob, strcspn(blob, " "));
    char *text = fingerprint_of(key);
    json_decref(key);
    bool ok = text != NULL;
    ssh_string_free_char(text);
    return ok;
}

static void start_keys(struct talk *t)
{
    const char *what = t->call.n_args > 0 ? t->call.args[0] : "list";
    bool add = strcmp(what, "add") == 0, remove = strcmp(what, "remove") == 0;
    struct error err;

    if ((!add && !remove && strcmp(what, "list") != 0) || (t->call.n_args == 2) != (add || remove)) {
        error_set(
            &err, ERR_INVALID_REQUEST, NULL,
            "`keys`, `keys list`, `keys add 'KEY'` (one line of a .pub file, in quotes) or `keys remove "
            "FINGERPRINT`");
        talk_fail_as(t, &err, EXIT_USAGE);
    } else if (add && !key_can_be_read(t->call.args[1])) {
        error_set(&err, ERR_INVALID_PARAMETER, "key",
                  "this is not a public key that the server can use: \"ssh-ed25519 AAAA... comment\", "
                  "without options");
        talk_fail(t, &err);
    } else {
        t->stage = add ? STAGE_CHANGED : remove ? STAGE_FIND : STAGE_LISTED;
        ask_keys(t, add ? DOOR_KEYS_ADD : DOOR_KEYS_LIST, add ? t->call.args[1] : "");
    }
}

/* Every key gets its fingerprint. */
static void put_fingerprints(json_t *keys)
{
    size_t i;
    json_t *key;

    json_array_foreach(keys, i, key)
    {
        char *text = fingerprint_of(key);
        json_object_set_new(key, "fingerprint", text != NULL ? json_string(text) : json_null());
        ssh_string_free_char(text);
    }
}

static void print_keys(struct talk *t, const json_t *keys)
{
    size_t i;
    json_t *key;

    json_array_foreach(keys, i, key)
    {
        talk_print(t, "%-50s  %s  ", json_text(key, "fingerprint"), json_text(key, "type"));
        talk_print_safe(t, json_text(key, "comment"), 0);
        talk_print(t, "%s%s\n", json_text(key, "options")[0] != '\0' ? "  " : "", json_text(key, "options"));
    }
}

/* keys remove: the named one.  The list is asked for the second time by the change itself. */
static void remove_named(struct talk *t, const json_t *keys)
{
    const char *named = t->call.args[1];
    struct error err;
    size_t i;
    json_t *key;

    json_array_foreach(keys, i, key)
    {
        char line[18 << 10];
        const char *print = json_text(key, "fingerprint");
        if (print[0] == '\0' || (strcmp(print, named) != 0 && strcmp(print + strlen("SHA256:"), named) != 0))
            continue;
        snprintf(line, sizeof line, "%s %s", json_text(key, "type"), json_text(key, "key"));
        t->stage = STAGE_CHANGED;
        ask_keys(t, DOOR_KEYS_REMOVE, line);
        return;
    }
    error_set(&err, ERR_NOT_FOUND, NULL, "you have no key with the fingerprint %.60s; `keys` lists them",
              named);
    talk_fail(t, &err);
}

static void keys_reply(struct talk *t, struct door_reader *r, int fd)
{
    json_t *reply = job_reply_json(t, r, fd);
    json_t *keys = json_object_get(reply, "keys");

    if (reply == NULL)
        return;
    put_fingerprints(keys);
    if (t->stage == STAGE_FIND) {
        remove_named(t, keys);
    } else {
        if (t->call.has[OPT_JSON])
            talk_print_json(t, reply);
        else
            print_keys(t, keys);
        talk_finish(t, EXIT_OK);
    }
    json_decref(reply);
}

const struct verb_handler verb_usage_handler = {.start = start_usage, .reply = usage_reply};
const struct verb_handler verb_keys_handler = {.start = start_keys, .reply = keys_reply};
