/* preparer.c - see preparer.h.  One mutex guards the three lists; it is never held while something is encoded. */
#include "preparer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

static const uint64_t slice = 50000; /* units of encoder_step(): about half a millisecond */

struct list {
    struct request *first, *last;
};

enum lane { SHORT, LONG, N_LANES };

struct preparer {
    pthread_t thread;
    bool thread_is_up;
    pthread_mutex_t lock;
    pthread_cond_t given, short_done;
    struct list lanes[N_LANES], done; /* under lock */
    uint32_t n_short;                 /* under lock: short ones that are not in done */
    bool stop;                        /* under lock */
    struct encoder *encoders[N_LANES];
    struct request *current[N_LANES]; /* the thread's: being encoded, with its time so far in tokenize_ns */
    int fd;
};

static void push(struct list *l, struct request *r)
{
    r->next = NULL;
    if (l->last != NULL)
        l->last->next = r;
    else
        l->first = r;
    l->last = r;
}

static struct request *pop(struct list *l)
{
    struct request *r = l->first;
    if (r == NULL)
        return NULL;
    l->first = r->next;
    if (l->first == NULL)
        l->last = NULL;
    r->next = NULL;
    return r;
}

static void deliver(struct preparer *p, enum lane lane, struct request *r)
{
    const uint64_t one = 1;
    pthread_mutex_lock(&p->lock);
    push(&p->done, r);
    if (lane == SHORT && --p->n_short == 0)
        pthread_cond_signal(&p->short_done);
    pthread_mutex_unlock(&p->lock);
    ssize_t n = write(p->fd, &one, sizeof(one));
    (void)n; /* EAGAIN: it is readable already */
}

/* Work on the lane's request until it is done, or (long lane) for one slice. */
static void work_on(struct preparer *p, enum lane lane)
{
    struct request *r = p->current[lane];
    struct encoder *e = p->encoders[lane];
    uint64_t began_ns = clock_now_ns();
    enum status st = ST_OK;
    if (request_needs_encoder(r)) {
        st = encoder_step(e, lane == LONG ? slice : UINT64_MAX);
        if (st == ST_OK)
            request_build(r, e);
    } else {
        request_build(r, NULL);
    }
    r->tokenize_ns += clock_now_ns() - began_ns;
    if (st == ST_AGAIN)
        return;
    r->tokenized_ns = clock_now_ns();
    p->current[lane] = NULL;
    deliver(p, lane, r);
}

static void begin(struct preparer *p, enum lane lane, struct request *r)
{
    p->current[lane] = r;
    if (request_needs_encoder(r))
        request_encode(r, p->encoders[lane]); /* an error makes it need the encoder no more */
}

static void *run(void *arg)
{
    struct preparer *p = arg;
    prctl(PR_SET_NAME, "weir-tokenizer");
    for (;;) {
        pthread_mutex_lock(&p->lock);
        while (!p->stop && p->lanes[SHORT].first == NULL && p->lanes[LONG].first == NULL && p->current[LONG] == NULL)
            pthread_cond_wait(&p->given, &p->lock);
        if (p->stop) {
            pthread_mutex_unlock(&p->lock);
            return NULL;
        }
        enum lane lane = p->lanes[SHORT].first != NULL ? SHORT : LONG;
        struct request *r = lane == LONG && p->current[LONG] != NULL ? NULL : pop(&p->lanes[lane]);
        pthread_mutex_unlock(&p->lock);
        if (r != NULL)
            begin(p, lane, r);
        work_on(p, lane);
    }
}

static enum status start_thread(struct preparer *p)
{
    sigset_t all, before; /* signals are the main thread's business */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&p->thread, NULL, run, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    p->thread_is_up = rc == 0;
    return rc == 0 ? ST_OK : ST_SYSTEM;
}

enum status preparer_new(const struct request_limits *limits, struct preparer **ret_preparer)
{
    enum status st = ST_SYSTEM;
    struct preparer *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return ST_NOMEM;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->given, NULL);
    pthread_cond_init(&p->short_done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    p->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->fd < 0)
        goto out;
    for (int i = 0; i < N_LANES; i++) {
        st = encoder_new(limits->tokenizer, &p->encoders[i]);
        if (st != ST_OK)
            goto out;
    }
    st = start_thread(p);
    if (st != ST_OK)
        goto out;
    *ret_preparer = p;
    p = NULL;
out:
    preparer_free(p);
    return st;
}

static void free_list(struct list *l)
{
    struct request *r;
    while ((r = pop(l)) != NULL)
        request_free(r);
}

void preparer_free(struct preparer *p)
{
    if (p == NULL)
        return;
    if (p->thread_is_up) {
        pthread_mutex_lock(&p->lock);
        p->stop = true;
        pthread_cond_signal(&p->given);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
    }
    for (int i = 0; i < N_LANES; i++) {
        free_list(&p->lanes[i]);
        request_free(p->current[i]);
        encoder_free(p->encoders[i]);
    }
    free_list(&p->done);
    if (p->fd >= 0)
        close(p->fd);
    pthread_cond_destroy(&p->given);
    pthread_cond_destroy(&p->short_done);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void preparer_give(struct preparer *p, struct request *r)
{
    enum lane lane = request_prompt_bytes(r) >= PREPARER_LONG_BYTES ? LONG : SHORT;
    pthread_mutex_lock(&p->lock);
    push(&p->lanes[lane], r);
    p->n_short += lane == SHORT;
    pthread_cond_signal(&p->given);
    pthread_mutex_unlock(&p->lock);
}

struct request *preparer_take(struct preparer *p)
{
    uint64_t count;
    pthread_mutex_lock(&p->lock);
    struct request *r = pop(&p->done);
    pthread_mutex_unlock(&p->lock);
    if (r == NULL) /* cleared only when the list was seen empty; a later deliver() makes it readable again */
        while (read(p->fd, &count, sizeof(count)) < 0 && errno == EINTR)
            ;
    return r;
}

void preparer_wait_short(struct preparer *p, uint64_t max_ns)
{
    const uint64_t until_ns = clock_now_ns() + max_ns;
    const struct timespec until = { .tv_sec = (time_t)(until_ns / 1000000000), .tv_nsec = (long)(until_ns % 1000000000) };
    pthread_mutex_lock(&p->lock);
    while (p->n_short > 0)
        if (pthread_cond_timedwait(&p->short_done, &p->lock, &until) != 0)
            break;
    pthread_mutex_unlock(&p->lock);
}

int preparer_fd(const struct preparer *p)
{
    return p->fd;
}
