/* stop_match.c - one Knuth-Morris-Pratt automaton for each stop string, all fed byte by byte.
 *
 * At most STOPS_MAX small integers of state, and the largest of them is exactly how much must be held back: it is the longest
 * suffix of the text that begins some stop string.  One automaton for all strings (Aho-Corasick) would do the same with
 * thousands of states to build for a request that mostly has one or two strings. */
#include "stop_match.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "utf8.h"

static enum status check(const struct span *stops, size_t n_stops, struct error *err)
{
    char param[24];

    if (n_stops > STOPS_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED, "stop", "%zu stop strings, limit %d (STOPS_MAX)", n_stops,
                  STOPS_MAX);
        return ST_LIMIT;
    }
    for (size_t i = 0; i < n_stops; i++) {
        snprintf(param, sizeof(param), "stop[%zu]", i);
        if (stops[i].n > STOP_BYTES_MAX) {
            error_set(err, ERR_LIMIT_EXCEEDED, param, "stop string has %zu bytes, limit %d (STOP_BYTES_MAX)",
                      stops[i].n, STOP_BYTES_MAX);
            return ST_LIMIT;
        }
        if (stops[i].n == 0 || !utf8_valid(stops[i])) {
            error_set(err, ERR_INVALID_PARAMETER, param,
                      stops[i].n == 0 ? "stop string is empty" : "stop string is not UTF-8");
            return ST_INVALID;
        }
    }
    return ST_OK;
}

/* next[k]: the longest proper prefix of the string's first k bytes that also ends them. */
static void fill_next(const uint8_t *text, uint16_t n, uint16_t *next)
{
    uint16_t k = 0;

    next[0] = next[1] = 0;
    for (uint16_t i = 1; i < n; i++) {
        while (k > 0 && text[i] != text[k])
            k = next[k];
        if (text[i] == text[k])
            k++;
        next[i + 1] = k;
    }
}

enum status stop_set_init(struct stop_set *ret_set, const struct span *stops, size_t n_stops,
                          struct error *err)
{
    enum status st = check(stops, n_stops, err);

    if (st != ST_OK)
        return st;
    ret_set->n = (uint32_t)n_stops;
    for (size_t i = 0; i < n_stops; i++) {
        ret_set->bytes[i] = (uint16_t)stops[i].n;
        memcpy(ret_set->text[i], stops[i].at, stops[i].n);
        fill_next(ret_set->text[i], ret_set->bytes[i], ret_set->next[i]);
    }
    return ST_OK;
}

/* Take one byte into every automaton.  Returns the length of the longest string that it completes, 0 for none. */
static uint16_t step(struct stop_match *m, const struct stop_set *set, uint8_t b)
{
    uint16_t longest = 0, held = 0;

    for (uint32_t s = 0; s < set->n; s++) {
        uint16_t k = m->matched[s];

        while (k > 0 && set->text[s][k] != b)
            k = set->next[s][k];
        if (set->text[s][k] == b)
            k++;
        m->matched[s] = k;
        if (k > held)
            held = k;
        if (k == set->bytes[s] && k > longest) {
            longest = k;
            m->which = (uint8_t)s;
        }
    }
    m->n_held = held;
    return longest;
}

/* The text so far is what was held and b; keep its last m->n_held bytes and release the rest.  Returns the bytes released. */
static size_t shift(struct stop_match *m, uint16_t n_before, uint8_t b, uint16_t n_keep, uint8_t *out)
{
    uint8_t all[STOP_BYTES_MAX + 1];
    size_t n_all = (size_t)n_before + 1, n_out = n_all - n_keep;

    assert(n_keep <= n_all);
    memcpy(all, m->held, n_before);
    all[n_before] = b;
    memcpy(out, all, n_out);
    memcpy(m->held, all + n_out, n_keep < STOP_BYTES_MAX ? n_keep : STOP_BYTES_MAX);
    return n_out;
}

size_t stop_match_push(struct stop_match *m, const struct stop_set *set, struct span in, uint8_t *out)
{
    size_t n_out = 0;

    for (size_t i = 0; i < in.n && !m->hit; i++) {
        uint16_t n_before = m->n_held;
        uint16_t stop = step(m, set, in.at[i]);

        if (stop == 0 && n_before == 0 && m->n_held == 0) { /* the usual byte */
            out[n_out++] = in.at[i];
            continue;
        }
        /* A stop string that is complete lies within what is held: held is the longest beginning of any of them. */
        assert(stop <= m->n_held);
        n_out += shift(m, n_before, in.at[i], stop > 0 ? stop : m->n_held, out + n_out);
        m->hit = stop > 0;
    }
    assert(n_out <= in.n + STOP_BYTES_MAX);
    return n_out;
}

size_t stop_match_finish(struct stop_match *m, uint8_t *out)
{
    size_t n = m->hit ? 0 : m->n_held;

    memcpy(out, m->held, n);
    memset(m->matched, 0, sizeof(m->matched));
    m->n_held = 0;
    return n;
}
