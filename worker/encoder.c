/* encoder.c - parts to one text, the text to fragments between special tokens, fragments to words, words to tokens.
 *
 *   parts     [control "<|im_start|>user\n"][plain "Hi <|im_end|>"][control "<|im_end|>\n"]
 *   fragments        *   user\nHi <|im_end|>                                  *   \n
 *   words                user   \n   Hi    <|   im   _   end   |>                 \n
 *
 * A fragment is found by looking for special texts at each byte (control ones only inside a control part), then worked off
 * before the next is looked for: the state between two steps is a few positions.
 *
 * SentencePiece writes a space as U+2581.  Instead of making the text up to three times longer, pieces are kept with a plain
 * space (tokenizer.c), and what stands as U+2581 in a fragment becomes one: in place, for it only shrinks.  The blank that some
 * vocabularies put before a text goes into the byte before the fragment, which belongs to the special token just read. */
#include "encoder.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "merger.h"

enum {
    HEADROOM = 8, /* bytes before the text: see above */
    WORD_BYTES_MAX = ENCODER_BYTES_MAX + HEADROOM,
    IDS_MAX = 3 * (2 * ENCODER_BYTES_MAX + HEADROOM) +
              ENCODER_PARTS_MAX, /* a byte may open a fragment and be three tokens */
    KEEP_BYTES = 256 << 10,      /* of each area, between texts */
};

enum part_kind { PART_PLAIN, PART_CONTROL, PART_TOKEN };

struct part {
    uint32_t end; /* in the text; it begins where the part before ends */
    int32_t id;   /* PART_TOKEN */
    enum part_kind kind;
};

enum phase {
    PHASE_ADDING,
    PHASE_RUN,
    PHASE_SCAN,
    PHASE_FRAGMENT,
    PHASE_WORD,
    PHASE_MERGE,
    PHASE_SPECIAL,
    PHASE_DONE
};

struct area {
    void *at;
    size_t bytes;
};

struct encoder {
    const struct tokenizer *t;
    struct area text_area, ids_area, symbols_area, heap_area;
    uint8_t *text; /* HEADROOM bytes into its area */
    size_t n_text;
    struct part parts[ENCODER_PARTS_MAX];
    uint32_t n_parts;

    enum phase phase;
    uint32_t part;  /* the part that scan_at lies in */
    size_t run_end; /* end of the parts that make one text */
    size_t fragment, scan_at;
    int32_t special; /* found at scan_at, or TOKEN_NONE: the run ends there */
    size_t special_n;
    struct span piece; /* the fragment as it is worked off */
    size_t word_at;
    struct splitter splitter;
    struct merger merger;
    struct id_list ids;
    uint64_t work;
};

/* --- memory ------------------------------------------------------------------------------------------------------------ */

/* Address space only; pages come when they are written. */
static bool area_take(struct area *a, size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (at == MAP_FAILED)
        return false;
    *a = (struct area){at, bytes};
    return true;
}

static void area_drop(struct area *a)
{
    if (a->at != NULL)
        munmap(a->at, a->bytes);
    *a = (struct area){NULL, 0};
}

/* Give back what lies beyond KEEP_BYTES if more was written. */
static void area_trim(struct area *a, size_t used_bytes)
{
    if (used_bytes > KEEP_BYTES)
        (void)madvise((char *)a->at + KEEP_BYTES, a->bytes - KEEP_BYTES,
                      MADV_DONTNEED); /* private and anonymous: cannot fail */
}
_Static_assert(KEEP_BYTES % 65536 == 0, "a multiple of every page size in use");

void encoder_free(struct encoder *e)
{
    if (e == NULL)
        return;
    area_drop(&e->text_area);
    area_drop(&e->ids_area);
    area_drop(&e->symbols_area);
    area_drop(&e->heap_area);
    free(e);
}

enum status encoder_new(const struct tokenizer *t, struct encoder **ret_encoder)
{
    struct encoder *e = calloc(1, sizeof(*e));

    if (e == NULL || !area_take(&e->text_area, WORD_BYTES_MAX) ||
        !area_take(&e->ids_area, IDS_MAX * sizeof(int32_t)) ||
        !area_take(&e->symbols_area, WORD_BYTES_MAX * sizeof(struct symbol)) ||
        !area_take(&e->heap_area, (size_t)MERGER_HEAP_FACTOR * WORD_BYTES_MAX * sizeof(uint64_t))) {
        encoder_free(e);
        return ST_NOMEM;
    }
    e->t = t;
    e->text = (uint8_t *)e->text_area.at + HEADROOM;
    e->merger = (struct merger){.t = t, .symbols = e->symbols_area.at, .heap = e->heap_area.at};
    e->ids = (struct id_list){.at = e->ids_area.at, .cap = IDS_MAX};
    *ret_encoder = e;
    return ST_OK;
}

