/* command_line.c - words and quotes, in one pass over the bytes.
 *
 * The result can never be longer than the text, so one buffer of the text's size holds all words with their NULs: each word
 * but the last is followed by at least one separator, whose place the NUL takes. */
#include "command_line.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

static bool is_blank(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

struct splitter {
    struct span in;
    size_t at; /* next byte to read */
    char *out; /* next byte to write */
};

/* Read one word, which begins at s->at.  The outputs are bytes at s->out; no NUL is added. */
static enum status read_word(struct splitter *s, struct error *err)
{
    while (s->at < s->in.n && !is_blank(s->in.at[s->at])) {
        uint8_t c = s->in.at[s->at++];
        if (c == '\\') {
            if (s->at == s->in.n) {
                error_set(err, ERR_INVALID_REQUEST, NULL, "the command ends in a backslash");
                return ST_INVALID;
            }
            *s->out++ = (char)s->in.at[s->at++];
        } else if (c == '\'' || c == '"') {
            for (;;) {
                if (s->at == s->in.n) {
                    error_set(err, ERR_INVALID_REQUEST, NULL, "the command has an open %s quote",
                              c == '"' ? "double" : "single");
                    return ST_INVALID;
                }
                uint8_t d = s->in.at[s->at++];
                if (d == c)
                    break;
                if (c == '"' && d == '\\' && s->at < s->in.n &&
                    (s->in.at[s->at] == '"' || s->in.at[s->at] == '\\'))
                    d = s->in.at[s->at++];
                *s->out++ = (char)d;
            }
        } else {
            *s->out++ = (char)c;
        }
    }
    return ST_OK;
}

static enum status check_text(struct span text, struct error *err)
{
    if (text.n > COMMAND_BYTES_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED, NULL, "the command has %zu bytes, the limit is %d", text.n,
                  COMMAND_BYTES_MAX);
        return ST_LIMIT;
    }
    if (text.n > 0 && memchr(text.at, 0, text.n) != NULL) {
        error_set(err, ERR_INVALID_REQUEST, NULL, "the command has a NUL byte");
        return ST_INVALID;
    }
    if (!utf8_valid(text)) {
        error_set(err, ERR_INVALID_REQUEST, NULL, "the command is not UTF-8");
        return ST_INVALID;
    }
    return ST_OK;
}

enum status command_line_split(struct span text, struct command_line *ret_line, struct error *err)
{
    struct command_line line = { 0 };
    struct splitter s = { .in = text };
    enum status st = check_text(text, err);

    if (st != ST_OK)
        return st;
    line.memory = malloc(text.n + 1);
    line.words = calloc(COMMAND_WORDS_MAX + 1, sizeof *line.words);
    if (line.memory == NULL || line.words == NULL) {
        error_set(err, ERR_INTERNAL, NULL, "out of memory");
        st = ST_NOMEM;
        goto out;
    }
    s.out = line.memory;
    for (;;) {
        while (s.at < text.n && is_blank(text.at[s.at]))
            s.at++;
        if (s.at == text.n)
            break;
        if (line.n == COMMAND_WORDS_MAX) {
            error_set(err, ERR_LIMIT_EXCEEDED, NULL, "the command has more than %d words", COMMAND_WORDS_MAX);
            st = ST_LIMIT;
            goto out;
        }
        line.words[line.n++] = s.out;
        st = read_word(&s, err);
        if (st != ST_OK)
            goto out;
        *s.out++ = '\0';
    }
    *ret_line = line;
    return ST_OK;
out:
    command_line_deinit(&line);
    return st;
}

void command_line_deinit(struct command_line *line)
{
    free(line->memory);
    free(line->words);
    *line = (struct command_line){ 0 };
}
