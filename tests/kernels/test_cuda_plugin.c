/* The CUDA plug-in as the worker meets it: loads on any machine, has the right table, and says in words why it cannot serve
 * where there is no GPU.  (What it computes is tested on the emulation and, with a GPU, by tests/gpu/run.sh.) */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "backend.h"
#include "tests/support/synthetic_model.h"
#include "version.h"

static const struct backend_api *load(void)
{
    const char *folder = getenv("WEIR_BIN");
    const struct backend_api *(*entry)(void) = NULL;
    char path[4096];

    snprintf(path, sizeof(path), "%s/libweir_cuda.so", folder != NULL ? folder : "build/bin");
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return NULL;
    void *symbol = dlsym(handle, "backend_cuda");
    assert_non_null(symbol);
    assert_null(dlsym(handle, "matrix_pack")); /* nothing else shows: the worker has functions of the same names */
    assert_null(dlsym(handle, "error_set"));
    memcpy(&entry, &symbol, sizeof(entry));
    return entry();
}

static void it_has_the_table_the_worker_expects(void **state)
{
    const struct backend_api *api = load();

    (void)state;
    if (api == NULL)
        skip();
    assert_int_equal(api->abi, BACKEND_ABI);
    assert_int_equal(api->bytes, sizeof(*api));
    assert_string_equal(api->name, "cuda");
    assert_string_equal(api->build_id, version_build_id());
}

static void it_opens_a_device_or_says_why_not(void **state)
{
    const struct synthetic_shape shape = { .n_layers = 1, .n_embd = 64, .n_ff = 64, .n_heads = 2, .n_kv_heads = 1, .head_dim = 32,
                                           .n_vocab = 64, .context_tokens = 64, .weights = TENSOR_Q8_0, .seed = 1 };
    const struct backend_options o = { .n_blocks = 4, .max_rows = 8, .max_seqs = 2 };
    const struct backend_api *api = load();
    const struct model *m;
    struct memory_plan plan;
    struct error err = { 0 };

    (void)state;
    if (api == NULL)
        skip();
    struct synthetic *s = synthetic_new(&shape, &m);
    enum status st = api->plan_memory(m, &o, &plan, &err);
    if (st == ST_OK) {
        print_message("a device is here\n");
    } else {
        print_message("%s\n", err.message);
        assert_true(st == ST_NOT_FOUND || st == ST_UNSUPPORTED);
        assert_non_null(strstr(err.message, "CUDA"));
        assert_string_equal(err.param, "--device");
    }
    synthetic_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_has_the_table_the_worker_expects),
        cmocka_unit_test(it_opens_a_device_or_says_why_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
