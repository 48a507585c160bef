/* verb.c - tables of verbs and options, and the parser that both feed.
 *
 * One table of options for all verbs: --json means the same everywhere, and an option that a verb does not take can be told apart
 * from one that does not exist. */
#include "verb.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "edit_distance.h"
#include "limits.h"
#include "verify_case.h"

enum option_type { TYPE_FLAG, TYPE_TEXT, TYPE_LIST, TYPE_COUNT, TYPE_TIME, TYPE_DECIMAL, TYPE_CHOICE };

static const struct {
    const char *name, *value, *help;
    enum option_type type;
    uint64_t max;     /* of an integer, of a text's bytes; how many of a list */
    double low, high; /* of a DECIMAL */
} option_table[OPT_COUNT] = {
    [OPT_JSON] = { "json", NULL, "print JSON, for programs", TYPE_FLAG, .max = 0 },
    [OPT_NAME] = { "name", "NAME", "a name of your own for the job", TYPE_TEXT, .max = 64 },
    [OPT_KEY] = { "key", "KEY", "the same key and input again give the same job, not a second one", TYPE_TEXT,
                  .max = 128 },
    [OPT_MODEL] = { "model", "MODEL", "the model to ask; of a job, whatever its lines say", TYPE_TEXT,
                    .max = NAME_BYTES_MAX - 1 },
    [OPT_MAX_TOKENS] = { "max-tokens", "N", "longest answer; of a job, for lines that name none", TYPE_COUNT,
                         .max = OUTPUT_TOKENS_MAX },
    [OPT_PRIORITY] = { "priority", "low|normal|high", "order among your own jobs", TYPE_CHOICE, .max = 0 },
    [OPT_DEADLINE] = { "deadline", "TIME", "end it after this time (90s, 30m, 8h, 2d)", TYPE_TIME,
                       .max = DEADLINE_MS_MAX },
    [OPT_ALL] = { "all", NULL, "also jobs that ended more than a day ago", TYPE_FLAG, .max = 0 },
    [OPT_FOLLOW] = { "follow", NULL, "go on until the job has ended", TYPE_FLAG, .max = 0 },
    [OPT_ORDERED] = { "ordered", NULL, "in the order of the input, not of the answers", TYPE_FLAG, .max = 0 },
    [OPT_SYSTEM] = { "system", "TEXT", "system prompt", TYPE_TEXT, .max = 32 << 10 },
    [OPT_SEED] = { "seed", "N", "seed of the sampling", TYPE_COUNT, .max = INT64_MAX },
    [OPT_TEMPERATURE] = { "temperature", "T", "0 always takes the likeliest token (default 1)", TYPE_DECIMAL, 0, 0, 100 },
    [OPT_TOP_P] = { "top-p", "P", "only the likeliest tokens that together have probability P", TYPE_DECIMAL, 0, 0, 1 },
    [OPT_TOP_K] = { "top-k", "K", "only the K likeliest tokens", TYPE_COUNT, .max = INT32_MAX },
    [OPT_MIN_P] = { "min-p", "P", "only tokens with P times the probability of the likeliest", TYPE_DECIMAL, 0, 0, 1 },
    [OPT_REPETITION_PENALTY] = { "repetition-penalty", "R", "above 1: tokens that were there become less likely",
                                 TYPE_DECIMAL, 0, 0, 100 },
    [OPT_PRESENCE_PENALTY] = { "presence-penalty", "X", "taken once from the logit of a token that was generated",
                               TYPE_DECIMAL, 0, -2, 2 },
    [OPT_FREQUENCY_PENALTY] = { "frequency-penalty", "X", "taken for every time it was", TYPE_DECIMAL, 0, -2, 2 },
    [OPT_STOP] = { "stop", "TEXT", "end before this text; may repeat", TYPE_LIST, .max = STOPS_MAX },
    [OPT_IGNORE_EOS] = { "ignore-eos", NULL, "go on after the model's end token, up to --max-tokens", TYPE_FLAG, .max = 0 },
    [OPT_CHAT_TEMPLATE] = { "chat-template", "NAME", "chatml, llama3, gemma, ... (default: the model's)", TYPE_TEXT,
                            .max = NAME_BYTES_MAX - 1 },
    [OPT_CACHE] = { "cache", "on|off", "reuse and leave computed prompts (default on)", TYPE_CHOICE, .max = 0 },
    [OPT_SCOPE] = { "scope", "user|pool", "whose computed prompts may be met (default user, or as the users file says)", TYPE_CHOICE, .max = 0 },
    [OPT_SALT] = { "salt", "TEXT", "narrow that to those who give the same salt", TYPE_TEXT, .max = SALT_BYTES_MAX },
    [OPT_SAMPLE] = { "sample", "N", "so many answers, drawn by chance (default 16)", TYPE_COUNT, .max = VERIFY_SAMPLE_MAX },
    [OPT_DRAW] = { "draw", "SEED", "the same draw again (default: another each time; it is told)", TYPE_COUNT,
                   .max = INT64_MAX },
    [OPT_SPECIAL] = { "special", NULL, "read special tokens in the text as such", TYPE_FLAG, .max = 0 },
    [OPT_TEXT] = { "text", NULL, "the input is text, one prompt a line", TYPE_FLAG, .max = 0 },
    [OPT_TEMPLATE] = { "template", "TEMPLATE",
                       "the input is CSV or JSON lines; make each prompt of its columns: 'Translate: {text}'",
                       TYPE_TEXT, .max = 32 << 10 },
    [OPT_TRY] = { "try", "N", "answer N lines, chosen at random, and hold the rest until `release`", TYPE_COUNT,
                  .max = JOB_LINES_MAX },
    [OPT_CHECK] = { "check", NULL, "submit nothing; name the lines that are wrong or too long, and count tokens", TYPE_FLAG,
                    .max = 0 },
    [OPT_REUSE] = { "reuse", "JOB", "take over JOB's answers to lines that have the same id and text; run only the rest",
                    TYPE_TEXT, .max = 128 },
    [OPT_STATE] = { "state", "STATE", "only jobs in this state (in_progress, completed, failed, ...)", TYPE_TEXT,
                    .max = 32 },
    [OPT_FLAT] = { "flat", NULL, "one short object a line: id, text, finish_reason, tokens", TYPE_FLAG, .max = 0 },
    [OPT_CSV] = { "csv", NULL, "the same as CSV, with a header", TYPE_FLAG, .max = 0 },
    [OPT_JOIN] = { "join", NULL, "with --flat or --csv: the input's columns too", TYPE_FLAG, .max = 0 },
    [OPT_CHAT] = { "chat", NULL, "with --text or --template: each prompt is a message to the model", TYPE_FLAG,
                   .max = 0 },
};

