/* Rows of every weight type as floats, against what another implementation made of the same random blocks
 * (make_dequant_vectors.py): straight from the file's bytes, and from the panels the kernels read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cpu/pack.h"

#define DATA "tests/reference/data/dequant.bin"

enum { NUMBERS = 1024, BYTES = 4096, TYPES = 10 };

struct record {
    uint32_t type, n_bytes, n;
    uint8_t bytes[BYTES];
    float want[NUMBERS];
};

static bool read_record(FILE *in, struct record *r)
{
    uint32_t head[3];

    if (fread(head, sizeof(head), 1, in) != 1)
        return false;
    *r = (struct record){ .type = head[0], .n_bytes = head[1], .n = head[2] };
    assert_true(r->n_bytes <= BYTES && r->n <= NUMBERS);
    assert_int_equal(fread(r->bytes, 1, r->n_bytes, in), r->n_bytes);
    assert_int_equal(fread(r->want, sizeof(float), r->n, in), r->n);
    return true;
}

static void check(const struct record *r)
{
    const struct tensor t = { .type = (enum tensor_type)r->type, .n_rows = 1, .n_cols = r->n, .data = r->bytes, .bytes = r->n_bytes };
    struct matrix m;
    float got[NUMBERS];

    assert_int_equal(tensor_row_bytes(t.type, t.n_cols), r->n_bytes);
    tensor_row(&t, 0, got);
    assert_memory_equal(got, r->want, r->n * sizeof(float));

    assert_int_equal(matrix_init(&m, &t), ST_OK);
    m.data = aligned_alloc(64, matrix_bytes(&m));
    assert_non_null(m.data);
    matrix_pack(&m, &t, 0, 0, m.n_panels);
    matrix_row(&m, 0, got);
    assert_memory_equal(got, r->want, r->n * sizeof(float));
    free(m.data);
}

static void rows_are_what_the_gguf_package_makes_of_them(void **state)
{
    static struct record r;
    uint32_t n = 0;
    FILE *in = fopen(DATA, "rb");

    (void)state;
    assert_non_null(in);
    for (; read_record(in, &r); n++)
        check(&r);
    fclose(in);
    assert_int_equal(n, TYPES);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(rows_are_what_the_gguf_package_makes_of_them) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
