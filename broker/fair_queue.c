/* fair_queue.c - see fair_queue.h for the policy.
 *
 * Items of one user, model, class and priority form a first-in, first-out list (a flow).  Users with something queued stand on an
 * intrusive list, so a pick looks at waiting users only: a few hundred comparisons at the very worst, and a pick happens once a
 * request, not once a token.  A heap would save little and would have to be rebuilt whenever a model has no room. */
#include "fair_queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { NIL = 0xFFFFFFFFu };

struct item {
    uint32_t next, prev; /* within its flow */
    uint32_t user, model;
    uint8_t class, priority;
    bool queued;
    uint64_t cost;
};

struct flow {
    uint32_t head, tail;
};

struct user_state { /* arrays: by class, 0 interactive, 1 batch */
    uint64_t time[2];      /* virtual: tokens given, and never before the class's when it becomes busy there */
    uint32_t n_of_class[2];
    uint32_t n_queued;     /* both */
    uint32_t next, prev; /* list of users with n_queued > 0 */
    bool blocked;
};

struct fair_queue {
    struct item *items;
    struct user_state *users;
    struct flow *flows;  /* [user][model][interactive, batch][priority] */
    struct flow resumed;
    uint32_t n_items, n_users, n_models;
    uint32_t busy_head;  /* users with something queued */
    uint32_t length[QUEUE_CLASSES];
    uint64_t now[2];     /* a class's virtual time: that of its last dispatched user, never falls */
    uint64_t batch_owed; /* interactive tokens dispatched while batch requests waited */
};

enum status fair_queue_new(uint32_t n_items, uint32_t n_users, uint32_t n_models, struct fair_queue **ret_queue)
{
    assert(n_models >= 1 && n_models <= 32);
    size_t n_flows = (size_t)n_users * n_models * 2 * QUEUE_PRIORITIES;
    struct fair_queue *q = calloc(1, sizeof(*q));

    if (q == NULL)
        return ST_NOMEM;
    q->items = calloc(n_items, sizeof(*q->items));
    q->users = calloc(n_users, sizeof(*q->users));
    q->flows = calloc(n_flows, sizeof(*q->flows));
    if (q->items == NULL || q->users == NULL || q->flows == NULL) {
        fair_queue_free(q);
        return ST_NOMEM;
    }
    q->n_items = n_items;
    q->n_users = n_users;
    q->n_models = n_models;
    q->busy_head = NIL;
    q->resumed = (struct flow){ NIL, NIL };
    for (size_t i = 0; i < n_flows; i++)
        q->flows[i] = (struct flow){ NIL, NIL };
    *ret_queue = q;
    return ST_OK;
}

void fair_queue_free(struct fair_queue *q)
{
    if (q == NULL)
        return;
    free(q->items);
    free(q->users);
    free(q->flows);
    free(q);
}

static unsigned index_of(unsigned class)
{
    return class == QUEUE_BATCH;
}

static struct flow *flow_of(const struct fair_queue *q, uint32_t user, uint32_t model, unsigned class, unsigned priority)
{
    if (class == QUEUE_RESUMED)
        return (struct flow *)&q->resumed;
    return &q->flows[(((size_t)user * q->n_models + model) * 2 + index_of(class)) * QUEUE_PRIORITIES + priority];
}

static void busy_add(struct fair_queue *q, uint32_t user)
{
    struct user_state *u = &q->users[user];

    u->next = q->busy_head;
    u->prev = NIL;
    if (q->busy_head != NIL)
        q->users[q->busy_head].prev = user;
    q->busy_head = user;
}

static void busy_drop(struct fair_queue *q, uint32_t user)
{
    struct user_state *u = &q->users[user];

    if (u->next != NIL)
        q->users[u->next].prev = u->prev;
    if (u->prev != NIL)
        q->users[u->prev].next = u->next;
    else
        q->busy_head = u->next;
}

void fair_queue_push(struct fair_queue *q, uint32_t item, uint32_t user, uint32_t model, enum queue_class class,
                     enum queue_priority priority, uint64_t cost)
{
    assert(item < q->n_items);
    assert(user < q->n_users);
    assert(model < q->n_models);
    assert(!q->items[item].queued);
    struct flow *f = flow_of(q, user, model, class, priority);
    struct user_state *u = &q->users[user];