#define BIT(option) ((uint64_t)1 << (option))

#define JOB_OPTIONS                                                                                               \
    (BIT(OPT_JSON) | BIT(OPT_NAME) | BIT(OPT_KEY) | BIT(OPT_MODEL) | BIT(OPT_MAX_TOKENS) | BIT(OPT_PRIORITY) |    \
     BIT(OPT_DEADLINE) | BIT(OPT_TEXT) | BIT(OPT_TEMPLATE) | BIT(OPT_CHAT) | BIT(OPT_TRY) | BIT(OPT_REUSE))

/* Of a request that is not a line of a job. */
#define REQUEST_OPTIONS                                                                                           \
    (BIT(OPT_JSON) | BIT(OPT_MODEL) | BIT(OPT_MAX_TOKENS) | BIT(OPT_SYSTEM) | BIT(OPT_SEED) | BIT(OPT_TEMPERATURE) | \
     BIT(OPT_TOP_P) | BIT(OPT_TOP_K) | BIT(OPT_MIN_P) | BIT(OPT_REPETITION_PENALTY) | BIT(OPT_PRESENCE_PENALTY) | \
     BIT(OPT_FREQUENCY_PENALTY) | BIT(OPT_STOP) | BIT(OPT_IGNORE_EOS) | BIT(OPT_CHAT_TEMPLATE) | BIT(OPT_CACHE) | \
     BIT(OPT_SCOPE) | BIT(OPT_SALT) | BIT(OPT_DEADLINE))

