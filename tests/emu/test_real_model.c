/* SmolLM2 on the emulated CUDA engine: a prompt of 14 tokens and 8 more, which are the reference's; and the logits of the
 * prompt are the CPU backend's, bit for bit.  Without sanitizers: it is 3 billion multiplications on fibers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/support/engine_rig.h"
#include "tests/support/test_model_path.h"

const struct backend_api *backend_cuda(void);

enum { PROMPT = 14, ANSWER = 8 };

/* "1, 2, 3, 4, 5," and what Transformers in float32 goes on with; the second best is always 3 logits behind. */
static const int32_t prompt[PROMPT] = { 33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28, 216, 37, 28 };
static const int32_t answer[ANSWER] = { 216, 38, 28, 216, 39, 28, 216, 40 };

static void smollm2_answers_like_the_reference_with_the_bits_of_the_cpu(void **state)
{
    const struct backend_options o = { .n_threads = 1, .max_rows = 32, .max_seqs = 2, .context_tokens = 64, .n_blocks = 8 };
    const struct sampling greedy = { .top_p = 1, .repetition_penalty = 1 };
    const char *path = test_model_smollm2();
    uint32_t blocks[4];
    struct rig cpu, cuda;
    struct error err;

    (void)state;
    if (path == NULL)
        skip();
    rig_open(&cpu, path, &o);
    cuda = cpu;
    cuda.api = backend_cuda();
    assert_int_equal(cuda.api->open(cpu.model, &cuda.options, &cuda.backend, &err), ST_OK);
    rig_blocks(blocks, 4, 2);

    const size_t n_vocab = cpu.model->n_vocab;
    float *a = malloc(n_vocab * sizeof(*a)), *b = malloc(n_vocab * sizeof(*b));
    struct plan_entry e = { .tokens = prompt, .n_tokens = PROMPT, .blocks = blocks, .from_entry = -1, .want = WANT_LOGITS };
    e.logits = a;
    rig_step(&cpu, &e, 1, NULL);
    e.logits = b;
    rig_step(&cuda, &e, 1, NULL);
    for (size_t i = 0; i < n_vocab; i++)
        if (memcmp(a + i, b + i, sizeof(*a)) != 0)
            fail_msg("logit %zu is %a, the CPU has %a", i, (double)b[i], (double)a[i]);

    struct step_result r;
    e = (struct plan_entry){ .tokens = prompt, .n_tokens = PROMPT, .blocks = blocks, .from_entry = -1, .want = WANT_TOKEN,
                             .sampling = &greedy };
    for (uint32_t i = 0; i < ANSWER; i++) {
        rig_step(&cuda, &e, 1, &r);
        assert_int_equal(r.token, answer[i]);
        e.n_past += e.n_tokens;
        e.n_tokens = 1;
        e.from_entry = 0;
        e.index = i + 1;
    }
    free(a);
    free(b);
    cuda.api->close(cuda.backend);
    rig_close(&cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(smollm2_answers_like_the_reference_with_the_bits_of_the_cpu) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
