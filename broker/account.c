/* account.c - see account.h.  At most ACCOUNTS_MAX names are compared a message: a few microseconds at the very worst. */
#include "account.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* A number whose user has nothing under way, idle for longest; or the next unused one. */
static int64_t free_number(const struct accounts *a)
{
    int64_t oldest = -1;

    if (a->n < ACCOUNTS_MAX)
        return a->n;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->list[i].n_live == 0 && (oldest < 0 || a->list[i].last_seen_ns < a->list[oldest].last_seen_ns))
            oldest = i;
    return oldest;
}

enum status accounts_number(struct accounts *a, const char *name, struct fair_queue *q, uint64_t now_ns, uint32_t *ret_number)
{
    assert(name[0] != '\0' && strlen(name) < USER_NAME_BYTES);
    int64_t at = -1;

    for (uint32_t i = 0; i < a->n && at < 0; i++)
        if (strcmp(a->list[i].name, name) == 0)
            at = i;
    if (at < 0) {
        at = free_number(a);
        if (at < 0)
            return ST_FULL;
        if (at == a->n)
            a->n++;
        else
            fair_queue_reset_user(q, (uint32_t)at);
        a->list[at] = (struct account){ 0 };
        snprintf(a->list[at].name, sizeof(a->list[at].name), "%s", name);
    }
    a->list[at].last_seen_ns = now_ns;
    *ret_number = (uint32_t)at;
    return ST_OK;
}

enum { DAY_MS = 24 * 3600 * 1000 };

uint64_t account_tokens_today(const struct account *a, int64_t real_ms)
{
    return a->day == real_ms / DAY_MS ? a->tokens_today : 0;
}

void account_count(struct account *a, uint64_t tokens, int64_t real_ms)
{
    a->tokens_today = account_tokens_today(a, real_ms) + tokens;
    a->day = real_ms / DAY_MS;
}

void accounts_of_group(const struct accounts *a, const char *group, int64_t real_ms, struct account *ret_sum)
{
    struct account sum = { 0 };

    for (uint32_t i = 0; i < a->n; i++) {
        const struct account *one = &a->list[i];
        if (strcmp(one->group, group) != 0)
            continue;
        sum.n_live += one->n_live;
        sum.n_running += one->n_running;
        sum.tokens_today += account_tokens_today(one, real_ms);
    }
    *ret_sum = sum;
}