static const struct verb verb_table[] = {
    { VERB_HOME, "", "", 0, 0, BIT(OPT_JSON), STDIN_NONE, "who you are, your jobs, three examples",
      NULL },
    { VERB_HELP, "help", "[VERB]", 0, 1, BIT(OPT_JSON), STDIN_NONE, "this list, or all about one verb",
      NULL },
    { VERB_ASK, "ask", "[-] QUESTION...", 0, COMMAND_WORDS_MAX, REQUEST_OPTIONS, STDIN_MAYBE, "ask one question; standard input is appended to it",
      "  git diff | ssh box ask 'write the commit message'\n"
      "Standard input that has not begun after one second is taken to be empty; with - it is waited "
      "for.\n" },
    { VERB_CHAT, "chat", "[QUESTION...]", 0, COMMAND_WORDS_MAX, REQUEST_OPTIONS, STDIN_MAYBE,
      "talk; every question is answered in the light of those before",
      "  ssh -t box chat            with -t: line editing, history, ^C stops an answer\n"
      "/reset, /system TEXT, /quit.  A line that ends in \\ goes on in the next.  Without a terminal every line of standard "
      "input is a question.\nWith QUESTION it answers that one and ends.\n" },
    { VERB_SUBMIT, "submit", "", 0, 0, JOB_OPTIONS | BIT(OPT_CHECK), STDIN_FILE,
      "make a job of the JSON lines on standard input, and print its id",
      "  ssh box submit --name night <prompts.jsonl\n"
      "A line is {\"prompt\": \"...\"} or {\"messages\": [...]} with an optional \"id\" and parameters, "
      "or a line of the OpenAI batch "
      "format.\n  ssh box submit --text <prompts.txt\n"
      "  ssh box submit --chat --template \"'Translate: {text}'\" <table.csv\n"
      "The input may be gzip or zstd.\nThe id is printed when the whole input is on disk: from then on the job survives "
      "whatever happens.\n" },
    { VERB_RUN, "run", "", 0, 0, JOB_OPTIONS, STDIN_FILE,
      "submit, then print the answers as they come until the job has ended",
      "  ssh box run <prompts.jsonl >answers.jsonl\n"
      "If the connection ends the job goes on: `results JOB --follow` takes up the answers again.\n" },
    { VERB_STATUS, "status", "[JOB]", 0, 1, BIT(OPT_JSON), STDIN_NONE,
      "how far a job is; without JOB the last one", NULL },
    { VERB_LIST, "list", "", 0, 0, BIT(OPT_JSON) | BIT(OPT_ALL) | BIT(OPT_STATE), STDIN_NONE, "your jobs, newest first",
      NULL },
    { VERB_WATCH, "watch", "[JOB]", 0, 1, BIT(OPT_JSON), STDIN_NONE,
      "follow a job's progress until it has ended", NULL },
    { VERB_WAIT, "wait", "[JOB]", 0, 1, BIT(OPT_JSON), STDIN_NONE,
      "wait for a job's end, silently; the exit code tells it", NULL },
    { VERB_RESULTS, "results", "[JOB]", 0, 1, BIT(OPT_JSON) | BIT(OPT_FOLLOW) | BIT(OPT_ORDERED) | BIT(OPT_FLAT) | BIT(OPT_CSV) | BIT(OPT_JOIN),
      STDIN_NONE, "print the answers there are", NULL },
    { VERB_ERRORS, "errors", "[JOB]", 0, 1, BIT(OPT_JSON) | BIT(OPT_FOLLOW), STDIN_NONE,
      "print the lines that failed, and why", NULL },
    { VERB_VERIFY, "verify", "[JOB]", 0, 1, BIT(OPT_JSON) | BIT(OPT_SAMPLE) | BIT(OPT_DRAW), STDIN_NONE,
      "compute some answers of a job again, and compare bits",
      "Answers are drawn by chance, computed again with their seeds, one after the other, and compared: token ids, text,\n"
      "log-probabilities.  Needs a worker of the class (system_fingerprint) that made them.  Counts as questions of yours.\n" },
    { VERB_CANCEL, "cancel", "JOB", 1, 1, BIT(OPT_JSON), STDIN_NONE,
      "end a job; answers there are stay, lines left become errors", NULL },
    { VERB_DELETE, "delete", "JOB", 1, 1, BIT(OPT_JSON), STDIN_NONE, "remove an ended job with its files",
      NULL },
    { VERB_RETRY, "retry", "JOB", 1, 1, BIT(OPT_JSON), STDIN_NONE,
      "run the failed lines of an ended job again",
      "Answers that are there stay; its errors of before are forgotten, its deadline too.\n" },
    { VERB_RELEASE, "release", "JOB", 1, 1, BIT(OPT_JSON), STDIN_NONE,
      "run the lines that `submit --try N` has held back", NULL },
    { VERB_USAGE, "usage", "", 0, 0, BIT(OPT_JSON), STDIN_NONE,
      "your tokens and jobs, today and this month (UTC)", NULL },
    { VERB_KEYS, "keys", "[list | add 'KEY' | remove FINGERPRINT]", 0, 2, BIT(OPT_JSON), STDIN_NONE,
      "the ssh keys that let you in",
      "  ssh box keys add \"'$(cat new_key.pub)'\"\n"
      "  ssh box keys remove SHA256:...             the last one stays\n" },
    { VERB_MODELS, "models", "", 0, 0, BIT(OPT_JSON), STDIN_NONE, "the models served here", NULL },
    { VERB_POOL, "pool", "", 0, 0, BIT(OPT_JSON), STDIN_NONE, "the state of the pool", NULL },
    { VERB_TOP, "top", "", 0, 0, BIT(OPT_JSON), STDIN_NONE, "the pool, live: workers and your own requests",
      "  ssh -t box top             q leaves, space pauses\n"
      "Without a terminal one page of text; with --json the pool's status, once.\n" },
    { VERB_TRACE, "trace", "[ID]", 0, 1, BIT(OPT_JSON), STDIN_NONE, "where the time of your requests went",
      "Without ID the requests under way and the last that ended.  Of a job's line the ID is `request` in the answer's timings, of a\n"
      "question what `ask --json` calls `request`; its number alone will do.\n" },
    { VERB_TOKENIZE, "tokenize", "[TEXT...]", 0, COMMAND_WORDS_MAX, BIT(OPT_JSON) | BIT(OPT_MODEL) | BIT(OPT_SPECIAL),
      STDIN_FILE, "token ids of a text, or of standard input",
      "  ssh box tokenize <file.txt\n"
      "Words are joined with one space: ssh takes the quotes away.  Standard input is taken byte by byte.\n" },
    { VERB_WHOAMI, "whoami", "", 0, 0, BIT(OPT_JSON), STDIN_NONE, "the user your key belongs to", NULL },
    { VERB_VERSION, "version", "", 0, 0, BIT(OPT_JSON), STDIN_NONE, "the version of the gateway", NULL },
};
_Static_assert(sizeof verb_table / sizeof verb_table[0] == VERB_COUNT, "one row a verb, in the order of their ids");

