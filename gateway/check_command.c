/* check_command.c - `weir gateway check`: reads the configuration as the server would, starts nothing, and says what is wrong.
 *
 *   ok | note | wrong   WHAT: sentence         one a line, standard output; exit code 4 when anything is wrong
 *
 * A note is something that may be meant so: no broker yet, a port that is in use because the gateway runs. */
#include <errno.h>
#include <libssh/libssh.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "clock.h"
#include "gateway.h"
#include "hooks.h"
#include "host_keys.h"
#include "job_files.h"
#include "key_options.h"
#include "listening.h"
#include "log.h"
#include "users.h"
#include "verb.h"
#include "weir.h"

enum { FREE_MIB_MIN = 1024, BROKER_MS = 2000 };

static unsigned n_wrong;

__attribute__((format(printf, 3, 4))) static void say(const char *how, const char *what, const char *format, ...)
{
    va_list args;

    n_wrong += strcmp(how, "wrong") == 0;
    printf("%-6s %s: ", how, what);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

enum status gateway_check_options(const struct config *c, struct error *err)
{
    const char *const *sources;
    size_t n = config_list(c, "exempt-source", &sources);

    if (config_u64(c, "startups-free") > config_u64(c, "startups-max")) {
        error_set(err, ERR_INVALID_PARAMETER, "startups-free", "--startups-free must be at most --startups-max");
        return ST_INVALID;
    }
    for (size_t i = 0; i < n; i++) {
        if (listening_pattern_ok(sources[i]))
            continue;
        error_set(err, ERR_INVALID_PARAMETER, "exempt-source",
                  "--exempt-source wants an address, ADDRESS/BITS or a pattern with *, not \"%.60s\"", sources[i]);
        return ST_INVALID;
    }
    return config_string(c, "job-hook") != NULL ? hook_check(config_string(c, "job-hook"), err) : ST_OK;
}

static void check_port(const struct config *c)
{
    static struct listening l;
    struct error err;

    bool ok = listening_open(&l, c, &err) == ST_OK;
    bool in_use = !ok && strstr(err.message, strerror(EADDRINUSE)) != NULL;
    if (!ok)
        say(in_use ? "note" : "wrong", "listen", "%s%s", err.message, in_use ? "; a gateway that runs already is a reason" : "");
    else
        say("ok", "listen", "port %u is free", l.port);
    for (size_t i = 0; i < l.n; i++)
        close(l.sockets[i]);
}

static void check_state(const char *state_dir)
{
    struct stat s;
    struct statvfs v;

    if (stat(state_dir, &s) != 0) {
        say(errno == ENOENT ? "note" : "wrong", "state-dir", "%s: %s%s", state_dir, strerror(errno),
            errno == ENOENT ? "; the first start makes it" : "");
        return;
    }
    if (!S_ISDIR(s.st_mode))
        say("wrong", "state-dir", "%s is no folder", state_dir);
    else if ((s.st_mode & 07027) != 0)
        say("wrong", "state-dir", "%s has mode %04o: others can read or write it, at most 0750 is right", state_dir,
            (unsigned)s.st_mode & 07777);
    else if (access(state_dir, R_OK | W_OK | X_OK) != 0)
        say("wrong", "state-dir", "%s cannot be written by uid %u", state_dir, (unsigned)geteuid());
    else
        say("ok", "state-dir", "%s", state_dir);
    if (statvfs(state_dir, &v) != 0)
        return;
    unsigned long long mib = (unsigned long long)v.f_bavail * v.f_frsize >> 20;
    say(mib < FREE_MIB_MIN ? "note" : "ok", "disk", "%llu MiB free", mib);
}

static void check_file_system(const char *state_dir)
{
    struct error err;

    if (access(state_dir, F_OK) == 0 && job_files_check_place(state_dir, &err) != ST_OK)
        say("wrong", "state-dir", "%s", err.message);
}

static void check_host_keys(const char *state_dir)
{
    struct host_keys keys;
    struct error err;

    if (!host_keys_exist(state_dir))
        say("note", "host keys", "none yet; the first start makes them");
    else if (host_keys_load(state_dir, &keys, &err) != ST_OK)
        say("wrong", "host keys", "%s", err.message);
    else {
        say("ok", "host keys", "ed25519 and rsa");
        host_keys_deinit(&keys);
    }
}

static void check_user(const struct user *u)
{
    char what[80];

    snprintf(what, sizeof what, "user %s", u->name);
    if (u->n_keys == 0 && u->uid < 0 && !u->disabled)
        say("note", what, "no key and no uid: cannot come in");
    for (uint32_t i = 0; i < u->n_keys; i++) {
        const struct user_key *k = &u->keys[i];
        const char *reason = "";
        ssh_key public = NULL;
        if (ssh_pki_import_pubkey_base64(k->blob, ssh_key_type_from_name(k->type), &public) != SSH_OK)
            say("wrong", what, "key %u (%s %.40s) is none that this server can use", i + 1, k->type, k->comment);
        else if (!key_options_allow(k->options, "", clock_real_ms(), &reason) && strcmp(reason, "expired") == 0)
            say("note", what, "key %u (%s %.40s) has expired", i + 1, k->type, k->comment);
        ssh_key_free(public);
    }
}

static void check_users(const struct gateway_places *places)
{
    struct users u = { 0 };
    struct error err;
    unsigned n_keys = 0;

    if (users_load(places->users_file, &u, &err) != ST_OK) {
        say("wrong", "users", "%s (%s)", err.message, err.param);
        return;
    }
    for (uint32_t i = 0; i < u.n; i++) {
        n_keys += u.list[i].n_keys;
        check_user(&u.list[i]);
    }
    say(n_keys == 0 ? "note" : "ok", "users", "%u users, %u keys%s", u.n, n_keys,
        n_keys == 0 ? ": nobody can come in yet (weir user add NAME --key FILE)" : "");
    users_deinit(&u);
}

static void check_broker(const struct gateway_places *places)
{
    const struct weir_options options = { .endpoint = places->endpoint, .connect_timeout_ms = BROKER_MS, .name = "gateway check" };
    struct weir_client *client = NULL;
    struct weir_error err = { 0 };

    if (weir_open(&client, &options, &err) == WEIR_OK)
        say("ok", "broker", "%s answers", places->endpoint);
    else
        say("note", "broker", "%s: %s; jobs wait for it", places->endpoint, err.message);
    weir_close(client);
}

int check_command_run(const struct config *c, const struct gateway_places *places)
{
    struct error err;

    log_init("gateway", LOG_LEVEL_ERROR);
    if (config_n_args(c) != 1) {
        fprintf(stderr, "usage: weir gateway check [OPTIONS as for the server]\n");
        return EXIT_USAGE;
    }
    if (log_level_from_name(config_string(c, "log-level")) < 0)
        say("wrong", "log-level", "wants error, warn, info or debug, not %s", config_string(c, "log-level"));
    if (gateway_check_options(c, &err) != ST_OK)
        say("wrong", err.param, "%s", err.message);
    else
        say("ok", "options", "all understood");
    if (ssh_version(SSH_VERSION_INT(0, 10, 6)) == NULL)
        say("wrong", "libssh", "%s is too old: 0.10.6 or later", ssh_version(0));
    else
        say("ok", "libssh", "%s", ssh_version(0));
    check_port(c);
    check_state(places->state_dir);
    check_file_system(places->state_dir);
    check_host_keys(places->state_dir);
    check_users(places);
    check_broker(places);
    fflush(stdout);
    return n_wrong > 0 ? EXIT_REFUSED : EXIT_OK;
}