    q->items[item] = (struct item){ .next = NIL, .prev = f->tail, .user = user, .model = model, .class = (uint8_t)class,
                                    .priority = (uint8_t)priority, .queued = true, .cost = cost > 0 ? cost : 1 };
    if (f->tail != NIL)
        q->items[f->tail].next = item;
    else
        f->head = item;
    f->tail = item;
    q->length[class]++;
    if (class == QUEUE_RESUMED)
        return;
    unsigned at = index_of(class);
    if (u->n_of_class[at]++ == 0 && u->time[at] < q->now[at])
        u->time[at] = q->now[at];
    if (u->n_queued++ == 0)
        busy_add(q, user);
}

static void unlink_item(struct fair_queue *q, uint32_t item)
{
    struct item *it = &q->items[item];
    struct flow *f = flow_of(q, it->user, it->model, it->class, it->priority);

    if (it->prev != NIL)
        q->items[it->prev].next = it->next;
    else
        f->head = it->next;
    if (it->next != NIL)
        q->items[it->next].prev = it->prev;
    else
        f->tail = it->prev;
    it->queued = false;
    q->length[it->class]--;
    if (it->class == QUEUE_RESUMED)
        return;
    q->users[it->user].n_of_class[index_of(it->class)]--;
    if (--q->users[it->user].n_queued == 0)
        busy_drop(q, it->user);
}

void fair_queue_remove(struct fair_queue *q, uint32_t item)
{
    assert(fair_queue_holds(q, item));
    unlink_item(q, item);
}

bool fair_queue_holds(const struct fair_queue *q, uint32_t item)
{
    assert(item < q->n_items);
    return q->items[item].queued;
}

void fair_queue_block_user(struct fair_queue *q, uint32_t user, bool blocked)
{
    assert(user < q->n_users);
    q->users[user].blocked = blocked;
}

/* A user's next item of a class for one of the models; NIL when there is none. */
static uint32_t first_of_user(const struct fair_queue *q, uint32_t user, enum queue_class class, uint32_t models)
{
    for (unsigned priority = 0; priority < QUEUE_PRIORITIES; priority++)
        for (uint32_t model = 0; model < q->n_models; model++) {
            const uint32_t head = flow_of(q, user, model, class, priority)->head;

            if (head != NIL && (models >> model & 1) != 0)
                return head;
        }
    return NIL;
}

/* The first item of the user with the least virtual time; equal times go by user number, so that runs repeat. */
static uint32_t best_of_class(const struct fair_queue *q, enum queue_class class, uint32_t models)
{
    uint32_t best = NIL, best_user = NIL;
    unsigned at = index_of(class);

    if (q->length[class] == 0)
        return NIL;
    for (uint32_t user = q->busy_head; user != NIL; user = q->users[user].next) {
        const struct user_state *u = &q->users[user];

        if (u->blocked)
            continue;
        uint64_t time = u->time[at], best_time = best != NIL ? q->users[best_user].time[at] : 0;
        if (best != NIL && (time > best_time || (time == best_time && user > best_user)))
            continue;
        const uint32_t first = first_of_user(q, user, class, models);
        if (first != NIL) {
            best = first;
            best_user = user;
        }
    }
    return best;
}

int64_t fair_queue_pick(const struct fair_queue *q, uint32_t interactive_models, uint32_t batch_models)
{
    uint32_t interactive = best_of_class(q, QUEUE_INTERACTIVE, interactive_models);
    uint32_t batch = best_of_class(q, QUEUE_BATCH, batch_models);

    if (interactive == NIL)
        return batch == NIL ? FAIR_NONE : (int64_t)batch;
    if (batch != NIL && q->batch_owed / FAIR_BATCH_SHARE >= q->items[batch].cost)
        return batch;
    return interactive;
}

uint64_t fair_queue_take(struct fair_queue *q, uint32_t item)
{
    assert(fair_queue_holds(q, item));
    struct item *it = &q->items[item];
    struct user_state *u = &q->users[it->user];
    unsigned at = index_of(it->class);

    unlink_item(q, item);
    if (it->class == QUEUE_RESUMED) /* early in either class */
        return u->time[0] < u->time[1] ? u->time[0] : u->time[1];
    uint64_t tag = u->time[at];
    if (q->now[at] < tag)
        q->now[at] = tag;
    u->time[at] += it->cost;
    if (it->class == QUEUE_BATCH) {
        uint64_t paid = it->cost * FAIR_BATCH_SHARE;

        q->batch_owed = q->batch_owed > paid ? q->batch_owed - paid : 0;
    } else if (q->length[QUEUE_BATCH] > 0) {
        q->batch_owed += it->cost;
    } else {
        q->batch_owed = 0;
    }
    return tag;
}