const struct tokenizer *encoder_tokenizer(const struct encoder *e)
{
    return e->t;
}

/* --- parts ------------------------------------------------------------------------------------------------------------- */

void encoder_begin(struct encoder *e)
{
    area_trim(&e->text_area, e->n_text);
    area_trim(&e->ids_area, e->ids.n * sizeof(int32_t));
    area_trim(&e->symbols_area, e->merger.n_touched * sizeof(struct symbol));
    area_trim(&e->heap_area, (size_t)MERGER_HEAP_FACTOR * e->merger.n_touched * sizeof(uint64_t));
    e->merger.n_touched = 0;
    e->ids.n = 0;
    e->ids.dropped_bytes = 0;
    e->n_text = e->n_parts = 0;
    e->part = 0;
    e->scan_at = 0;
    e->work = 0;
    e->phase = PHASE_ADDING;
}

static enum status add_part(struct encoder *e, struct span text, struct part part, struct error *err)
{
    struct part *last = e->n_parts > 0 ? &e->parts[e->n_parts - 1] : NULL;

    assert(e->phase == PHASE_ADDING);
    if (text.n > ENCODER_BYTES_MAX - e->n_text) {
        error_set(err, ERR_LIMIT_EXCEEDED, "prompt",
                  "prompt has more than %d bytes with its template (ENCODER_BYTES_MAX)", ENCODER_BYTES_MAX);
        return ST_LIMIT;
    }
    bool joins = last != NULL && last->kind == part.kind && part.kind != PART_TOKEN;

    if (!joins && e->n_parts == ENCODER_PARTS_MAX) {
        error_set(err, ERR_LIMIT_EXCEEDED, "prompt", "prompt has more than %d parts (ENCODER_PARTS_MAX)",
                  ENCODER_PARTS_MAX);
        return ST_LIMIT;
    }
    if (text.n > 0)
        memcpy(e->text + e->n_text, text.at, text.n);
    e->n_text += text.n;
    part.end = (uint32_t)e->n_text;
    if (joins)
        *last = part;
    else
        e->parts[e->n_parts++] = part;
    return ST_OK;
}

enum status encoder_add(struct encoder *e, struct span text, enum encoder_part part, struct error *err)
{
    if (text.n == 0)
        return ST_OK;
    return add_part(
        e, text, (struct part){.id = TOKEN_NONE, .kind = part == ENCODE_CONTROL ? PART_CONTROL : PART_PLAIN},
        err);
}

enum status encoder_add_token(struct encoder *e, int32_t id, struct error *err)
{
    assert(id >= 0 && (uint32_t)id < e->t->n_tokens);
    return add_part(e, token_text(e->t, (uint32_t)id), (struct part){.id = id, .kind = PART_TOKEN}, err);
}

enum status encoder_add_bos(struct encoder *e, struct error *err)
{
    return tokenizer_adds_bos(e->t) ? encoder_add_token(e, tokenizer_bos(e->t), err) : ST_OK;
}

struct span encoder_text(const struct encoder *e)
{
    return span_of(e->text, e->n_text);
}

/* --- steps ------------------------------------------------------------------------------------------------------------- */

/* Emit ids that were added as such and find the next run of text parts. */
static void begin_run(struct encoder *e)
{
    while (e->part < e->n_parts && e->parts[e->part].kind == PART_TOKEN) {
        id_list_add(&e->ids, e->parts[e->part].id);
        e->scan_at = e->parts[e->part].end;
        e->part++;
        e->work++;
    }
    uint32_t last = e->part;

    while (last < e->n_parts && e->parts[last].kind != PART_TOKEN)
        last++;
    e->run_end = last > e->part ? e->parts[last - 1].end : e->scan_at;
    e->fragment = e->scan_at;
    e->phase = e->part == e->n_parts ? PHASE_DONE : PHASE_SCAN;
}

/* Look for a special token from scan_at on. */
static void scan(struct encoder *e, uint64_t work_end)
{
    while (e->scan_at < e->run_end && e->work < work_end) {
        e->work++;
        while (e->parts[e->part].end <= e->scan_at)
            e->part++;
        if (e->t->special.first[e->text[e->scan_at]] != 0) {
            const struct part *p = &e->parts[e->part];
            size_t control_bytes = p->kind == PART_CONTROL ? p->end - e->scan_at : 0;
            struct span rest = span_of(e->text + e->scan_at, e->run_end - e->scan_at);

            e->special = special_tree_match(e->t, rest, control_bytes, &e->work);
            if (e->special != TOKEN_NONE) {
                e->special_n = e->t->tokens[e->special].text_n;
                e->phase = PHASE_FRAGMENT;
                return;
            }
        }
        e->scan_at++;
    }
    if (e->scan_at == e->run_end) {
        e->special = TOKEN_NONE;
        e->special_n = 0;
        e->phase = PHASE_FRAGMENT;
    }
}

