/* config.c - one table of keys, four sources.
 *
 * Sources are read strongest first only on paper: each has a rank, a value of higher rank replaces one of lower, and all of
 * them are checked.  So a broken line in the file is found the day it is written, not the day the flag that hid it is
 * dropped. */
#include "config.h"
#include "edit_distance.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config_value.h"
#include "ini_file.h"

enum rank { RANK_NONE, RANK_FALLBACK, RANK_WEIR_SECTION, RANK_OWN_SECTION, RANK_ENVIRONMENT, RANK_FLAG };

struct slot {
    enum rank rank;
    struct config_value value;
    char **items; /* a string is a list of one */
    size_t n_items;
};

struct config {
    const struct config_key *keys;
    size_t n_keys;
    struct slot *slots; /* [n_keys] */
    char **args;
    size_t n_args;
    char *path; /* of the file */
    bool help, version;
};

/* --- near misses ----------------------------------------------------------------------------- */

/* The key nearest to name, at most `most` letters off; NULL when none is. */
static const char *nearest(const struct config *c, const char *name, size_t name_bytes, unsigned most)
{
    const char *best = NULL;

    for (size_t i = 0; i < c->n_keys; i++) {
        unsigned d = edit_distance(span_of(name, name_bytes), span_str(c->keys[i].name));

        if (d <= most && d < name_bytes) {
            most = d;
            best = c->keys[i].name;
        }
    }
    return best;
}

/* --- one value ------------------------------------------------------------------------------- */

static size_t find_key(const struct config *c, const char *name, size_t name_bytes)
{
    for (size_t i = 0; i < c->n_keys; i++)
        if (strlen(c->keys[i].name) == name_bytes && memcmp(c->keys[i].name, name, name_bytes) == 0)
            return i;
    return c->n_keys;
}

static void clear_items(struct slot *s)
{
    for (size_t i = 0; i < s->n_items; i++)
        free(s->items[i]);
    free(s->items);
    s->items = NULL;
    s->n_items = 0;
}

static enum status out_of_memory(struct error *err)
{
    error_set(err, ERR_INTERNAL, NULL, "out of memory while the configuration was read");
    return ST_NOMEM;
}

static enum status append_text(char ***items, size_t *n_items, const char *text, size_t text_bytes, struct error *err)
{
    char **grown = realloc(*items, (*n_items + 1) * sizeof(*grown));

    if (grown == NULL)
        return out_of_memory(err);
    *items = grown;
    grown[*n_items] = strndup(text, text_bytes);
    if (grown[*n_items] == NULL)
        return out_of_memory(err);
    (*n_items)++;
    return ST_OK;
}

/* The items of a list, apart by commas where one text holds them all. */
static enum status set_items(struct slot *s, const struct config_key *k, const char *text, enum rank rank, struct error *err)
{
    bool commas = k->type == CONFIG_LIST && (rank == RANK_ENVIRONMENT || rank == RANK_FALLBACK);
    enum status st = ST_OK;

    if (s->rank != rank || k->type == CONFIG_STRING)
        clear_items(s);
    while (commas && st == ST_OK && strchr(text, ',') != NULL) {
        size_t n = strcspn(text, ",");
        st = append_text(&s->items, &s->n_items, text, n, err);
        text += n + 1;
    }
    return st == ST_OK ? append_text(&s->items, &s->n_items, text, strlen(text), err) : st;
}

static enum status set_value(struct config *c, size_t i, const char *text, enum rank rank, const char *where,
                             struct error *err)
{
    const struct config_key *k = &c->keys[i];
    struct slot *s = &c->slots[i];
    struct config_value value = { 0 };
    enum status st = config_value_parse(k, text, where, &value, err);

    if (st != ST_OK || rank < s->rank)
        return st;
    if (k->type == CONFIG_STRING || k->type == CONFIG_LIST)
        st = set_items(s, k, text, rank, err);
    if (st != ST_OK)
        return st;
    s->value = value;
    s->rank = rank;
    return ST_OK;
}

/* --- the command line ------------------------------------------------------------------------ */

struct flags {
    int argc, at;
    char *const *argv;
};