const struct verb *verb_by_name(const char *name)
{
    for (size_t i = 1; i < VERB_COUNT; i++) {
        if (strcmp(verb_table[i].name, name) == 0)
            return &verb_table[i];
    }
    return NULL;
}

const char *verb_nearest(const char *typed, const char *const *names, size_t n)
{
    const char *best = NULL;
    unsigned best_edits = 3;

    for (size_t i = 0; i < n; i++) {
        unsigned e = edit_distance(span_str(typed), span_str(names[i]));
        if (e < best_edits && e < strlen(names[i])) {
            best = names[i];
            best_edits = e;
        }
    }
    return best;
}

static enum status unknown_verb(const char *typed, struct error *err)
{
    const char *names[VERB_COUNT];

    for (size_t i = 0; i < VERB_COUNT; i++)
        names[i] = verb_table[i].name;
    const char *near = verb_nearest(typed, names + 1, VERB_COUNT - 1);
    if (near != NULL)
        error_set(err, ERR_INVALID_REQUEST, NULL, "there is no verb \"%.40s\"; did you mean \"%s\"?", typed,
                  near);
    else
        error_set(err, ERR_INVALID_REQUEST, NULL, "there is no verb \"%.40s\"; `help` lists them", typed);
    return ST_INVALID;
}

static enum status unknown_option(const struct verb *verb, const char *typed, int option, struct error *err)
{
    const char *names[OPT_COUNT];
    size_t n = 0;

