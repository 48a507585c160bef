/* user_command.c - `weir user ...`: the users file, changed under its lock.
 *
 *   weir user add NAME [--key FILE]   make the user if new; add every key of FILE (authorized_keys lines; - is standard input)
 *   weir user remove NAME
 *   weir user pending                 keys lately refused; `user add NAME --pending FINGERPRINT` lets one in
 *   weir user disable|enable NAME     a disabled user cannot log in, and is put out at once; jobs go on
 *   weir user limit NAME [LIMIT=N...] set limits (0: the pool's default), or show them
 *   weir user list                    name, uid, group, keys with their fingerprints
 *   weir user group add|remove GROUP  groups; `limit @GROUP` sets what all members may have together
 *   weir user join NAME GROUP | leave NAME
 *   weir user usage                   what everybody used today and this month, as CSV
 *
 * Works with the server running or not: jobs notices a changed file by itself.  Exit codes: 0, 2 usage, 3 not found, 4 refused. */
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <libssh/libssh.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "gateway.h"
#include "pending.h"
#include "user_command.h"
#include "users.h"
#include "verb.h"

static int refuse(const struct error *err)
{
    fprintf(stderr, "weir user: %s\n", err->message);
    return err->code == ERR_NOT_FOUND ? EXIT_NOT_FOUND : EXIT_REFUSED;
}

/* Run by root for a service that has a user of its own: do as that user, so that the files stay its. */
static void become_owner(const struct gateway_places *places)
{
    struct stat s;

    if (geteuid() != 0 || stat(places->state_dir, &s) != 0 || s.st_uid == 0)
        return;
    if (setgroups(0, NULL) != 0 || setegid(s.st_gid) != 0 || seteuid(s.st_uid) != 0)
        fprintf(stderr, "weir user: cannot become uid %u: %s\n", (unsigned)s.st_uid, strerror(errno));
}

/* The key is read as who we really are. */
static FILE *open_key(const char *path)
{
    uid_t now = geteuid();
    bool back = getuid() == 0 && now != 0 && seteuid(0) == 0;
    FILE *in = fopen(path, "re");
    int problem = errno;

    if (back && seteuid(now) != 0)
        abort();
    errno = problem;
    return in;
}

/* Hold the lock of the users file, so that two `user add` do not lose one.  -1: *err set. */
static int lock_users(const struct gateway_places *places, struct error *err)
{
    int fd = -1;

    if (paths_make_private(places->state_dir, 0750, err) != ST_OK ||
        users_lock(places->users_file, true, &fd, err) != ST_OK)
        return -1;
    return fd;
}

/* Every line of the file that is not blank or a comment is a key. */
static enum status add_keys(struct users *u, const char *name, const char *path, unsigned *ret_n,
                            struct error *err)
{
    char line[USER_KEY_LINE_BYTES_MAX + 2];
    enum status st = ST_OK;
    unsigned n = 0, number = 0;
    FILE *in = strcmp(path, "-") == 0 ? stdin : open_key(path);

    if (in == NULL) {
        error_set(err, ERR_NOT_FOUND, "key", "cannot open %s: %s", path, strerror(errno));
        return ST_NOT_FOUND;
    }
    while (st == ST_OK && fgets(line, sizeof line, in) != NULL) {
        number++;
        size_t bytes = strcspn(line, "\r\n");
        if (line[bytes] == '\0' && !feof(in)) {
            error_set(err, ERR_LIMIT_EXCEEDED, "key", "%s:%u: a key line has at most %d bytes", path, number,
                      USER_KEY_LINE_BYTES_MAX);
            st = ST_LIMIT;
            break;
        }
        line[bytes] = '\0';
        if (line[strspn(line, " \t")] == '\0' || line[strspn(line, " \t")] == '#')
            continue;
        if (strstr(line, "PRIVATE KEY") != NULL) {
            error_set(err, ERR_INVALID_PARAMETER, "key", "%s is a private key; give the public one (%s.pub)",
                      path, path);
            st = ST_INVALID;
            break;
        }
        st = users_add_key(u, name, line, err);
        n += st == ST_OK;
    }
    if (in != stdin)
        fclose(in);
    if (st == ST_OK && n == 0) {
        error_set(err, ERR_INVALID_PARAMETER, "key", "%s has no key in it", path);
        st = ST_INVALID;
    }
    if (st == ST_OK)
        *ret_n = n;
    return st;
}

