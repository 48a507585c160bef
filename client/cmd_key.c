/* cmd_key.c - `weir key`: who may come by tcp.
 *
 * Works on the files of the pool, running or not: the broker looks at the users file once a second.  A secret is written to one file,
 * made new with mode 0600, and never shown.  Run by root for a service with a user of its own, the pool's files are handled as that
 * user, so that they stay its; the key file of a person is made as who we are. */
#include "commands.h"

#include <errno.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "curve_key.h"
#include "paths.h"
#include "users.h"

enum { FILE_BYTES = PATHS_BYTES + 64 };

static struct {
    const char *state_dir, *users_file, *curve_key, *output, *label, *server_key;
    bool json;
} options;

size_t key_flags(struct flag *ret_flags)
{
    const struct flag own[] = {
        {"output", 'o', FLAG_TEXT, &options.output, "FILE", "new, pair: the key file (default: NAME.key)", 0,
         0},
        {"label", 'l', FLAG_TEXT, &options.label, "TEXT", "new, add: what to call the key", 0, 0},
        {"server-key", 0, FLAG_TEXT, &options.server_key, "KEY",
         "pair: the broker's public key, to be kept in the file", 0, 0},
        {"state-dir", 0, FLAG_TEXT, &options.state_dir, "DIR", "the pool's state folder", 0, 0},
        {"users-file", 0, FLAG_TEXT, &options.users_file, "FILE", "default: STATE-DIR/users", 0, 0},
        {"curve-key", 0, FLAG_TEXT, &options.curve_key, "FILE",
         "the broker's key pair (default: STATE-DIR/curve.key)", 0, 0},
        {"json", 0, FLAG_SWITCH, &options.json, NULL, "list: print JSON", 0, 0},
    };

    memcpy(ret_flags, own, sizeof(own));
    return sizeof(own) / sizeof(own[0]);
}

/* --- the pool's files -------------------------------------------------------------------------- */

struct place {
    char state[PATHS_BYTES], users[FILE_BYTES], curve[FILE_BYTES];
};

static enum exit_code refuse(const struct error *err)
{
    fprintf(stderr, "weir key: %s%s%s%s\n", err->message, err->param[0] ? " (" : "", err->param,
            err->param[0] ? ")" : "");
    return err->code == ERR_PERMISSION_DENIED ? EXIT_REFUSED : EXIT_FAILED;
}

static enum status find_place(struct place *p, struct error *err)
{
    enum status st = ST_OK;

    if (options.state_dir != NULL)
        st = paths_absolute(options.state_dir, p->state, err);
    else if (options.users_file == NULL || options.curve_key == NULL)
        st = paths_state_dir(p->state, err);
    snprintf(p->users, sizeof(p->users), "%s%s", options.users_file != NULL ? options.users_file : p->state,
             options.users_file != NULL ? "" : "/users");
    snprintf(p->curve, sizeof(p->curve), "%s%s", options.curve_key != NULL ? options.curve_key : p->state,
             options.curve_key != NULL ? "" : "/curve.key");
    return st;
}

/* Root handles the files of a service as the service. */
static void become_owner(const struct place *p)
{
    struct stat s;

    if (geteuid() != 0 || p->state[0] == '\0' || stat(p->state, &s) != 0 || s.st_uid == 0)
        return;
    if (setgroups(0, NULL) != 0 || setegid(s.st_gid) != 0 || seteuid(s.st_uid) != 0)
        fprintf(stderr, "weir key: cannot become uid %u: %s\n", (unsigned)s.st_uid, strerror(errno));
}

static void become_oneself(void)
{
    if (getuid() == 0 && geteuid() != 0 && (seteuid(0) != 0 || setegid(getgid()) != 0))
        abort();
}

/* Become the folder's owner, and only then look whether it is a folder that nobody else writes: the look is at who we are.  Without make,
 * one that does not exist stays so, and the pool has no users. */
static enum status enter(const struct place *p, bool make, struct error *err)
{
    struct stat s;

    become_owner(p);
    if (p->state[0] == '\0' || (!make && lstat(p->state, &s) != 0 && errno == ENOENT))
        return ST_OK;
    return paths_make_private(p->state, 0750, err);
}

static enum status server_pair(const struct place *p, struct curve_pair *ret_pair, struct error *err)
{
    enum status st = curve_pair_load(p->curve, ret_pair, err);