static enum status take_flag_value(struct flags *f, const char *flag, const char *inline_value, const char **ret_value,
                                   struct error *err)
{
    if (inline_value != NULL) {
        *ret_value = inline_value;
        return ST_OK;
    }
    if (f->at >= f->argc) {
        error_set(err, ERR_INVALID_PARAMETER, flag, "%s needs a value", flag);
        return ST_INVALID;
    }
    *ret_value = f->argv[f->at++];
    return ST_OK;
}

static enum status unknown_flag(const struct config *c, const char *flag, const char *name, size_t name_bytes,
                                struct error *err)
{
    const char *near = nearest(c, name, name_bytes, 2);

    if (near != NULL)
        error_set(err, ERR_INVALID_PARAMETER, flag, "there is no %s; did you mean --%s?", flag, near);
    else
        error_set(err, ERR_INVALID_PARAMETER, flag, "there is no %s; --help lists what there is", flag);
    return ST_INVALID;
}

/* The key i under the name `flag`; on: what a boolean without a value means. */
static enum status apply_flag(struct config *c, struct flags *f, size_t i, const char *flag, const char *inline_value, bool on,
                              struct error *err)
{
    const char *text = on ? "yes" : "no";

    if (c->keys[i].type == CONFIG_BOOL) {
        if (inline_value != NULL && on)
            text = inline_value;
        else if (inline_value != NULL)
            return unknown_flag(c, flag, "", 0, err);
    } else {
        enum status st = take_flag_value(f, flag, inline_value, &text, err);
        if (st != ST_OK)
            return st;
    }
    return set_value(c, i, text, RANK_FLAG, flag, err);
}

static enum status long_flag(struct config *c, struct flags *f, const char *arg, struct error *err)
{
    const char *name = arg + 2, *equals = strchr(name, '=');
    size_t name_bytes = equals != NULL ? (size_t)(equals - name) : strlen(name);
    const char *inline_value = equals != NULL ? equals + 1 : NULL;
    char flag[ERROR_PARAM_BYTES];

    snprintf(flag, sizeof(flag), "--%.*s", (int)(name_bytes < 80 ? name_bytes : 80), name);
    size_t i = find_key(c, name, name_bytes);
    if (i < c->n_keys)
        return apply_flag(c, f, i, flag, inline_value, true, err);
    if (name_bytes > 3 && memcmp(name, "no-", 3) == 0) {
        i = find_key(c, name + 3, name_bytes - 3);
        if (i < c->n_keys && c->keys[i].type == CONFIG_BOOL)
            return apply_flag(c, f, i, flag, inline_value, false, err);
    }
    if (strcmp(flag, "--help") == 0 && inline_value == NULL) {
        c->help = true;
        return ST_OK;
    }
    if (strcmp(flag, "--version") == 0 && inline_value == NULL) {
        c->version = true;
        return ST_OK;
    }
    if (strcmp(flag, "--config") == 0) {
        const char *path = NULL;
        enum status st = take_flag_value(f, flag, inline_value, &path, err);
        if (st != ST_OK)
            return st;
        free(c->path);
        c->path = strdup(path);
        return c->path != NULL ? ST_OK : out_of_memory(err);
    }
    return unknown_flag(c, flag, name, name_bytes, err);
}

static enum status short_flag(struct config *c, struct flags *f, const char *arg, struct error *err)
{
    char flag[8];

    snprintf(flag, sizeof(flag), "%.2s", arg);
    for (size_t i = 0; i < c->n_keys; i++) {
        if (c->keys[i].short_flag == '\0' || c->keys[i].short_flag != arg[1])
            continue;
        if (c->keys[i].type == CONFIG_BOOL && arg[2] != '\0')
            break; /* flags are not run together */
        return apply_flag(c, f, i, flag, arg[2] != '\0' ? arg + 2 : NULL, true, err);
    }
    if (strcmp(arg, "-h") == 0) {
        c->help = true;
        return ST_OK;
    }
    return unknown_flag(c, arg, "", 0, err);
}

static enum status read_flags(struct config *c, int argc, char *const *argv, struct error *err)
{
    struct flags f = { .argc = argc, .at = 1, .argv = argv };
    enum status st = ST_OK;
    bool ended = false;

