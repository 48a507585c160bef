/* main.c - the table of verbs of `weir`, and the few verbs that are about the program itself. */
#include "commands.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "over_ssh.h"
#include "version.h"

static int cmd_user(int argc, char **argv);
static int cmd_gateway(int argc, char **argv);
static int cmd_version(int argc, char **argv);
static size_t version_flags(struct flag *ret_flags);
static int cmd_help(int argc, char **argv);

const struct verb verbs[] = {
    {"generate", cmd_generate, "[OPTIONS] PROMPT|-", "complete a prompt as it is given",
     "Completes PROMPT (or standard input) and streams the answer.", generate_flags},
    {"chat", cmd_chat, "[OPTIONS] [QUESTION]", "talk with a model",
     "Several turns; ^C stops an answer, /help lists commands.  With QUESTION: one answer.  Without a "
     "terminal: a question a line.",
     chat_flags},
    {"batch", cmd_batch, "[OPTIONS] FILE|-", "answer a file of requests, as they come",
     "FILE has a request a line: OpenAI's batch form, or {\"prompt\": ..} or {\"messages\": [..]} with an "
     "optional \"id\" and parameters.\n"
     "Answers come in OpenAI's batch output form.  With -o a run that was stopped goes on where it was.",
     batch_flags},
    {"verify", cmd_verify, "INPUT OUTPUT | FOLDER | JOB [OPTIONS]", "compute answers of a batch again, and compare bits",
     "INPUT and OUTPUT of `weir batch` or of a job, or the folder of a job; with the name of a job it is `ssh box verify JOB`.\n"
     "Answers are drawn by chance, computed again with their seeds, and compared: token ids, text, log-probabilities.\n"
     "Needs a worker of the class (system_fingerprint) that made them.",
     verify_flags},
    {"tokenize", cmd_tokenize, "[OPTIONS] TEXT|-", "the token ids of a text", NULL, tokenize_flags},
    {"models", cmd_models, "[OPTIONS]", "what the pool serves", NULL, pool_flags},
    {"status", cmd_status, "[OPTIONS]", "how the pool is; wait until it is ready", NULL, status_flags},
    {"worker", cmd_worker, "list | pause N | resume N | drain N | add [--model NAME] [--device DEVICE] | remove N",
     "workers by hand",
     "For root and the user the pool runs as.  N is the worker's slot in `weir worker list`.\n"
     "  pause   nothing new is given to it; what it has goes on\n"
     "  drain   likewise, and then its process ends: the memory of its device is free\n"
     "  resume  it works again\n"
     "  add     one more worker\n"
     "  remove  drain it and forget it; the last one of a model stays",
     worker_flags},
    {"top", cmd_top, "[OPTIONS]", "the pool, live: workers, cache, users",
     "Drawn anew every second on a terminal (q leaves, s changes the order of users, space pauses); one page of text in a pipe.",
     top_flags},
    {"trace", cmd_trace, "[OPTIONS] [ID]", "where the time of a request went",
     "ID is what `weir generate --json` calls \"request\", and `weir trace` without ID lists: your requests under way, and the last that "
     "ended (root and the pool's user see all).\n"
     "The phases of a request follow one another and add up to its total:\n"
     "  queue     from its arrival until a worker was chosen for it\n"
     "  earlier   with workers that died under it\n"
     "  routing   choosing the worker, writing the request into its memory\n"
     "  handover  until the worker took it\n"
     "  tokenize  until its text was tokens\n"
     "  wait      in the worker, for a place in its steps\n"
     "  prefix    in the worker, for a prefix that another request computed\n"
     "  prefill   from its first step to the first token: the prompt, in chunks\n"
     "  steps     from the first token to the last\n"
     "  stream    from the last token until the end was sent",
     trace_flags},
    {"serve", cmd_serve, "[OPTIONS] --model FILE", "start a pool here, in the foreground", NULL, NULL},
    {"key", cmd_key, "new NAME | add NAME KEY | remove NAME [KEY] | list [NAME] | server | pair -o FILE",
     "who may come by tcp",
     "CURVE keys of people, in the pool's users file; on the pool's machine.\n"
     "  new     make a key for NAME: the file goes to NAME, its public half into the users file\n"
     "  add     enter a public key that NAME made with `pair`\n"
     "  remove  KEY (the key or its label), or all keys of NAME; open connections lose their requests\n"
     "  list    users, public keys, labels\n"
     "  server  the broker's public key, which clients are given with --server-key\n"
     "  pair    on one's own machine: a new key file; its public key is printed",
     key_flags},
    {"user", cmd_user, "add|remove|list [NAME] [--key FILE]", "who may come by ssh (weir-gateway user)", NULL,
     NULL},
    {"gateway", cmd_gateway, "[OPTIONS]", "the ssh gateway alone (weir-gateway)", NULL, NULL},
    {"version", cmd_version, "[--json]", "which program this is", NULL, version_flags},
    {"help", cmd_help, "[VERB]", "this list, or all about one verb", NULL, NULL},
};
const size_t n_verbs = sizeof(verbs) / sizeof(verbs[0]);