void fair_queue_settle(struct fair_queue *q, uint32_t user, enum queue_class class, uint64_t charged, uint64_t used)
{
    assert(user < q->n_users && class != QUEUE_RESUMED);
    uint64_t *time = &q->users[user].time[index_of(class)];

    if (used >= charged)
        *time += used - charged;
    else
        *time -= charged - used < *time ? charged - used : *time;
}

void fair_queue_reset_user(struct fair_queue *q, uint32_t user)
{
    assert(user < q->n_users);
    assert(q->users[user].n_queued == 0);
    memcpy(q->users[user].time, q->now, sizeof(q->now));
    q->users[user].blocked = false;
}

int64_t fair_queue_first_resumed(const struct fair_queue *q)
{
    return q->resumed.head == NIL ? FAIR_NONE : (int64_t)q->resumed.head;
}

int64_t fair_queue_next_resumed(const struct fair_queue *q, uint32_t item)
{
    assert(q->items[item].queued && q->items[item].class == QUEUE_RESUMED);
    return q->items[item].next == NIL ? FAIR_NONE : (int64_t)q->items[item].next;
}

uint32_t fair_queue_length(const struct fair_queue *q, enum queue_class class)
{
    return q->length[class];
}

uint32_t fair_queue_user_length(const struct fair_queue *q, uint32_t user)
{
    assert(user < q->n_users);
    return q->users[user].n_queued;
}

uint64_t fair_queue_user_time(const struct fair_queue *q, uint32_t user, enum queue_class class)
{
    assert(user < q->n_users && class != QUEUE_RESUMED);
    return q->users[user].time[index_of(class)];
}

uint32_t fair_queue_ahead(const struct fair_queue *q, uint32_t item, uint32_t most)
{
    assert(fair_queue_holds(q, item));
    const struct item *it = &q->items[item];
    uint32_t n = 0;

    for (unsigned above = 0; it->class != QUEUE_RESUMED && above < it->priority; above++)
        for (uint32_t at = flow_of(q, it->user, it->model, it->class, above)->head; at != NIL && n < most; at = q->items[at].next)
            n++;
    for (uint32_t at = it->prev; at != NIL && n < most; at = q->items[at].prev)
        n++;
    return n;
}

static uint32_t check_flow(const struct fair_queue *q, const struct flow *f, uint32_t user, uint32_t model, unsigned class,
                           unsigned priority)
{
    uint32_t n = 0, prev = NIL;

    for (uint32_t at = f->head; at != NIL; at = q->items[at].next) {
        assert(q->items[at].queued);
        assert(q->items[at].prev == prev);
        assert(q->items[at].class == class);
        assert(class == QUEUE_RESUMED || (q->items[at].user == user && q->items[at].model == model && q->items[at].priority == priority));
        prev = at;
        n++;
        assert(n <= q->n_items);
    }
    assert(f->tail == prev);
    return n;
}

void fair_queue_check(const struct fair_queue *q)
{
    uint32_t n[QUEUE_CLASSES] = { 0 }, n_queued = 0, n_busy = 0;

    n[QUEUE_RESUMED] = check_flow(q, &q->resumed, 0, 0, QUEUE_RESUMED, 0);
    for (uint32_t user = 0; user < q->n_users; user++) {
        uint32_t of_user = 0, of_class[2] = { 0 };

        for (uint32_t model = 0; model < q->n_models; model++)
            for (unsigned class = QUEUE_INTERACTIVE; class <= QUEUE_BATCH; class++) {
                uint32_t length = 0;

                for (unsigned priority = 0; priority < QUEUE_PRIORITIES; priority++)
                    length += check_flow(q, flow_of(q, user, model, class, priority), user, model, class, priority);

                of_user += length;
                of_class[index_of(class)] += length;
                n[class] += length;
            }
        assert(of_user == q->users[user].n_queued);
        assert(memcmp(of_class, q->users[user].n_of_class, sizeof(of_class)) == 0);
        n_busy += of_user > 0;
    }
    for (uint32_t user = q->busy_head; user != NIL; user = q->users[user].next) {
        assert(q->users[user].n_queued > 0);
        n_busy--;
    }
    assert(n_busy == 0);
    for (unsigned class = 0; class < QUEUE_CLASSES; class++)
        assert(n[class] == q->length[class]);
    for (uint32_t i = 0; i < q->n_items; i++)
        n_queued += q->items[i].queued;
    assert(n_queued == n[QUEUE_RESUMED] + n[QUEUE_INTERACTIVE] + n[QUEUE_BATCH]);
}