    if (option >= 0) {
        error_set(err, ERR_INVALID_REQUEST, NULL, "`%s` takes no --%s", verb->name,
                  option_table[option].name);
        return ST_INVALID;
    }
    for (int i = 0; i < OPT_COUNT; i++) {
        if (verb->options & BIT(i))
            names[n++] = option_table[i].name;
    }
    const char *near = verb_nearest(typed, names, n);
    if (near != NULL)
        error_set(err, ERR_INVALID_REQUEST, NULL, "there is no option --%.40s; did you mean --%s?", typed,
                  near);
    else
        error_set(err, ERR_INVALID_REQUEST, NULL, "there is no option --%.40s; `help %s` lists them", typed,
                  verb->name);
    return ST_INVALID;
}

/* Digits only, no sign, no overflow. */
static bool parse_count(const char *s, size_t n, uint64_t *ret)
{
    uint64_t v = 0;

    if (n == 0)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || __builtin_mul_overflow(v, (uint64_t)10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(s[i] - '0'), &v))
            return false;
    }
    *ret = v;
    return true;
}

static bool parse_time_ms(const char *s, uint64_t *ret)
{
    static const struct {
        char unit;
        uint64_t ms;
    } units[] = { { 's', 1000 }, { 'm', 60000 }, { 'h', 3600000 }, { 'd', 86400000 } };
    size_t n = strlen(s);

    if (n < 2)
        return false;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (s[n - 1] == units[i].unit)
            return parse_count(s, n - 1, ret) && *ret > 0 && !__builtin_mul_overflow(*ret, units[i].ms, ret);
    }
    return false;
}

static bool parse_decimal(const char *s, double *ret)
{
    const char *digits = s + (s[0] == '-');
    char *end;

    if (digits[0] < '0' || digits[0] > '9' || strspn(digits, "0123456789.") != strlen(digits))
        return false;
    errno = 0;
    double v = strtod(s, &end);
    if (*end != '\0' || errno != 0)
        return false;
    *ret = v;
    return true;
}

/* Which of the words "a|b|c" it is, from 1. */
static bool parse_choice(const char *words, const char *s, uint64_t *ret)
{
    size_t n = strlen(s);
    uint64_t which = 1;

    for (const char *w = words; *w != '\0'; w += strcspn(w, "|"), which++) {
        w += *w == '|';
        if (strcspn(w, "|") == n && memcmp(w, s, n) == 0) {
            *ret = which;
            return true;
        }
    }
    return false;
}

static bool may_be_zero(int option)
{
    return option == OPT_SEED || option == OPT_DRAW;
}

/* What an option's value must be, for the message about one that is not. */
static void describe_wanted(int option, char *text, size_t bytes)
{
    uint64_t max = option_table[option].max;

    switch (option_table[option].type) {
    case TYPE_COUNT:
        snprintf(text, bytes, "an integer from %d to %" PRIu64, may_be_zero(option) ? 0 : 1, max);
        break;
    case TYPE_TIME:
        snprintf(text, bytes, "a time such as 90s, 30m, 8h or 2d");
        break;
    case TYPE_DECIMAL:
        snprintf(text, bytes, "a number from %g to %g", option_table[option].low, option_table[option].high);
        break;
    case TYPE_CHOICE:
        snprintf(text, bytes, "one of %s", option_table[option].value);
        break;
    case TYPE_LIST:
        snprintf(text, bytes, "a text");
        break;
    case TYPE_FLAG:
    case TYPE_TEXT:
        snprintf(text, bytes, "a text of 1 to %" PRIu64 " bytes", max);
        break;
    }
}

/* One more of an option that may repeat. */
static bool add_to_list(struct verb_call *call, const char *value)
{
    if (value[0] == '\0' || call->n_stops == STOPS_MAX)
        return false;
    call->stops[call->n_stops++] = value;
    return true;
}

static enum status set_option(struct verb_call *call, int option, const char *value, struct error *err)
{
    const char *name = option_table[option].name;
    uint64_t max = option_table[option].max, number = 0;
    double real = 0;
    bool ok = true;

