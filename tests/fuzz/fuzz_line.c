/* fuzz_line.c - batch lines: weir_line_parse(), and what it leaves goes through weir_line_output() or weir_line_error().
 * Checked beside crashes: a refusal has a code, every line has an id, and weir_line_custom_id() finds the same one. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "limits.h"
#include "weir_batch.h"

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n)
{
    struct weir_line line;
    struct weir_error err = { 0 };
    int result = weir_line_parse((const char *)at, n, 1, &line, &err);

    assert(line.custom_id != NULL);
    char id[CUSTOM_ID_BYTES_MAX + 1];
    assert(weir_line_custom_id((const char *)at, n, 1, id) == WEIR_OK && strcmp(id, line.custom_id) == 0);
    if (result == WEIR_OK) {
        struct weir_choice choice = { .text = (char *)(uintptr_t)at, .text_bytes = n, .finish = WEIR_FINISH_STOP };
        struct weir_answer answer = { .choices = &choice, .n_choices = 1 };
        char *text = weir_line_output(&line, &answer, "1-1", 0, NULL);
        assert(text != NULL);
        free(text);
    } else {
        char *text = weir_line_error(&line, &err, "1-1", NULL);
        assert(err.code[0] != '\0');
        assert(text != NULL);
        free(text);
    }
    weir_line_deinit(&line);
    return 0;
}