/* SHA256:... of a key; NULL: not a key this server can use.  ssh_string_free_char() it. */
static char *fingerprint_of(const char *type, const char *blob)
{
    ssh_key public = NULL;
    unsigned char *hash = NULL;
    size_t hash_bytes = 0;
    char *text = NULL;

    if (ssh_pki_import_pubkey_base64(blob, ssh_key_type_from_name(type), &public) == SSH_OK &&
        ssh_get_publickey_hash(public, SSH_PUBLICKEY_HASH_SHA256, &hash, &hash_bytes) == 0)
        text = ssh_get_fingerprint_hash(SSH_PUBLICKEY_HASH_SHA256, hash, hash_bytes);
    ssh_clean_pubkey_hash(&hash);
    ssh_key_free(public);
    return text;
}

static void print_fingerprint(const struct user_key *key)
{
    char *text = fingerprint_of(key->type, key->blob);

    printf("    %s %s%s%s\n", key->type, text != NULL ? text : "(not a key this server can use)",
           key->comment[0] ? " " : "", key->comment);
    ssh_string_free_char(text);
}

static enum status read_pending(const struct gateway_places *places, struct pending *ret_pending, struct error *err)
{
    char path[PATHS_BYTES + 16];

    snprintf(path, sizeof path, "%s/pending", places->state_dir);
    enum status st = pending_read(path, ret_pending);
    if (st != ST_OK)
        error_set(err, ERR_INTERNAL, NULL, "cannot read %s: %s", path, strerror(errno));
    return st;
}

static int user_pending(const struct gateway_places *places, const struct users *u)
{
    static struct pending p;
    struct error err;

    if (read_pending(places, &p, &err) != ST_OK)
        return refuse(&err);
    for (unsigned i = 0; i < p.n; i++) {
        const struct pending_key *k = &p.keys[i];
        char *text = fingerprint_of(k->type, k->blob);
        if (text != NULL && users_by_key(u, k->type, k->blob, NULL) == NULL)
            printf("%s  %s  from %s  %" PRId64 " s ago\n", text, k->type, k->address,
                   (clock_real_ms() - k->real_ms) / 1000);
        ssh_string_free_char(text);
    }
    return EXIT_OK;
}

/* user add --pending: the refused key of that fingerprint. */
static enum status add_pending(const struct gateway_places *places, struct users *u, const char *name,
                               const char *fingerprint, struct error *err)
{
    static struct pending p;
    enum status st = read_pending(places, &p, err);

    for (unsigned i = 0; i < p.n && st == ST_OK; i++) {
        char line[PENDING_BLOB_BYTES + 100], *text = fingerprint_of(p.keys[i].type, p.keys[i].blob);
        bool found = text != NULL && strcmp(text, fingerprint) == 0;
        ssh_string_free_char(text);
        if (!found)
            continue;
        snprintf(line, sizeof line, "%s %s", p.keys[i].type, p.keys[i].blob);
        return users_add_key(u, name, line, err);
    }
    if (st == ST_OK) {
        error_set(err, ERR_NOT_FOUND, "pending", "no key with the fingerprint %.60s was refused lately; `user pending` lists them",
                  fingerprint);
        st = ST_NOT_FOUND;
    }
    return st;
}

static int user_add(const struct config *c, const struct gateway_places *places, struct users *u,
                    const char *name)
{
    struct error err;
    unsigned n_keys = 0;
    enum status st = ST_OK;
    bool is_new = users_by_name(u, name) == NULL;

    if (is_new)
        st = users_add(u, name, &err);
    if (st == ST_OK && config_string(c, "key") != NULL)
        st = add_keys(u, name, config_string(c, "key"), &n_keys, &err);
    if (st == ST_OK && config_bool(c, "from-authorized-keys"))
        st = user_add_account(u, name, &n_keys, &err);
    if (st == ST_OK && config_string(c, "pending") != NULL) {
        st = add_pending(places, u, name, config_string(c, "pending"), &err);
        n_keys += st == ST_OK;
    }
    if (st == ST_OK)
        st = users_save(places->users_file, u, &err);
    if (st != ST_OK)
        return refuse(&err);
    printf("user %s: %s, %u key%s added\n", name, is_new ? "new" : "already there", n_keys,
           n_keys == 1 ? "" : "s");
    return EXIT_OK;
}

static int user_remove(const struct gateway_places *places, struct users *u, const char *name)
{
    struct error err;

    if (users_remove(u, name, &err) != ST_OK || users_save(places->users_file, u, &err) != ST_OK)
        return refuse(&err);
    printf("user %s removed; jobs and files stay under %s/files/%s\n", name, places->state_dir, name);
    return EXIT_OK;
}

