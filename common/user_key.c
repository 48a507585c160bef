/* user_key.c - takes a line of authorized_keys apart (the format is described in sshd(8)).
 *
 * An option that would be skipped is refused: who writes command="..." relies on it.  A blob is looked into, so that a line cut
 * by a mail program is found when it is added and not when its owner cannot log in. */
#include "user_key.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

static const char *const key_types[] = {
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
};

static const char *const key_options[] = {
    "from=", "expiry-time=", "restrict", "no-pty", "no-agent-forwarding", "no-port-forwarding", "no-x11-forwarding",
    "no-user-rc",
};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))
static const char blanks[] = " \t\r\n";

static bool is_key_type(struct span word)
{
    for (size_t i = 0; i < COUNT(key_types); i++)
        if (span_is(word, key_types[i]))
            return true;
    return false;
}

static struct span next_word(const char **line)
{
    const char *at = *line + strspn(*line, blanks);
    size_t n = strcspn(at, blanks);

    *line = at + n;
    return span_of(at, n);
}

/* The options before the type: up to a blank outside of quotes. */
static struct span next_options(const char **line)
{
    const char *at = *line + strspn(*line, blanks), *p = at;
    bool quoted = false;

    for (; *p != '\0' && (quoted || strchr(blanks, *p) == NULL); p++) {
        if (*p == '\\' && p[1] == '"')
            p++;
        else if (*p == '"')
            quoted = !quoted;
    }
    *line = p;
    return span_of(at, (size_t)(p - at));
}

static bool is_option(struct span option)
{
    for (size_t i = 0; i < COUNT(key_options); i++) {
        size_t n = strlen(key_options[i]);
        bool takes_value = key_options[i][n - 1] == '=';

        if ((takes_value ? option.n > n : option.n == n) && strncasecmp((const char *)option.at, key_options[i], n) == 0)
            return true;
    }
    return false;
}

static enum status check_options(struct span options, const char *where, struct error *err)
{
    size_t begin = 0;
    bool quoted = false;

    for (size_t i = 0; i <= options.n; i++) {
        if (i < options.n && options.at[i] == '\\' && i + 1 < options.n && options.at[i + 1] == '"') {
            i++;
        } else if (i < options.n && options.at[i] == '"') {
            quoted = !quoted;
        } else if (i == options.n || (options.at[i] == ',' && !quoted)) {
            struct span option = span_of(options.at + begin, i - begin);
            if (!is_option(option)) {
                error_set(err, ERR_UNSUPPORTED_PARAMETER, where, "\"%.*s\" is neither a key type nor an option that is implemented",
                          (int)(option.n < 60 ? option.n : 60), (const char *)option.at);
                return ST_UNSUPPORTED;
            }
            begin = i + 1;
        }
    }
    if (quoted) {
        error_set(err, ERR_INVALID_PARAMETER, where, "the options of the key end inside quotes");
        return ST_INVALID;
    }
    return ST_OK;
}

static int base64_digit(uint8_t c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Is it padded base64 of something that begins as an SSH public key of this type does: u32 length, the type's name?  (RFC 4253, 6.6) */
static bool blob_ok(struct span blob, struct span type)
{
    uint8_t head[64];
    size_t n_head = 0, n_digits = blob.n;

    if (blob.n < 16 || blob.n % 4 != 0)
        return false;
    for (int k = 0; k < 2 && blob.at[n_digits - 1] == '='; k++)
        n_digits--;
    for (size_t i = 0; i < n_digits; i++)
        if (base64_digit(blob.at[i]) < 0)
            return false;
    for (size_t i = 0; i + 4 <= n_digits && n_head + 3 <= sizeof(head); i += 4) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 4; k++)
            bits = bits << 6 | (uint32_t)base64_digit(blob.at[i + k]);
        head[n_head++] = (uint8_t)(bits >> 16);
        head[n_head++] = (uint8_t)(bits >> 8);
        head[n_head++] = (uint8_t)bits;
    }
    return n_head >= 4 + type.n && head[0] == 0 && head[1] == 0 && head[2] == 0 && head[3] == type.n &&
           memcmp(head + 4, type.at, type.n) == 0;
}

static char *copy(struct span text)
{
    return text.n > 0 ? strndup((const char *)text.at, text.n) : strdup("");
}

static enum status fill(struct user_key *k, struct span type, struct span blob, struct span comment, struct span options,
                        struct error *err)
{
    k->type = copy(type);
    k->blob = copy(blob);
    k->comment = copy(comment);
    k->options = copy(options);
    if (k->type != NULL && k->blob != NULL && k->comment != NULL && k->options != NULL)
        return ST_OK;
    user_key_deinit(k);
    error_set(err, ERR_INTERNAL, NULL, "out of memory while a key was read");
    return ST_NOMEM;
}

enum status user_key_parse(const char *line, const char *where, struct user_key *ret_key, struct error *err)
{
    const char *rest = line;
    struct span options = { 0 }, type = next_word(&rest);
    struct user_key key = { 0 };

    if (strlen(line) > USER_KEY_LINE_BYTES_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED, where, "the key has %zu bytes with its comment, the limit is %d", strlen(line),
                  USER_KEY_LINE_BYTES_MAX);
        return ST_LIMIT;
    }
    if (!is_key_type(type)) {
        rest = line;
        options = next_options(&rest);
        enum status st = check_options(options, where, err);
        if (st != ST_OK)
            return st;
        type = next_word(&rest);
    }
    struct span blob = next_word(&rest);
    if (!is_key_type(type)) {
        error_set(err, ERR_UNSUPPORTED_PARAMETER, where, "\"%.*s\" is no key type that is taken", (int)(type.n < 60 ? type.n : 60),
                  type.n > 0 ? (const char *)type.at : "");
        return ST_UNSUPPORTED;
    }
    if (!blob_ok(blob, type)) {
        error_set(err, ERR_INVALID_PARAMETER, where, "the key is not the base64 of a key of type %.*s", (int)type.n,
                  (const char *)type.at);
        return ST_INVALID;
    }
    rest += strspn(rest, blanks);
    size_t n = strlen(rest);
    while (n > 0 && strchr(blanks, rest[n - 1]) != NULL)
        n--;
    if (strcspn(rest, "\r\n") < n) {
        error_set(err, ERR_INVALID_PARAMETER, where, "the key is more than one line");
        return ST_INVALID;
    }
    enum status st = fill(&key, type, blob, span_of(rest, n), options, err);
    if (st == ST_OK)
        *ret_key = key;
    return st;
}

void user_key_deinit(struct user_key *k)
{
    free(k->type);
    free(k->blob);
    free(k->comment);
    free(k->options);
    *k = (struct user_key){ 0 };
}