static const char exit_codes[] =
    "exit codes:\n"
    "  0    done\n"
    "  1    the request failed, or some lines of a file did\n"
    "  2    wrong usage\n"
    "  3    no broker\n"
    "  4    refused: busy, no worker, shutting down, or not allowed; trying later may help\n"
    "  130  interrupted\n";

static const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; i < n_verbs; i++)
        if (strcmp(verbs[i].name, name) == 0)
            return &verbs[i];
    return NULL;
}

/* --- help and version -------------------------------------------------------------------------- */

static void print_list(FILE *out)
{
    fprintf(out, "usage: weir VERB [OPTIONS] ...\n\n");
    for (size_t i = 0; i < n_verbs; i++)
        fprintf(out, "  %-10s %s\n", verbs[i].name, verbs[i].summary);
    fprintf(out, "\nand, through the ssh gateway of this machine, as `ssh HOST VERB` (WEIR_SSH_HOST, WEIR_SSH_PORT):\n   ");
    size_t n_over_ssh;
    const char *const *over_ssh_names = over_ssh_verbs(&n_over_ssh);
    for (size_t i = 0; i < n_over_ssh; i++)
        fprintf(out, " %s", over_ssh_names[i]);
    fprintf(out,
            ", status JOB\n\n`weir help VERB` tells all of one.  Requests go to --connect ENDPOINT, else WEIR_CONNECT, "
            "else the local pool.\n\n%s",
            exit_codes);
}

int command_help(const char *name)
{
    struct flag flags[FLAGS_MAX];
    const struct verb *v = find_verb(name);

    printf("usage: weir %s %s\n%s\n", v->name, v->usage, v->about != NULL ? v->about : v->summary);
    if (v->flags != NULL) {
        printf("\n");
        flags_print(stdout, flags, v->flags(flags));
    }
    printf("\n%s", exit_codes);
    return command_flush(name) ? EXIT_DONE : EXIT_FAILED;
}

static int unknown_verb(const char *name)
{
    const char *names[64];
    size_t n = 0, n_over_ssh;
    const char *const *over_ssh_names = over_ssh_verbs(&n_over_ssh);

    for (size_t i = 0; i < n_verbs; i++)
        names[n++] = verbs[i].name;
    for (size_t i = 0; i < n_over_ssh; i++)
        names[n++] = over_ssh_names[i];
    assert(n <= sizeof(names) / sizeof(names[0]));
    const char *near = flags_nearest(name, names, n);
    if (near != NULL)
        fprintf(stderr, "weir: there is no verb \"%s\"; did you mean \"%s\"?\n", name, near);
    else
        fprintf(stderr, "weir: there is no verb \"%s\"; `weir help` lists them\n", name);
    return EXIT_USAGE;
}

static int cmd_help(int argc, char **argv)
{
    if (argc == 0) {
        print_list(stdout);
        return command_flush("help") ? EXIT_DONE : EXIT_FAILED;
    }
    if (over_ssh_has(argv[0]))
        return over_ssh("help", 1, argv);
    if (find_verb(argv[0]) == NULL)
        return unknown_verb(argv[0]);
    if (strcmp(argv[0], "serve") == 0 || strcmp(argv[0], "user") == 0 || strcmp(argv[0], "gateway") == 0) {
        char *help[] = {argv[0], (char[]){"--help"}, NULL}; /* they tell it themselves */
        return find_verb(argv[0])->run(1, help + 1);
    }
    return command_help(argv[0]);
}

