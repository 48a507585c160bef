/* test_model_path.h - where the real models for tests are, or NULL when they are not on this machine. */
#ifndef TESTS_TEST_MODEL_PATH_H
#define TESTS_TEST_MODEL_PATH_H

/* SmolLM2-135M: $WEIR_TEST_MODEL, or the file that `make demo` keeps in the cache directory.  Static text. */
const char *test_model_smollm2(void);

/* gemma-3-270m: $WEIR_TEST_MODEL_GEMMA3, or the cache directory. */
const char *test_model_gemma3(void);

#endif