    return st == ST_NOT_FOUND ? curve_pair_make(p->curve, NULL, NULL, ret_pair, err) : st;
}

/* Change the users file under its lock. */
static enum status change_users(const struct place *p,
                                enum status (*change)(struct users *, void *, struct error *), void *arg,
                                struct error *err)
{
    struct users u = {0};
    int lock = -1;
    enum status st = users_lock(p->users, true, &lock, err);

    if (st == ST_OK)
        st = users_load(p->users, &u, err);
    if (st == ST_OK)
        st = change(&u, arg, err);
    if (st == ST_OK)
        st = users_save(p->users, &u, err);
    users_deinit(&u);
    if (lock >= 0)
        close(lock);
    return st;
}

/* --- the words ---------------------------------------------------------------------------------- */

struct entry {
    const char *name, *label, *which;
    uint8_t key[CURVE_KEY_BYTES];
    uint32_t n_removed;
};

static enum status add_entry(struct users *u, void *arg, struct error *err)
{
    const struct entry *e = arg;
    enum status st = users_by_name(u, e->name) == NULL ? users_add(u, e->name, err) : ST_OK;

    return st == ST_OK ? users_add_curve(u, e->name, e->key, e->label, err) : st;
}

static bool is_meant(const struct entry *e, const struct user_curve *key)
{
    uint8_t wanted[CURVE_KEY_BYTES];

    if (e->which == NULL || (key->label[0] != '\0' && strcmp(e->which, key->label) == 0))
        return true;
    return curve_key_parse(span_str(e->which), wanted) == ST_OK &&
           memcmp(wanted, key->key, sizeof(wanted)) == 0;
}

static enum status remove_entries(struct users *u, void *arg, struct error *err)
{
    struct entry *e = arg;
    const struct user *user = users_by_name(u, e->name);
    enum status st = ST_OK;

    for (uint32_t k = 0; user != NULL && st == ST_OK && k < user->n_curve;) {
        if (!is_meant(e, &user->curve[k])) {
            k++;
            continue;
        }
        uint8_t key[CURVE_KEY_BYTES];
        memcpy(key, user->curve[k].key, sizeof(key));
        st = users_remove_curve(u, e->name, key, err);
        e->n_removed++;
    }
    if (st == ST_OK && e->n_removed == 0) {
        error_set(err, ERR_NOT_FOUND, "",
                  user == NULL ? "there is no user %.40s"
                               : "%.40s has no such key; `weir key list` shows them",
                  e->name);
        st = ST_NOT_FOUND;
    }
    return st;
}

static enum exit_code make_new(struct place *p, const char *name)
{
    struct curve_pair server, pair;
    struct entry e = {.name = name, .label = options.label != NULL ? options.label : ""};
    struct error err;
    char file[FILE_BYTES], text[CURVE_TEXT_BYTES];

    if (!user_name_ok(name))
        return command_usage(
            "key", "\"%s\" is not a name of a user: 1 to 31 of a-z 0-9 _ -, beginning with a letter", name);
    snprintf(file, sizeof(file), "%s%s", options.output != NULL ? options.output : name,
             options.output != NULL ? "" : ".key");
    enum status st = enter(p, true, &err);
    if (st == ST_OK)
        st = server_pair(p, &server, &err);
    become_oneself();
    if (st == ST_OK)
        st = curve_pair_make(file, name, server.public_key, &pair, &err);
    if (st != ST_OK)
        return refuse(&err);
    curve_pair_forget(&server);
    memcpy(e.key, pair.public_key, sizeof(e.key));
    curve_key_format(pair.public_key, text);
    curve_pair_forget(&pair);
    become_owner(p);
    st = change_users(p, add_entry, &e, &err);
    become_oneself();
    if (st != ST_OK) {
        unlink(file);
        return refuse(&err);
    }
    printf("%s: key %s\nwrote %s: bring it to %s by a way that nobody reads, then remove it here\n", name,
           text, file, name);
    return command_flush("key") ? EXIT_DONE : EXIT_FAILED;
}

static enum exit_code make_pair(void)
{
    uint8_t server[CURVE_KEY_BYTES];
    struct curve_pair pair;
    struct error err;
    char text[CURVE_TEXT_BYTES];

