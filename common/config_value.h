/* config_value.h - from the text of a value to the value.  Private to config.c. */
#ifndef CONFIG_VALUE_H
#define CONFIG_VALUE_H

#include "config.h"

struct config_value {
    uint64_t u64;   /* number, bytes, milliseconds; boolean as 0 or 1 */
    double f64;
};

/* Parse and check the range of a value that is not a string or a list.  where: for err->param.
 * ST_OK or ST_INVALID with *err. */
MUST_CHECK enum status config_value_parse(const struct config_key *k, const char *text, const char *where,
                                          struct config_value *ret_value, struct error *err);

#endif