    while (f.at < argc && st == ST_OK) {
        const char *arg = argv[f.at++];

        if (ended || arg[0] != '-' || arg[1] == '\0')
            st = append_text(&c->args, &c->n_args, arg, strlen(arg), err);
        else if (strcmp(arg, "--") == 0)
            ended = true;
        else
            st = arg[1] == '-' ? long_flag(c, &f, arg, err) : short_flag(c, &f, arg, err);
    }
    return st;
}

/* --- environment and file -------------------------------------------------------------------- */

/* "runtime-dir" -> "WEIR_RUNTIME_DIR" */
static void environment_name(const char *key, char name[ERROR_PARAM_BYTES])
{
    size_t n = (size_t)snprintf(name, ERROR_PARAM_BYTES, "WEIR_%s", key);

    assert(n < ERROR_PARAM_BYTES);
    for (char *p = name; *p != '\0'; p++)
        *p = *p == '-' ? '_' : *p >= 'a' && *p <= 'z' ? (char)(*p - 'a' + 'A') : *p;
}

static enum status read_environment(struct config *c, struct error *err)
{
    enum status st = ST_OK;

    for (size_t i = 0; i < c->n_keys && st == ST_OK; i++) {
        char name[ERROR_PARAM_BYTES];

        environment_name(c->keys[i].name, name);
        const char *text = getenv(name);
        if (text != NULL && *text != '\0')
            st = set_value(c, i, text, RANK_ENVIRONMENT, name, err);
    }
    return st;
}