    if (options.output == NULL)
        return command_usage("key", "pair: which file?  -o FILE");
    if (options.server_key != NULL && curve_key_parse(span_str(options.server_key), server) != ST_OK)
        return command_usage("key", "the server key is neither 64 hexadecimal digits nor 40 of Z85");
    if (curve_pair_make(options.output, NULL, options.server_key != NULL ? server : NULL, &pair, &err) !=
        ST_OK)
        return refuse(&err);
    curve_key_format(pair.public_key, text);
    curve_pair_forget(&pair);
    printf("%s\n", text);
    return command_flush("key") ? EXIT_DONE : EXIT_FAILED;
}

static enum exit_code add_known(struct place *p, const char *name, const char *key)
{
    struct entry e = {.name = name, .label = options.label != NULL ? options.label : ""};
    struct error err;

    if (curve_key_parse(span_str(key), e.key) != ST_OK)
        return command_usage("key", "\"%.80s\" is neither 64 hexadecimal digits nor 40 of Z85", key);
    if (enter(p, true, &err) != ST_OK || change_users(p, add_entry, &e, &err) != ST_OK)
        return refuse(&err);
    printf("%s: key added\n", name);
    return command_flush("key") ? EXIT_DONE : EXIT_FAILED;
}

static enum exit_code remove_known(struct place *p, const char *name, const char *which)
{
    struct entry e = {.name = name, .which = which};
    struct error err;

    if (enter(p, false, &err) != ST_OK || change_users(p, remove_entries, &e, &err) != ST_OK)
        return refuse(&err);
    printf("%s: %u key%s removed\n", name, e.n_removed, e.n_removed == 1 ? "" : "s");
    return command_flush("key") ? EXIT_DONE : EXIT_FAILED;
}

static enum exit_code list(const struct place *p, const char *only)
{
    struct users u = {0};
    struct error err;
    char text[CURVE_TEXT_BYTES];
    json_t *all = options.json ? json_array() : NULL;

    if (enter(p, false, &err) != ST_OK || users_load(p->users, &u, &err) != ST_OK) {
        json_decref(all);
        return refuse(&err);
    }
    for (uint32_t i = 0; i < u.n; i++)
        for (uint32_t k = 0; k < u.list[i].n_curve; k++) {
            const struct user_curve *key = &u.list[i].curve[k];

            if (only != NULL && strcmp(only, u.list[i].name) != 0)
                continue;
            curve_key_format(key->key, text);
            if (options.json)
                json_array_append_new(all, json_pack("{s:s, s:s, s:s}", "user", u.list[i].name, "key", text,
                                                     "label", key->label));
            else
                printf("%-16s %s  %s\n", u.list[i].name, text, key->label);
        }
    users_deinit(&u);
    if (options.json)
        return command_print_json(all);
    return command_flush("key") ? EXIT_DONE : EXIT_FAILED;
}

static enum exit_code show_server(const struct place *p)
{
    struct curve_pair pair;
    struct error err;
    char text[CURVE_TEXT_BYTES];

    if (enter(p, false, &err) != ST_OK || server_pair(p, &pair, &err) != ST_OK)
        return refuse(&err);
    curve_key_format(pair.public_key, text);
    curve_pair_forget(&pair);
    printf("%s\n", text);
    return command_flush("key") ? EXIT_DONE : EXIT_FAILED;
}

int cmd_key(int argc, char **argv)
{
    static struct place p;
    struct flag flags[FLAGS_MAX];
    struct error err;
    int n = flags_parse(flags, key_flags(flags), "key", argc, argv);

    if (n == FLAGS_HELP)
        return command_help("key");
    if (n < 0)
        return EXIT_USAGE;
    const char *word = n > 0 ? argv[0] : "";
    if (strcmp(word, "pair") == 0 && n == 1)
        return make_pair();
    if (find_place(&p, &err) != ST_OK)
        return refuse(&err);
    if (strcmp(word, "new") == 0 && n == 2)
        return make_new(&p, argv[1]);
    if (strcmp(word, "add") == 0 && n == 3)
        return add_known(&p, argv[1], argv[2]);
    if (strcmp(word, "remove") == 0 && (n == 2 || n == 3))
        return remove_known(&p, argv[1], n == 3 ? argv[2] : NULL);
    if (strcmp(word, "list") == 0 && n <= 2)
        return list(&p, n == 2 ? argv[1] : NULL);
    if (strcmp(word, "server") == 0 && n == 1)
        return show_server(&p);
    return command_usage("key",
                         "new NAME, add NAME KEY, remove NAME [KEY], list [NAME], server, or pair -o FILE");
}
