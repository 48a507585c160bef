/* pack.h - messages for tests from JSON text: ' stands for ", so that C strings stay readable. */
#ifndef TESTS_PACK_H
#define TESTS_PACK_H

#include "span.h"

/* msgpack of the text; valid until the next call but three.  Fails the test when it is no JSON. */
struct span pack_json(const char *text);

#endif