static bool version_json;

static size_t version_flags(struct flag *ret_flags)
{
    ret_flags[0] = (struct flag){
        "json", 0, FLAG_SWITCH, &version_json, NULL, "print {\"version\": .., \"build\": ..}", 0, 0};
    return 1;
}

static int cmd_version(int argc, char **argv)
{
    struct flag flags[FLAGS_MAX];
    int n_args = flags_parse(flags, version_flags(flags), "version", argc, argv);

    if (n_args == FLAGS_HELP)
        return command_help("version");
    if (n_args < 0)
        return EXIT_USAGE;
    if (n_args > 0)
        return command_usage("version", "it takes no argument, but there is \"%s\"", argv[0]);
    if (version_json)
        return command_print_json(
            json_pack("{s:s, s:s}", "version", version_text(), "build", version_build_id()));
    printf("weir %s (%s)\n", version_text(), version_build_id());
    return command_flush("version") ? EXIT_DONE : EXIT_FAILED;
}

/* --- other programs ---------------------------------------------------------------------------- */

const char *command_sibling(const char *name, char *path)
{
    ssize_t n = readlink("/proc/self/exe", path, 4096 - 64);

    while (n > 0 && path[n - 1] != '/')
        n--;
    if (n > 0) {
        snprintf(path + n, 64, "%s", name);
        if (access(path, X_OK) == 0)
            return path;
    }
    snprintf(path, 64, "%s", name);
    return path;
}

/* Become weir-gateway, with `first` (if any) and the rest of our words. */
static int become_gateway(const char *first, int argc, char **argv)
{
    char path[4096];
    char **words = calloc((size_t)argc + 3, sizeof(*words));
    size_t n = 0;

    if (words == NULL)
        return EXIT_FAILED;
    words[n++] = (char[]){"weir-gateway"};
    if (first != NULL)
        words[n++] = (char *)(uintptr_t)first;
    for (int i = 0; i < argc; i++)
        words[n++] = argv[i];
    execvp(command_sibling("weir-gateway", path), words);
    fprintf(stderr, "weir: cannot start %s: %s\n", path, strerror(errno));
    free(words);
    return EXIT_FAILED;
}

static int cmd_user(int argc, char **argv)
{
    return become_gateway("user", argc, argv);
}

static int cmd_gateway(int argc, char **argv)
{
    return become_gateway(NULL, argc, argv);
}

static bool take_early_flag(const char *flag, const char *value)
{
    static const char *const names[][2] = {
        {"--connect", "WEIR_CONNECT"}, {"--key", "WEIR_KEY"}, {"--server-key", "WEIR_SERVER_KEY"}};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(flag, names[i][0]) == 0)
            return setenv(names[i][1], value, 1) == 0;
    return false;
}

/* `weir status` is about the pool, `weir status JOB` what it is over ssh; `weir verify` is about files, and `weir verify JOB` what it is there. */
static bool is_about_a_job(const char *verb, int argc, char **argv)
{
    if (argc == 0 || argv[0][0] == '-')
        return false;
    if (strcmp(verb, "verify") == 0) /* not INPUT OUTPUT, not FOLDER */
        return (argc == 1 || argv[1][0] == '-') && access(argv[0], F_OK) != 0;
    return strcmp(verb, "status") == 0;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_list(stderr);
        return EXIT_USAGE;
    }
    while (argc > 3 && take_early_flag(argv[1], argv[2])) { /* before the verb is as good as behind it */
        argv += 2;
        argc -= 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return cmd_help(0, NULL);
    if (strcmp(argv[1], "--version") == 0)
        return cmd_version(0, NULL);
    if (over_ssh_has(argv[1]) || is_about_a_job(argv[1], argc - 2, argv + 2))
        return over_ssh(argv[1], argc - 2, argv + 2);
    const struct verb *v = find_verb(argv[1]);
    return v != NULL ? v->run(argc - 2, argv + 2) : unknown_verb(argv[1]);
}