    if (call->has[option] && option_table[option].type != TYPE_LIST) {
        error_set(err, ERR_INVALID_REQUEST, NULL, "--%s is given twice", name);
        return ST_INVALID;
    }
    switch (option_table[option].type) {
    case TYPE_FLAG:
        break;
    case TYPE_TEXT:
        ok = value[0] != '\0';
        number = strlen(value);
        break;
    case TYPE_COUNT:
        ok = parse_count(value, strlen(value), &number) && (number > 0 || may_be_zero(option));
        break;
    case TYPE_TIME:
        ok = parse_time_ms(value, &number);
        break;
    case TYPE_DECIMAL:
        ok = parse_decimal(value, &real);
        break;
    case TYPE_CHOICE:
        ok = parse_choice(option_table[option].value, value, &number);
        max = number;
        break;
    case TYPE_LIST:
        number = call->n_stops + 1;
        ok = add_to_list(call, value) || number > max;
        break;
    }
    if (!ok) {
        char wanted[64];
        describe_wanted(option, wanted, sizeof wanted);
        error_set(err, ERR_INVALID_PARAMETER, name, "--%s wants %s, not \"%.60s\"", name, wanted, value);
        return ST_INVALID;
    }
    if (number > max && option_table[option].type == TYPE_TEXT) {
        error_set(err, ERR_LIMIT_EXCEEDED, name, "--%s has %" PRIu64 " bytes, the limit is %" PRIu64, name,
                  number, max);
        return ST_INVALID;
    }
    if (number > max) {
        error_set(err, ERR_LIMIT_EXCEEDED, name, "--%s %.40s is over the limit of %" PRIu64 "%s", name, value, max,
                  option == OPT_DEADLINE ? " ms" : "");
        return ST_INVALID;
    }
    if (option_table[option].type == TYPE_DECIMAL && (real < option_table[option].low || real > option_table[option].high)) {
        error_set(err, ERR_LIMIT_EXCEEDED, name, "--%s %.40s is over the limits of %g and %g", name, value,
                  option_table[option].low, option_table[option].high);
        return ST_INVALID;
    }
    call->has[option] = true;
    call->text[option] = value;
    call->number[option] = number;
    call->real[option] = real;
    return ST_OK;
}

static int option_by_name(const char *name, size_t n)
{
    for (int i = 0; i < OPT_COUNT; i++) {
        if (strlen(option_table[i].name) == n && memcmp(option_table[i].name, name, n) == 0)
            return i;
    }
    return -1;
}

/* word is "--name" or "--name=value"; next is the word behind it, or NULL.  *ret_used_next: it was the value. */
static enum status parse_option(struct verb_call *call, const char *word, const char *next,
                                bool *ret_used_next, struct error *err)
{
    const char *name = word + 2, *equals = strchr(name, '=');
    size_t n = equals != NULL ? (size_t)(equals - name) : strlen(name);
    int option = option_by_name(name, n);
    bool used_next = false;
    const char *value = NULL;

    if (option < 0 || !(call->verb->options & BIT(option))) {
        char typed[41];
        snprintf(typed, sizeof typed, "%.*s", (int)(n < 40 ? n : 40), name);
        return unknown_option(call->verb, typed, option, err);
    }
    if (option_table[option].type == TYPE_FLAG) {
        if (equals != NULL) {
            error_set(err, ERR_INVALID_REQUEST, NULL, "--%s takes no value", option_table[option].name);
            return ST_INVALID;
        }
    } else if (equals != NULL) {
        value = equals + 1;
    } else if (next != NULL) {
        value = next;
        used_next = true;
    } else {
        error_set(err, ERR_INVALID_REQUEST, NULL, "--%s wants %s", option_table[option].name,
                  option_table[option].value);
        return ST_INVALID;
    }
    enum status st = set_option(call, option, value, err);
    if (st == ST_OK)
        *ret_used_next = used_next;
    return st;
}

static enum status parse_words(const struct command_line *line, size_t at, struct verb_call *call,
                               struct error *err)
{
    bool options_end = false;
    size_t n = 0;

