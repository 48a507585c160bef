/* batch_ids.c - see batch_ids.h. */
#include "batch_ids.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

static size_t cell_of(const struct batch_ids *ids, const char *text)
{
    size_t i = XXH64(text, strlen(text), 0) & (ids->capacity - 1);

    while (ids->cells[i].text != NULL && strcmp(ids->cells[i].text, text) != 0)
        i = (i + 1) & (ids->capacity - 1);
    return i;
}

static bool grow(struct batch_ids *ids)
{
    struct batch_ids more = {.capacity = ids->capacity == 0 ? 1024 : ids->capacity * 2, .n = ids->n};

    more.cells = calloc(more.capacity, sizeof(*more.cells));
    if (more.cells == NULL)
        return false;
    for (size_t i = 0; i < ids->capacity; i++)
        if (ids->cells[i].text != NULL)
            more.cells[cell_of(&more, ids->cells[i].text)] = ids->cells[i];
    free(ids->cells);
    *ids = more;
    return true;
}

struct batch_id *batch_ids_get(struct batch_ids *ids, const char *text)
{
    if (ids->n * 2 >= ids->capacity && !grow(ids))
        return NULL;
    struct batch_id *cell = &ids->cells[cell_of(ids, text)];
    if (cell->text == NULL) {
        cell->text = strdup(text);
        if (cell->text == NULL)
            return NULL;
        ids->n++;
    }
    return cell;
}

void batch_ids_deinit(struct batch_ids *ids)
{
    for (size_t i = 0; i < ids->capacity; i++)
        free(ids->cells[i].text);
    free(ids->cells);
    memset(ids, 0, sizeof(*ids));
}
