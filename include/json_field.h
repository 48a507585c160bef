/* json_field.h - fields of a JSON object that may be missing, for those who print what a broker or a gateway told. */
#ifndef JSON_FIELD_H
#define JSON_FIELD_H

#include <jansson.h>

/* The text of a field, borrowed; "" if there is none, or something else. */
static inline const char *json_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL ? text : "";
}

/* The number of a field; 0 if there is none, or something else. */
static inline double json_number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

#endif