    for (; at < line->n; at++) {
        const char *word = line->words[at];
        if (!options_end && strcmp(word, "--") == 0) {
            options_end = true;
        } else if (!options_end && strncmp(word, "--", 2) == 0) {
            bool used_next = false;
            enum status st = parse_option(call, word, line->words[at + 1], &used_next, err);
            if (st != ST_OK)
                return st;
            at += used_next;
        } else {
            call->memory[n++] = line->words[at];
        }
    }
    call->args = call->memory;
    call->n_args = n;
    if (n < call->verb->args_min || n > call->verb->args_max) {
        error_set(err, ERR_INVALID_REQUEST, NULL,
                  n < call->verb->args_min ? "`%s` wants %s" : "too many words: `%s` takes %s",
                  call->verb->name, call->verb->args[0] != '\0' ? call->verb->args : "options only");
        return ST_INVALID;
    }
    return ST_OK;
}

enum status verb_parse(const struct command_line *line, struct verb_call *ret_call, struct error *err)
{
    struct verb_call call = { .verb = &verb_table[VERB_HOME] };
    size_t at = 0;

    if (line->n > 0 && strcmp(line->words[0], "--json") != 0) {
        const char *name = line->words[0];
        if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
            name = "help";
        if (strcmp(name, "--version") == 0)
            name = "version";
        call.verb = verb_by_name(name);
        if (call.verb == NULL)
            return unknown_verb(name, err);
        at = 1;
    }
    call.memory = calloc(line->n + 1, sizeof *call.memory);
    if (call.memory == NULL) {
        error_set(err, ERR_INTERNAL, NULL, "out of memory");
        return ST_NOMEM;
    }
    enum status st = parse_words(line, at, &call, err);
    if (st == ST_OK)
        *ret_call = call;
    else
        verb_call_deinit(&call);
    return st;
}

void verb_call_deinit(struct verb_call *call)
{
    free(call->memory);
    *call = (struct verb_call){ 0 };
}

static void help_of_all(FILE *out)
{
    fprintf(out, "Usage: ssh HOST VERB [OPTIONS]\n\n");
    for (size_t i = 1; i < VERB_COUNT; i++) {
        const struct verb *v = &verb_table[i];
        char head[64];
        snprintf(head, sizeof head, "%s %s", v->name, v->args);
        fprintf(out, "  %-22s %s\n", head, v->summary);
    }
    fprintf(out, "\nJOB is an id, its beginning, a name, or `last`.  `help VERB` tells more.  Every verb "
                 "takes --json.\n"
                 "Files: `sftp HOST` or `scp FILE HOST:inbox/`; what is put into inbox/ becomes a job, jobs/JOB/ has its files.\n"
                 "Exit codes: 0 ok, 1 some lines failed, 2 usage, 3 not found, 4 refused, 5 pool "
                 "unreachable, 6 job was\n"
                 "cancelled, expired or failed, 7 request failed, 8 internal error, 130 interrupted.\n");
}

char *verb_help(const struct verb *verb)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    if (out == NULL)
        return NULL;
    if (verb == NULL) {
        help_of_all(out);
    } else {
        fprintf(out, "%s %s\n  %s\n", verb->name, verb->args, verb->summary);
        if (verb->options != 0)
            fprintf(out, "\n");
        for (int i = 0; i < OPT_COUNT; i++) {
            char head[64];
            if (!(verb->options & BIT(i)))
                continue;
            snprintf(head, sizeof head, "--%s%s%s", option_table[i].name, option_table[i].value ? " " : "",
                     option_table[i].value ? option_table[i].value : "");
            fprintf(out, "  %-28s %s\n", head, option_table[i].help);
        }
        if (verb->details != NULL)
            fprintf(out, "\n%s", verb->details);
    }
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

enum exit_code verb_exit_of(enum error_code code)
{
    switch (code) {
    case ERR_NONE:
        return EXIT_OK;
    case ERR_NOT_FOUND:
        return EXIT_NOT_FOUND;
    case ERR_UNREACHABLE:
    case ERR_NO_WORKER:
    case ERR_SHUTTING_DOWN:
        return EXIT_UNREACHABLE;
    case ERR_DEADLINE_EXCEEDED:
    case ERR_CANCELLED:
    case ERR_SLOW_READER:
    case ERR_WORKER_KILLER:
        return EXIT_REQUEST_FAILED;
    case ERR_INTERNAL:
    case ERR_MALFORMED_MESSAGE:
    case ERR_VERSION_MISMATCH:
        return EXIT_INTERNAL;
    default:
        return EXIT_REFUSED;
    }
}
