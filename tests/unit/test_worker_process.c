/* weir-worker as a process, started as the broker starts it; the test keeps the other side of the region.  On a tiny model made
 * on the spot, and on the real one where it is on this machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "tests/support/region_broker.h"
#include "tests/support/test_model_path.h"
#include "tests/support/worker_rig.h"

static char program[4096];

struct process {
    struct region_broker broker;
    int pid;
};

static const struct test_request question = {
    .prompt = "The quick brown fox jumps over the lazy dog, and then again over the other one.",
    .flags = WORK_INTERACTIVE | WORK_IGNORE_EOS,
    .max_tokens = 60,
    .sampling = { .temperature = 1, .seed = 4 },
};

/* Take events until `done` says so, at most 60 seconds. */
static bool wait_until(struct process *p, bool (*done)(struct process *p))
{
    uint64_t end_ns = clock_now_ns() + 60000000000u;
    while (clock_now_ns() < end_ns) {
        if (region_broker_take(&p->broker, 1) == 0) {
            if (done(p))
                return true;
            poll(&(struct pollfd){ .fd = p->broker.bells[1], .events = POLLIN }, 1, 1);
        } else if (done(p)) {
            return true;
        }
    }
    return false;
}

static bool said_ready(struct process *p)
{
    return p->broker.ready || p->broker.failed;
}

static bool answered(struct process *p)
{
    return !p->broker.answers[0].live;
}

static bool said_ten_tokens(struct process *p)
{
    return p->broker.answers[0].choices[0].n_ids >= 10;
}

static void start(struct process *p, const char *model)
{
    char *argv[] = { program, (char *)"--model", (char *)model, (char *)"--device", (char *)"cpu", (char *)"--threads", (char *)"1",
                     (char *)"--kv-blocks", (char *)"256", (char *)"--log-level", (char *)"error", NULL };
    region_broker_open(&p->broker);
    p->pid = region_broker_spawn(&p->broker, argv);
    assert_true(wait_until(p, said_ready));
}

/* How it ended, as waitpid() says. */
static int wait_end(struct process *p)
{
    uint64_t end_ns = clock_now_ns() + 60000000000u;
    int status = 0;
    while (waitpid(p->pid, &status, WNOHANG) == 0) {
        assert_true(clock_now_ns() < end_ns);
        usleep(2000);
    }
    return status;
}

static void stop(struct process *p)
{
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    region_broker_close(&p->broker);
}

static struct test_answer *ask(struct process *p, const struct test_request *q)
{
    region_broker_send(&p->broker, 0, q);
    assert_true(wait_until(p, answered));
    return &p->broker.answers[0];
}

static void fills_its_card_and_answers(void **state)
{
    (void)state;
    struct process p;
    start(&p, worker_rig_model());
    assert_true(p.broker.ready);
    const struct region_card *card = p.broker.region.card;
    assert_int_equal(card->ready, 1);
    assert_int_equal(card->abi, BACKEND_ABI);
    assert_int_equal(card->context_tokens, RIG_CONTEXT);
    assert_int_equal(card->n_vocab, RIG_VOCAB);
    assert_int_equal(card->n_blocks, 256);
    assert_string_equal(card->architecture, "llama");
    assert_string_equal(card->chat_template, "chatml");
    assert_true(card->numerics_id[0] != '\0' && card->device[0] != '\0');
    struct test_answer *a = ask(&p, &question);
    assert_true(a->done);
    assert_int_equal(a->completion_tokens, 60);
    stop(&p);
}

static void serves_only_when_it_is_confined(void **state)
{
    (void)state;
    struct process p;
    char path[64], text[4096];
    start(&p, worker_rig_model());
    snprintf(path, sizeof(path), "/proc/%d/status", p.pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    text[n] = '\0';
    fclose(f);
    assert_non_null(strstr(text, "NoNewPrivs:\t1"));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_non_null(strstr(text, "Seccomp:\t2"));
#endif
    stop(&p);
}

static void a_killed_workers_request_goes_on_in_another_as_if_undisturbed(void **state)
{
    (void)state;
    struct process p, second;
    start(&p, worker_rig_model());
    struct test_answer *a = ask(&p, &question);
    int32_t ids[60];
    char text[4096];
    size_t n_text = a->choices[0].n_text;
    memcpy(ids, a->choices[0].ids, sizeof(ids));
    memcpy(text, test_text(&p.broker, 0, 0), n_text);

    region_broker_send(&p.broker, 0, &question);
    assert_true(wait_until(&p, said_ten_tokens));
    kill(p.pid, SIGKILL);
    int status = wait_end(&p);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    region_broker_take(&p.broker, UINT32_MAX); /* what it had said is all there */
    if (p.broker.answers[0].live) {
        struct test_choice *c = &p.broker.answers[0].choices[0];
        struct test_resume resume = { 0, c->n_ids, (uint32_t)c->n_text, 0, c->ids };
        struct test_request rest = question;
        rest.resume = &resume;
        rest.n_resume = 1;
        start(&second, worker_rig_model());
        struct test_choice *d = &ask(&second, &rest)->choices[0];
        assert_int_equal(d->n_ids, 60);
        assert_memory_equal(d->ids, ids, sizeof(ids));
        assert_int_equal(c->n_text + d->n_text, n_text);
        assert_memory_equal(d->text, text + c->n_text, d->n_text);
        stop(&second);
    }
    region_broker_close(&p.broker);
}

static void ends_within_a_second_of_its_broker(void **state)
{
    (void)state;
    for (int busy = 0; busy < 2; busy++) {
        struct process p;
        struct test_request q = question;
        q.max_tokens = 0;
        start(&p, worker_rig_model());
        if (busy)
            region_broker_send(&p.broker, 0, &q);
        close(p.broker.control[0]);
        p.broker.control[0] = -1;
        wait_end(&p);
        region_broker_close(&p.broker);
    }
}

static void a_drained_worker_ends_well(void **state)
{
    (void)state;
    struct process p;
    start(&p, worker_rig_model());
    region_broker_send(&p.broker, 0, &question);
    region_broker_drain(&p.broker);
    assert_true(wait_until(&p, answered));
    int status = wait_end(&p);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    region_broker_close(&p.broker);
}

static void a_broken_ring_is_an_error_exit(void **state)
{
    (void)state;
    struct process p;
    start(&p, worker_rig_model());
    atomic_store(&p.broker.region.requests.shared->tail, 1u << 30);
    doorbell_ring(&p.broker.region.request_bell);
    int status = wait_end(&p);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0);
    region_broker_close(&p.broker);
}