/* U+2581 to a space, in place.  Returns the new length. */
static size_t plain_spaces(uint8_t *at, size_t n)
{
    static const uint8_t mark[3] = {0xE2, 0x96, 0x81};
    uint8_t *from = memmem(at, n, mark, sizeof(mark)), *end = at + n, *to = from;

    if (from == NULL)
        return n;
    while (from < end) {
        bool is_mark = (size_t)(end - from) >= sizeof(mark) && memcmp(from, mark, sizeof(mark)) == 0;

        *to++ = is_mark ? ' ' : *from;
        from += is_mark ? sizeof(mark) : 1;
    }
    return (size_t)(to - at);
}

/* Make the fragment before scan_at ready to be worked off. */
static void begin_fragment(struct encoder *e)
{
    uint8_t *at = e->text + e->fragment;
    size_t n = e->scan_at - e->fragment;

    e->phase = PHASE_SPECIAL;
    if (n == 0)
        return;
    if (e->t->kind == TOKENIZER_SPM) {
        e->work += n;
        n = plain_spaces(at, n);
        if (e->t->adds_space_prefix) {
            *--at = ' ';
            n++;
        }
    } else {
        splitter_begin(&e->splitter, e->t->splitter->kind);
    }
    e->piece = span_of(at, n);
    e->word_at = 0;
    e->phase = PHASE_WORD;
}

static void begin_word(struct encoder *e)
{
    size_t end = e->piece.n;

    if (e->word_at == e->piece.n) {
        e->phase = PHASE_SPECIAL;
        return;
    }
    if (e->t->kind == TOKENIZER_BPE)
        end = splitter_next(&e->splitter, e->piece, e->word_at);
    struct span word = span_of(e->piece.at + e->word_at, end - e->word_at);

    e->word_at = end;
    e->work += word.n;
    if (e->t->splitter != NULL && e->t->splitter->whole_words && word.n <= e->t->piece_bytes_max) {
        int32_t id = pieces_find(e->t, word);

        if (id != TOKEN_NONE) {
            id_list_add(&e->ids, id);
            return;
        }
    }
    merger_begin(&e->merger, word);
    e->phase = PHASE_MERGE;
}

/* After a fragment: the special token that ended it, or the end of the run. */
static void end_fragment(struct encoder *e)
{
    if (e->special != TOKEN_NONE) {
        id_list_add(&e->ids, e->special);
        e->scan_at += e->special_n;
        e->fragment = e->scan_at;
        e->phase = PHASE_SCAN;
        return;
    }
    while (e->part < e->n_parts && e->parts[e->part].end <= e->run_end &&
           e->parts[e->part].kind != PART_TOKEN)
        e->part++;
    e->phase = PHASE_RUN;
}

enum status encoder_step(struct encoder *e, uint64_t work)
{
    uint64_t work_end = work > UINT64_MAX - e->work ? UINT64_MAX : e->work + work;

    if (e->phase == PHASE_ADDING)
        e->phase = PHASE_RUN;
    while (e->phase != PHASE_DONE && e->work < work_end) {
        switch (e->phase) {
        case PHASE_RUN:
            begin_run(e);
            break;
        case PHASE_SCAN:
            scan(e, work_end);
            break;
        case PHASE_FRAGMENT:
            begin_fragment(e);
            break;
        case PHASE_WORD:
            begin_word(e);
            break;
        case PHASE_MERGE:
            if (merger_step(&e->merger, &e->ids, &e->work, work_end))
                e->phase = PHASE_WORD;
            break;
        default:
            end_fragment(e);
            break;
        }
    }
    return e->phase == PHASE_DONE ? ST_OK : ST_AGAIN;
}

const int32_t *encoder_ids(const struct encoder *e, size_t *ret_n_ids)
{
    *ret_n_ids = e->ids.n;
    return e->ids.at;
}

uint64_t encoder_work(const struct encoder *e)
{
    return e->work;
}

uint64_t encoder_dropped_bytes(const struct encoder *e)
{
    return e->ids.dropped_bytes;
}

enum status encoder_encode(struct encoder *e, struct span text, enum encoder_part part,
                           const int32_t **ret_ids, size_t *ret_n_ids, struct error *err)
{
    enum status st;

    encoder_begin(e);
    st = encoder_add(e, text, part, err);
    if (st != ST_OK)
        return st;
    while (encoder_step(e, UINT32_MAX) == ST_AGAIN)
        ;
    *ret_ids = encoder_ids(e, ret_n_ids);
    return ST_OK;
}