static enum status read_fallbacks(struct config *c, struct error *err)
{
    for (size_t i = 0; i < c->n_keys; i++) {
        if (c->keys[i].fallback == NULL)
            continue;
        enum status st = set_value(c, i, c->keys[i].fallback, RANK_FALLBACK, c->keys[i].name, err);
        assert(st != ST_INVALID); /* the table itself is wrong */
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

struct file_reader {
    struct config *c;
    const char *section;
    unsigned char *seen; /* [n_keys] the highest rank the file has set a key at */
};

static enum status take_section(struct file_reader *r, const struct ini_entry *e, struct error *err)
{
    if (strcmp(e->section, r->section) == 0 || strcmp(e->section, "weir") == 0)
        return ST_OK;
    bool near_own = edit_distance(span_str(e->section), span_str(r->section)) == 1;
    if (near_own || edit_distance(span_str(e->section), span_str("weir")) == 1) {
        error_set(err, ERR_INVALID_PARAMETER, e->where, "there is no section [%s]; did you mean [%s]?", e->section,
                  near_own ? r->section : "weir");
        return ST_INVALID;
    }
    return ST_OK; /* another program's */
}

static enum status take_entry(void *user, const struct ini_entry *e, struct error *err)
{
    struct file_reader *r = user;
    bool own = strcmp(e->section, r->section) == 0, common = strcmp(e->section, "weir") == 0;

    if (e->key == NULL)
        return take_section(r, e, err);
    if (e->section[0] == '\0') {
        error_set(err, ERR_INVALID_PARAMETER, e->where, "%s stands before the first [section]", e->key);
        return ST_INVALID;
    }
    if (!own && !common)
        return ST_OK;
    size_t i = find_key(r->c, e->key, strlen(e->key));
    if (i == r->c->n_keys) {
        const char *near = nearest(r->c, e->key, strlen(e->key), own ? 2 : 1);

        if (!own && near == NULL)
            return ST_OK;
        error_set(err, ERR_INVALID_PARAMETER, e->where, "there is no key %s in [%s]%s%s%s", e->key, e->section,
                  near != NULL ? "; did you mean " : "", near != NULL ? near : "", near != NULL ? "?" : "");
        return ST_INVALID;
    }
    enum rank rank = own ? RANK_OWN_SECTION : RANK_WEIR_SECTION;
    if (r->seen[i] == rank && r->c->keys[i].type != CONFIG_LIST) {
        error_set(err, ERR_INVALID_PARAMETER, e->where, "%s is given twice", e->key);
        return ST_INVALID;
    }
    r->seen[i] = (unsigned char)rank;
    return set_value(r->c, i, e->value, rank, e->where, err);
}

static enum status read_file(struct config *c, const char *section, struct error *err)
{
    const char *path = c->path != NULL ? c->path : getenv("WEIR_CONFIG");
    struct file_reader r = { .c = c, .section = section };
    enum status st = ST_OK;
    FILE *file = NULL;

    if (path == NULL || *path == '\0')
        return ST_OK;
    file = fopen(path, "re");
    if (file == NULL) {
        error_set(err, ERR_INVALID_PARAMETER, c->path != NULL ? "--config" : "WEIR_CONFIG", "%s cannot be opened: %s", path,
                  strerror(errno));
        st = ST_SYSTEM;
        goto out;
    }
    r.seen = calloc(c->n_keys + 1, 1);
    if (r.seen == NULL) {
        st = out_of_memory(err);
        goto out;
    }
    st = ini_file_read(file, path, take_entry, &r, err);
out:
    free(r.seen);
    if (file != NULL)
        fclose(file);
    return st;
}

enum status config_load(const struct config_key *keys, size_t n_keys, const char *section, int argc, char *const *argv,
                        struct config **ret_config, struct error *err)
{
    struct config *c = calloc(1, sizeof(*c));
    enum status st;

    if (c == NULL)
        return out_of_memory(err);
    c->keys = keys;
    c->n_keys = n_keys;
    c->slots = calloc(n_keys + 1, sizeof(*c->slots));
    st = c->slots != NULL ? ST_OK : out_of_memory(err);
    if (st == ST_OK)
        st = read_fallbacks(c, err);
    if (st == ST_OK)
        st = read_flags(c, argc, argv, err);
    if (st == ST_OK && !c->help && !c->version) {
        st = read_environment(c, err);
        if (st == ST_OK)
            st = read_file(c, section, err);
    }
    if (st != ST_OK)
        goto out;
    *ret_config = c;
    c = NULL;
out:
    config_free(c);
    return st;
}

void config_free(struct config *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; c->slots != NULL && i < c->n_keys; i++)
        clear_items(&c->slots[i]);
    for (size_t i = 0; i < c->n_args; i++)
        free(c->args[i]);
    free(c->args);
    free(c->slots);
    free(c->path);
    free(c);
}

/* --- values by name -------------------------------------------------------------------------- */

static const struct slot *slot_of(const struct config *c, const char *name, bool (*type_ok)(enum config_type type))
{
    size_t i = find_key(c, name, strlen(name));

    assert(i < c->n_keys);
    assert(type_ok(c->keys[i].type));
    return &c->slots[i];
}

static bool is_string(enum config_type t)
{
    return t == CONFIG_STRING;
}

static bool is_bool(enum config_type t)
{
    return t == CONFIG_BOOL;
}

static bool is_whole(enum config_type t)
{
    return t == CONFIG_U64 || t == CONFIG_BYTES || t == CONFIG_MS;
}

static bool is_f64(enum config_type t)
{
    return t == CONFIG_F64;
}

static bool is_list(enum config_type t)
{
    return t == CONFIG_LIST;
}

static bool is_any(enum config_type t)
{
    (void)t;
    return true;
}

const char *config_string(const struct config *c, const char *name)
{
    const struct slot *s = slot_of(c, name, is_string);

    return s->n_items > 0 ? s->items[0] : NULL;
}

bool config_bool(const struct config *c, const char *name)
{
    return slot_of(c, name, is_bool)->value.u64 != 0;
}

uint64_t config_u64(const struct config *c, const char *name)
{
    return slot_of(c, name, is_whole)->value.u64;
}

double config_f64(const struct config *c, const char *name)
{
    return slot_of(c, name, is_f64)->value.f64;
}

size_t config_list(const struct config *c, const char *name, const char *const **ret_items)
{
    const struct slot *s = slot_of(c, name, is_list);

    *ret_items = (const char *const *)s->items;
    return s->n_items;
}

bool config_is_set(const struct config *c, const char *name)
{
    return slot_of(c, name, is_any)->rank > RANK_FALLBACK;
}

bool config_help_wanted(const struct config *c)
{
    return c->help;
}

bool config_version_wanted(const struct config *c)
{
    return c->version;
}

size_t config_n_args(const struct config *c)
{
    return c->n_args;
}

const char *config_arg(const struct config *c, size_t i)
{
    return i < c->n_args ? c->args[i] : NULL;
}