static void a_worker_that_cannot_start_says_why(void **state)
{
    (void)state;
    struct process p;
    start(&p, "/nowhere/no-model.gguf");
    assert_true(p.broker.failed);
    assert_int_equal(p.broker.region.card->ready, 0);
    assert_non_null(strstr(p.broker.region.card->error, "no-model.gguf"));
    int status = wait_end(&p);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0);
    region_broker_close(&p.broker);
}

static void answers_a_real_question_and_the_same_again_from_the_cache(void **state)
{
    (void)state;
    struct process p;
    const char *model = test_model_smollm2();
    const struct test_message m[] = { { "user", "What is the capital of France? Answer in one word." } };
    struct test_request q = { .messages = m, .n_messages = 1, .max_tokens = 12, .flags = WORK_INTERACTIVE };
    char first[512];
    if (model == NULL)
        skip();
    start(&p, model);
    struct test_answer *a = ask(&p, &q);
    assert_true(a->done);
    snprintf(first, sizeof(first), "%s", test_text(&p.broker, 0, 0));
    assert_non_null(strstr(first, "Paris"));
    a = ask(&p, &q);
    assert_int_equal(a->cached_tokens, a->prompt_tokens - 1);
    assert_string_equal(test_text(&p.broker, 0, 0), first);
    stop(&p);
}

static void run_by_hand_it_plans_and_generates(void **state)
{
    (void)state;
    char command[9000], out[4096];
    static const struct {
        const char *arguments, *expected;
    } cases[] = {
        { "--plan", "context    256 tokens" },
        { "--generate 'the dog' --json --max-tokens 4 --greedy --ignore-eos", "\"completion_tokens\": 4" },
    };
    for (size_t i = 0; i < 2; i++) {
        snprintf(command, sizeof(command), "%s --model %s --kv-blocks 64 %s", program, worker_rig_model(), cases[i].arguments);
        FILE *f = popen(command, "r");
        assert_non_null(f);
        size_t n = fread(out, 1, sizeof(out) - 1, f);
        out[n] = '\0';
        assert_int_equal(pclose(f), 0);
        assert_non_null(strstr(out, cases[i].expected));
    }
}

static void a_device_that_is_not_there_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *device, *expected;
    } cases[] = { { "tpu", "not tpu" }, { "cuda:x", "not cuda:x" }, { "cuda:77", "" } };
    char command[9000], out[4096];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(command, sizeof(command), "%s --model %s --plan --device %s 2>&1", program, worker_rig_model(), cases[i].device);
        FILE *f = popen(command, "r");
        assert_non_null(f);
        size_t n = fread(out, 1, sizeof(out) - 1, f);
        out[n] = '\0';
        assert_int_not_equal(pclose(f), 0);
        if (strstr(out, cases[i].expected) == NULL)
            fail_msg("%s: %s", cases[i].device, out);
    }
}

int main(void)
{
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    char *slash = n > 0 ? strstr(program, "/tests/unit/") : NULL;
    if (slash == NULL)
        return 77;
    snprintf(slash, sizeof(program) - (size_t)(slash - program), "/bin/weir-worker");
    if (access(program, X_OK) != 0) {
        printf("%s is not built\n", program);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_its_card_and_answers),
        cmocka_unit_test(serves_only_when_it_is_confined),
        cmocka_unit_test(a_killed_workers_request_goes_on_in_another_as_if_undisturbed),
        cmocka_unit_test(ends_within_a_second_of_its_broker),
        cmocka_unit_test(a_drained_worker_ends_well),
        cmocka_unit_test(a_broken_ring_is_an_error_exit),
        cmocka_unit_test(a_worker_that_cannot_start_says_why),
        cmocka_unit_test(answers_a_real_question_and_the_same_again_from_the_cache),
        cmocka_unit_test(run_by_hand_it_plans_and_generates),
        cmocka_unit_test(a_device_that_is_not_there_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