/* A number, perhaps with K, M or G (of 1024 for bytes, of 1000 for everything else); what the users file may hold. */
static bool parse_limit(const char *text, bool bytes, uint64_t *ret)
{
    uint64_t v = 0, unit = bytes ? 1024 : 1000;
    const char *s = text;

    for (; *s >= '0' && *s <= '9'; s++) {
        if (__builtin_mul_overflow(v, (uint64_t)10, &v) || __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
            return false;
    }
    if (s == text)
        return false;
    int powers = *s == 'K' ? 1 : *s == 'M' ? 2 : *s == 'G' ? 3 : 0;
    if (s[powers > 0] != '\0')
        return false;
    for (; powers > 0; powers--) {
        if (__builtin_mul_overflow(v, unit, &v))
            return false;
    }
    if (v > CONFIG_UNIT_VALUE_MAX)
        return false;
    *ret = v;
    return true;
}

static enum status set_limit(struct user *u, bool group, const char *word, struct error *err)
{
    const char *equals = strchr(word, '=');
    size_t name_bytes = equals != NULL ? (size_t)(equals - word) : 0;
    uint64_t *field = users_limit(u, word, name_bytes);

    if (group && field != NULL && !users_limit_is_shared(word, name_bytes)) {
        error_set(err, ERR_INVALID_PARAMETER, "limit", "a group can have max-queued=, max-jobs= and max-tokens-a-day=, not \"%.60s\"", word);
        return ST_INVALID;
    }

    if (field == NULL) {
        char all[ERROR_MESSAGE_BYTES / 2] = "";
        const char *name;

        for (size_t i = 0, n = 0; (name = users_limit_name(i)) != NULL && n < sizeof all; i++)
            n += (size_t)snprintf(all + n, sizeof all - n, "%s%s=", i > 0 ? ", " : "", name);
        error_set(err, ERR_INVALID_PARAMETER, "limit", "\"%.60s\" is no limit: %s", word, all);
        return ST_INVALID;
    }
    if (!parse_limit(equals + 1, field == &u->max_job_bytes, field)) {
        error_set(err, ERR_INVALID_PARAMETER, "limit", "%.60s wants a number of at most %" PRIu64 " (K, M and G are understood; 0 is the default)",
                  word, CONFIG_UNIT_VALUE_MAX);
        return ST_INVALID;
    }
    return ST_OK;
}

static void print_limits(struct user *u)
{
    const char *name;

    printf("%s", u->name);
    for (size_t i = 0; (name = users_limit_name(i)) != NULL; i++)
        printf(" %s=%" PRIu64, name, *users_limit(u, name, strlen(name)));
    printf("   (0: the pool's default)\n");
}

/* disable, enable, limit: what can be changed of a user who is there. */
static int user_change(const struct config *c, const struct gateway_places *places, struct users *u, const char *what,
                       const char *name)
{
    struct user *user = NULL;
    struct error err;

    bool group = name[0] == '@' && strcmp(what, "limit") == 0;
    for (uint32_t i = 0; i < (group ? u->n_groups : u->n); i++) {
        struct user *one = group ? &u->groups[i] : &u->list[i];
        if (strcmp(one->name, name + group) == 0)
            user = one;
    }
    if (user == NULL) {
        error_set(&err, ERR_NOT_FOUND, NULL, "there is no %s \"%.60s\"", group ? "group" : "user", name + group);
        return refuse(&err);
    }
    if (strcmp(what, "limit") != 0)
        user->disabled = strcmp(what, "disable") == 0;
    for (size_t i = 3; i < config_n_args(c); i++)
        if (set_limit(user, group, config_arg(c, i), &err) != ST_OK) {
            refuse(&err);
            return EXIT_USAGE;
        }
    if (users_save(places->users_file, u, &err) != ST_OK)
        return refuse(&err);
    if (strcmp(what, "limit") == 0)
        print_limits(user);
    else
        printf("user %s: %sd\n", name, what);
    return EXIT_OK;
}

static void list_groups(const struct users *u)
{
    for (uint32_t i = 0; i < u->n_groups; i++) {
        const struct user *g = &u->groups[i];
        printf("@%s max-queued=%" PRIu64 " max-jobs=%" PRIu64 " max-tokens-a-day=%" PRIu64 ":", g->name, g->max_queued, g->max_jobs,
               g->max_tokens_a_day);
        for (uint32_t k = 0; k < u->n; k++) {
            if (strcmp(u->list[k].group, g->name) == 0)
                printf(" %s", u->list[k].name);
        }
        printf("\n");
    }
}

static int user_list(const struct users *u)
{
    list_groups(u);
    for (uint32_t i = 0; i < u->n; i++) {
        const struct user *user = &u->list[i];
        printf("%s", user->name);
        if (user->uid >= 0)
            printf(" uid=%lld", (long long)user->uid);
        printf(" keys=%u%s%s%s\n", user->n_keys, user->group[0] != '\0' ? " group=" : "", user->group, user->disabled ? " disabled" : "");
        for (uint32_t k = 0; k < user->n_keys; k++)
            print_fingerprint(&user->keys[k]);
    }
    return EXIT_OK;
}

static enum status save(const struct gateway_places *places, const struct users *u, enum status st, struct error *err)
{
    return st == ST_OK ? users_save(places->users_file, u, err) : st;
}

/* group add|remove GROUP, join NAME GROUP, leave NAME */
static int user_groups(const struct config *c, const struct gateway_places *places, struct users *u, const char *what)
{
    const char *first = config_arg(c, 2), *second = config_arg(c, 3);
    struct error err;
    enum status st;

    if (strcmp(what, "group") == 0)
        st = strcmp(first, "add") == 0 ? users_add_group(u, second, &err) : users_remove_group(u, second, &err);
    else
        st = users_set_group(u, first, strcmp(what, "join") == 0 ? second : "", &err);
    if (save(places, u, st, &err) != ST_OK)
        return refuse(&err);
    if (strcmp(what, "group") == 0)
        printf("group %s: %s\n", second, strcmp(first, "add") == 0 ? "new" : "removed");
    else
        printf("user %s: %s%s\n", first, strcmp(what, "join") == 0 ? "in group " : "in no group", strcmp(what, "join") == 0 ? second : "");
    return EXIT_OK;
}

/* The commands, and how many words each has behind `user`. */
static const struct {
    const char *name;
    unsigned words_min, words_max;
    bool looks; /* changes nothing: no lock */
} commands[] = { { "add", 2, 2, false },     { "remove", 2, 2, false }, { "disable", 2, 2, false }, { "enable", 2, 2, false },
                 { "limit", 2, 16, false },  { "join", 3, 3, false },   { "leave", 2, 2, false },   { "group", 3, 3, false },
                 { "list", 1, 1, true },     { "pending", 1, 1, true }, { "usage", 1, 1, true } };

static int run_command(const struct config *c, const struct gateway_places *places, struct users *u, const char *what)
{
    const char *name = config_arg(c, 2);

    if (strcmp(what, "list") == 0)
        return user_list(u);
    if (strcmp(what, "pending") == 0)
        return user_pending(places, u);
    if (strcmp(what, "usage") == 0)
        return user_usage_run(places, u);
    if (strcmp(what, "add") == 0)
        return user_add(c, places, u, name);
    if (strcmp(what, "remove") == 0)
        return user_remove(places, u, name);
    if (strcmp(what, "group") == 0 || strcmp(what, "join") == 0 || strcmp(what, "leave") == 0)
        return user_groups(c, places, u, what);
    return user_change(c, places, u, what, name);
}

void user_command_help(FILE *out)
{
    fputs("usage: weir user add NAME --key FILE              a public key; again for another one; FILE may be -\n"
          "       weir user add NAME --pending FINGERPRINT   a key that was lately refused\n"
          "       weir user add NAME --from-authorized-keys  the account NAME of this machine, with its keys and uid\n"
          "       weir user pending                          keys lately refused\n"
          "       weir user list                             users, their keys and limits\n"
          "       weir user usage                            what users and groups used today and this month, as CSV\n"
          "       weir user limit NAME|@GROUP LIMIT=N...     max-running max-queued max-jobs max-job-lines max-job-bytes\n"
          "                                                  max-tokens-a-day max-connections max-sessions; 0 is the pool's default\n"
          "       weir user disable NAME | enable NAME       no login, put out at once; jobs go on\n"
          "       weir user remove NAME\n"
          "       weir user group add GROUP | remove GROUP\n"
          "       weir user join NAME GROUP | leave NAME\n"
          "Each takes --state-dir DIR.  A gateway that runs sees the change by itself.\n",
          out);
}

int user_command_run(const struct config *c, const struct gateway_places *places)
{
    const char *what = config_arg(c, 1), *name = config_arg(c, 2);
    size_t n = config_n_args(c) - 1;
    struct users u = { 0 };
    struct error err;
    int code = -1, lock = -1;
    bool known = false;

    for (size_t i = 0; i < sizeof commands / sizeof commands[0] && what != NULL; i++) {
        known = known || strcmp(commands[i].name, what) == 0;
        if (strcmp(commands[i].name, what) == 0 && n >= commands[i].words_min && n <= commands[i].words_max)
            code = commands[i].looks;
    }
    if (code >= 0 && strcmp(what, "group") == 0 && strcmp(name, "add") != 0 && strcmp(name, "remove") != 0)
        code = -1;
    if (code < 0) {
        if (what != NULL && !known)
            fprintf(stderr, "weir: `weir user` has no %s\n", what);
        user_command_help(stderr);
        return EXIT_USAGE;
    }
    become_owner(places);
    if (code == 0 && (lock = lock_users(places, &err)) < 0)
        return refuse(&err);
    code = users_load(places->users_file, &u, &err) == ST_OK ? run_command(c, places, &u, what) : refuse(&err);
    users_deinit(&u);
    if (lock >= 0)
        close(lock);
    return code;
}
