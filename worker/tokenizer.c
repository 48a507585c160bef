/* tokenizer.c - load a vocabulary from a GGUF file.
 *
 * Everything that encoding would have to work out again for each text is worked out here once: the bytes each token stands for
 * (byte-level vocabularies write every byte as a printable character, SentencePiece a space as U+2581), merge rules as pairs of
 * ids, score order as ranks, special texts as a tree.  Encoding then only walks these tables (encoder.c).
 *
 * Which tokens may come out of ordinary text: normal ones, and user-defined ones.  Control, unknown, unused and byte tokens are
 * not in the piece table and in no merge rule, so that no text can be put together to become one.
 *
 * Not used: tokenizer.ggml.add_eos_token.  A prompt that is to be continued never ends with the end. */
#include "tokenizer_internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "limits.h"
#include "unicode.h"

enum { TEXT_BYTES_MAX = 2 * PIECE_BYTES_MAX, BYTE_ALPHABET = 256 + 68 };

/* U+2581, which SentencePiece writes for a space */
static const uint8_t spm_space[3] = {0xE2, 0x96, 0x81};

/* Texts of control tokens that end an answer in one model family or another.  Some vocabularies have such a text as a token of
 * another type (gemma's </s> closes a struck-through passage of HTML): then it is no end, but still nothing that a user's
 * text should turn into, as the reference tokenizers have it. */
static const char *const end_texts[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOS]",
    "<end_of_utterance>",
    "<|end_of_turn|>",
    "<|return|>",
    "<|endofturn|>",
    "[EOT]",
};

struct loader {
    const struct gguf *g;
    struct tokenizer *t;
    size_t n_bytes, cap_bytes;      /* of t->bytes */
    int16_t byte_of[BYTE_ALPHABET]; /* character of the byte alphabet -> byte, or -1 */
    struct error *err;
};

#define fail(l, status, ...) (error_set((l)->err, ERR_INVALID_PARAMETER, "model", __VA_ARGS__), (status))

/* --- texts and pieces -------------------------------------------------------------------------------------------------- */

/* The byte alphabet of GPT-2: printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 and up. */
static void fill_byte_alphabet(int16_t byte_of[BYTE_ALPHABET])
{
    int n_others = 0;

    for (int c = 0; c < BYTE_ALPHABET; c++)
        byte_of[c] = -1;
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;

        byte_of[itself ? b : 256 + n_others++] = (int16_t)b;
    }
    assert(n_others == 68);
}

/* Text in the byte alphabet to bytes.  A text with any other character is taken as it is.  Returns the length. */
static size_t bpe_piece(const struct loader *l, struct span text, uint8_t *out)
{
    size_t n = 0;

    for (size_t i = 0; i < text.n;) {
        uint32_t c;

        i += unicode_decode(span_of(text.at + i, text.n - i), &c);
        if (c >= BYTE_ALPHABET || l->byte_of[c] < 0) {
            memcpy(out, text.at, text.n);
            return text.n;
        }
        out[n++] = (uint8_t)l->byte_of[c];
    }
    return n;
}

static size_t spm_piece(struct span text, uint8_t *out)
{
    size_t n = 0;

    for (size_t i = 0; i < text.n;) {
        bool space =
            text.n - i >= sizeof(spm_space) && memcmp(text.at + i, spm_space, sizeof(spm_space)) == 0;

        out[n++] = space ? ' ' : text.at[i];
        i += space ? sizeof(spm_space) : 1;
    }
    return n;
}

static int hex_digit(uint8_t b)
{
    return b >= '0' && b <= '9'   ? b - '0'
           : b >= 'A' && b <= 'F' ? b - 'A' + 10
           : b >= 'a' && b <= 'f' ? b - 'a' + 10
                                  : -1;
}

/* The byte of "<0xXX>", or -1. */
static int byte_token_value(struct span text)
{
    if (text.n != 6 || memcmp(text.at, "<0x", 3) != 0 || text.at[5] != '>')
        return -1;
    int high = hex_digit(text.at[3]), low = hex_digit(text.at[4]);

    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static enum status add_piece(struct loader *l, uint32_t id, uint8_t *out, size_t *ret_n)
{
    struct tokenizer *t = l->t;
    struct token *k = &t->tokens[id];
    struct span text = token_text(t, id);

    if (k->type == TOKEN_BYTE) {
        int byte = byte_token_value(text);

        if (byte < 0)
            return fail(l, ST_INVALID, "tokenizer.ggml.tokens[%u] is a byte token, but not written <0xXX>",
                        id);
        out[0] = (uint8_t)byte;
        *ret_n = 1;
        if (t->byte_tokens[byte] == TOKEN_NONE)
            t->byte_tokens[byte] = (int32_t)id;
    } else if (token_is_control(k) || k->type == TOKEN_USER_DEFINED) {
        memcpy(out, text.at, text.n);
        *ret_n = text.n;
    } else {
        *ret_n = t->kind == TOKENIZER_BPE ? bpe_piece(l, text, out) : spm_piece(text, out);
    }
    return ST_OK;
}

static bool is_end_text(struct span text)
{
    for (size_t i = 0; i < sizeof(end_texts) / sizeof(end_texts[0]); i++)
        if (span_is(text, end_texts[i]))
            return true;
    return false;
}

static enum status add_token(struct loader *l, uint32_t id, struct span text, int64_t type)
{
    struct tokenizer *t = l->t;
    struct token *k = &t->tokens[id];
    size_t n_piece;
    enum status st;

    if (type < 0 || type >= TOKEN_TYPE_COUNT)
        return fail(l, ST_INVALID, "tokenizer.ggml.token_type[%u] is %lld, must be 0 to %d", id,
                    (long long)type, TOKEN_TYPE_COUNT - 1);
    if (text.n > TEXT_BYTES_MAX)
        return fail(l, ST_LIMIT, "tokenizer.ggml.tokens[%u] has %zu bytes, limit %d", id, text.n,
                    TEXT_BYTES_MAX);
    assert(l->cap_bytes - l->n_bytes >= 2 * text.n + 1);
    k->type = type == TOKEN_UNDEFINED ? TOKEN_NORMAL : (uint8_t)type;
    k->is_guarded = !token_is_control(k) && is_end_text(text);
    k->text_at = (uint32_t)l->n_bytes;
    k->text_n = (uint16_t)text.n;
    if (text.n > 0)
        memcpy(t->bytes + l->n_bytes, text.at, text.n);
    l->n_bytes += text.n;
    st = add_piece(l, id, t->bytes + l->n_bytes, &n_piece);
    if (st != ST_OK)
        return st;
    if (n_piece > PIECE_BYTES_MAX)
        return fail(l, ST_LIMIT, "tokenizer.ggml.tokens[%u] stands for %zu bytes, limit %d (PIECE_BYTES_MAX)",
                    id, n_piece, PIECE_BYTES_MAX);
    k->piece_at = (uint32_t)l->n_bytes;
    k->piece_n = (uint16_t)n_piece;
    l->n_bytes += n_piece;
    return ST_OK;
}

/* Bytes of all texts, which bounds what texts and pieces need. */
static uint64_t total_text_bytes(struct gguf_array texts)
{
    uint64_t n = 0;

    while (texts.n > 0)
        n += gguf_array_next_string(&texts).n;
    return n;
}

static enum status alloc_tokens(struct loader *l, struct gguf_array texts)
{
    struct tokenizer *t = l->t;
    uint64_t cap = 2 * total_text_bytes(texts) + texts.n + 1;

    if (texts.n == 0 || texts.n > VOCAB_MAX)
        return fail(l, texts.n == 0 ? ST_INVALID : ST_LIMIT,
                    "tokenizer.ggml.tokens has %llu entries, must be 1 to %d (VOCAB_MAX)",
                    (unsigned long long)texts.n, VOCAB_MAX);
    if (cap > UINT32_MAX)
        return fail(l, ST_LIMIT, "tokenizer.ggml.tokens holds more than 2 GiB of text");
    t->n_tokens = (uint32_t)texts.n;
    t->tokens = calloc(t->n_tokens, sizeof(*t->tokens));
    t->bytes = malloc(cap);
    l->cap_bytes = cap;
    if (t->tokens == NULL || t->bytes == NULL || id_table_init(&t->texts, t->n_tokens) != ST_OK ||
        id_table_init(&t->pieces, t->n_tokens) != ST_OK)
        return fail(l, ST_NOMEM, "no memory for %u tokens", t->n_tokens);
    return ST_OK;
}

static enum status read_tokens(struct loader *l)
{
    struct gguf_array texts, types = {.n = 0};
    enum status st = gguf_array(l->g, "tokenizer.ggml.tokens", GGUF_STRING, &texts, l->err);
    bool typed = gguf_has(l->g, "tokenizer.ggml.token_type");

    if (st == ST_OK && typed)
        st = gguf_array_any(l->g, "tokenizer.ggml.token_type", &types, l->err);
    if (st != ST_OK)
        return st;
    if (typed && (types.n != texts.n || (types.type != GGUF_I32 && types.type != GGUF_U32)))
        return fail(l, ST_INVALID,
                    "tokenizer.ggml.token_type is %llu of %s for %llu tokens, expected as many i32",
                    (unsigned long long)types.n, gguf_type_name(types.type), (unsigned long long)texts.n);
    st = alloc_tokens(l, texts);
    for (uint32_t id = 0; st == ST_OK && id < l->t->n_tokens; id++)
        st = add_token(l, id, gguf_array_next_string(&texts),
                       typed ? gguf_array_next_int(&types) : TOKEN_NORMAL);
    return st;
}

/* --- tables ------------------------------------------------------------------------------------------------------------- */

/* May this token come out of merges? */
static bool is_ordinary(const struct tokenizer *t, uint32_t id)
{
    const struct token *k = &t->tokens[id];

    if (k->piece_n == 0 || k->is_guarded)
        return false;
    if (k->type == TOKEN_NORMAL)
        return true;
    /* SPM writes a space as U+2581 in what it merges; a user-defined text with a real blank is another text. */
    return k->type == TOKEN_USER_DEFINED &&
           (t->kind == TOKENIZER_BPE || memchr(token_text(t, id).at, ' ', k->text_n) == NULL);
}

static enum status fill_tables(struct loader *l)
{
    struct tokenizer *t = l->t;

    for (uint32_t id = 0; id < t->n_tokens; id++) {
        struct token *k = &t->tokens[id];

        if (k->text_n == 0)
            continue;
        (void)texts_add(t, id); /* of tokens with the same text the first is found */
        if (is_ordinary(t, id)) {
            (void)pieces_add(t, id);
            t->piece_bytes_max = k->piece_n > t->piece_bytes_max ? k->piece_n : t->piece_bytes_max;
        }
        if (token_needs_control(k) || k->type == TOKEN_USER_DEFINED) {
            enum status st = special_tree_add(&t->special, token_text(t, id), (int32_t)id);

            if (st != ST_OK)
                return fail(l, st, "the control tokens' texts exceed %d bytes (SPECIAL_TOKENS_BYTES_MAX)",
                            SPECIAL_TOKENS_BYTES_MAX);
        }
    }
    return ST_OK;
}

static void fill_byte_tokens(struct tokenizer *t)
{
    for (int b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;

        t->byte_tokens[b] = pieces_find(t, span_of(&byte, 1));
    }
}

static enum status add_merge(struct loader *l, uint32_t rank, struct span rule)
{
    struct tokenizer *t = l->t;
    uint8_t joined[2 * TEXT_BYTES_MAX];
    const uint8_t *blank = rule.n > 1 ? memchr(rule.at + 1, ' ', rule.n - 1) : NULL;
    struct span left, right;
    struct pair_rule r = {.rank = rank};

    if (blank == NULL || rule.n > sizeof(joined))
        return fail(l, ST_INVALID, "tokenizer.ggml.merges[%u] is not two tokens with a blank between", rank);
    left = span_of(rule.at, (size_t)(blank - rule.at));
    right = span_of(blank + 1, rule.n - left.n - 1);
    memcpy(joined, left.at, left.n);
    memcpy(joined + left.n, right.at, right.n);
    r.left = texts_find(t, left);
    r.right = texts_find(t, right);
    r.merged = texts_find(t, span_of(joined, left.n + right.n));
    if (r.left == TOKEN_NONE || r.right == TOKEN_NONE || r.merged == TOKEN_NONE)
        return fail(l, ST_INVALID, "tokenizer.ggml.merges[%u] names a text that is no token", rank);
    if (is_ordinary(t, (uint32_t)r.left) && is_ordinary(t, (uint32_t)r.right) &&
        is_ordinary(t, (uint32_t)r.merged))
        pair_table_add(&t->pairs, r);
    return ST_OK;
}

static enum status read_merges(struct loader *l)
{
    struct gguf_array rules;
    enum status st = gguf_array(l->g, "tokenizer.ggml.merges", GGUF_STRING, &rules, l->err);

    if (st != ST_OK)
        return st;
    if (rules.n > MERGES_MAX)
        return fail(l, ST_LIMIT, "tokenizer.ggml.merges has %llu entries, limit %d (MERGES_MAX)",
                    (unsigned long long)rules.n, MERGES_MAX);
    if (pair_table_init(&l->t->pairs, (uint32_t)rules.n) != ST_OK)
        return fail(l, ST_NOMEM, "no memory for %llu merges", (unsigned long long)rules.n);
    for (uint32_t rank = 0; st == ST_OK && rules.n > 0; rank++)
        st = add_merge(l, rank, gguf_array_next_string(&rules));
    return st;
}

struct scored {
    float score;
    uint32_t id;
};

static int best_first(const void *a, const void *b)
{
    float x = ((const struct scored *)a)->score, y = ((const struct scored *)b)->score;

    return x > y ? -1 : x < y;
}

static enum status read_scores(struct loader *l)
{
    struct tokenizer *t = l->t;
    struct gguf_array scores;
    struct scored *sorted = NULL;
    enum status st = gguf_array(l->g, "tokenizer.ggml.scores", GGUF_F32, &scores, l->err);

    if (st != ST_OK)
        return st;
    if (scores.n != t->n_tokens)
        return fail(l, ST_INVALID, "tokenizer.ggml.scores has %llu entries for %u tokens",
                    (unsigned long long)scores.n, t->n_tokens);
    sorted = malloc(t->n_tokens * sizeof(*sorted));
    t->ranks = malloc(t->n_tokens * sizeof(*t->ranks));
    if (sorted == NULL || t->ranks == NULL)
        st = fail(l, ST_NOMEM, "no memory for %u scores", t->n_tokens);
    for (uint32_t id = 0; st == ST_OK && id < t->n_tokens; id++) {
        sorted[id] = (struct scored){gguf_array_next_f32(&scores), id};
        if (!isfinite(sorted[id].score))
            st = fail(l, ST_INVALID, "tokenizer.ggml.scores[%u] is not a finite number", id);
    }
    if (st == ST_OK) {
        qsort(sorted, t->n_tokens, sizeof(*sorted), best_first);
        for (uint32_t i = 0, rank = 0; i < t->n_tokens; i++) {
            if (i > 0 && sorted[i].score != sorted[i - 1].score)
                rank = i;
            t->ranks[sorted[i].id] = rank;
        }
    }
    free(sorted);
    return st;
}

/* --- single ids and flags ------------------------------------------------------------------------------------------------ */

/* An id by its key; absent: the default where the vocabulary has so many tokens, else none. */
static enum status read_id(struct loader *l, const char *key, int32_t otherwise, int32_t *ret_id)
{
    uint32_t id = 0;
    enum status st;

    *ret_id = otherwise >= 0 && (uint32_t)otherwise < l->t->n_tokens ? otherwise : TOKEN_NONE;
    if (!gguf_has(l->g, key))
        return ST_OK;
    st = gguf_u32(l->g, key, &id, l->err);
    if (st != ST_OK)
        return st;
    if (id >= l->t->n_tokens)
        return fail(l, ST_INVALID, "\"%s\" is %u, the vocabulary has %u tokens", key, id, l->t->n_tokens);
    *ret_id = (int32_t)id;
    return ST_OK;
}

static void mark_ends(struct tokenizer *t)
{
    const int32_t ids[] = {t->eos, t->eot, t->eom};

    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
        if (ids[i] != TOKEN_NONE)
            t->tokens[ids[i]].is_end = true;
    for (size_t i = 0; i < sizeof(end_texts) / sizeof(end_texts[0]); i++) {
        int32_t id = texts_find(t, span_str(end_texts[i]));

        if (id != TOKEN_NONE && token_is_control(&t->tokens[id]))
            t->tokens[id].is_end = true;
    }
}

static enum status read_ids(struct loader *l)
{
    struct tokenizer *t = l->t;
    bool spm = t->kind == TOKENIZER_SPM;
    enum status st = read_id(l, "tokenizer.ggml.bos_token_id", spm ? 1 : TOKEN_NONE, &t->bos);

    if (st == ST_OK)
        st = read_id(l, "tokenizer.ggml.eos_token_id", spm ? 2 : TOKEN_NONE, &t->eos);
    if (st == ST_OK)
        st = read_id(l, "tokenizer.ggml.unknown_token_id", spm ? 0 : TOKEN_NONE, &t->unknown);
    if (st == ST_OK)
        st = read_id(l, "tokenizer.ggml.eot_token_id", TOKEN_NONE, &t->eot);
    if (st == ST_OK)
        st = read_id(l, "tokenizer.ggml.eom_token_id", TOKEN_NONE, &t->eom);
    t->adds_bos = spm || (t->splitter != NULL && t->splitter->adds_bos);
    t->adds_space_prefix = spm;
    if (st == ST_OK)
        st = gguf_bool_if(l->g, "tokenizer.ggml.add_bos_token", &t->adds_bos, l->err);
    if (st == ST_OK)
        st = gguf_bool_if(l->g, "tokenizer.ggml.add_space_prefix", &t->adds_space_prefix, l->err);
    if (t->bos == TOKEN_NONE)
        t->adds_bos = false;
    return st;
}

/* --- the whole ------------------------------------------------------------------------------------------------------------ */

static enum status read_kind(struct loader *l)
{
    char printable[GGUF_PRINTED_BYTES];
    struct span model, pre = span_str("default");
    enum status st = gguf_string(l->g, "tokenizer.ggml.model", &model, l->err);

    if (st != ST_OK)
        return st;
    if (gguf_has(l->g, "tokenizer.ggml.precompiled_charsmap"))
        return fail(l, ST_UNSUPPORTED,
                    "the tokenizer normalises characters (tokenizer.ggml.precompiled_charsmap)");
    if (span_is(model, "llama")) {
        l->t->kind = TOKENIZER_SPM;
        return ST_OK;
    }
    if (!span_is(model, "gpt2"))
        return fail(
            l, ST_UNSUPPORTED,
            "the tokenizer is a \"%s\"; taken are gpt2 (byte-level BPE) and llama (SentencePiece BPE)",
            gguf_printable(model, printable));
    l->t->kind = TOKENIZER_BPE;
    if (gguf_has(l->g, "tokenizer.ggml.pre"))
        st = gguf_string(l->g, "tokenizer.ggml.pre", &pre, l->err);
    if (st != ST_OK)
        return st;
    l->t->splitter = splitter_find(pre);
    if (l->t->splitter == NULL)
        return fail(l, ST_UNSUPPORTED,
                    "tokenizer.ggml.pre is \"%s\"; taken are smollm, llama-bpe, qwen2, gpt-2, default and "
                    "their aliases",
                    gguf_printable(pre, printable));
    return ST_OK;
}

static enum status load(struct loader *l)
{
    enum status st = read_kind(l);

    if (st == ST_OK)
        st = read_tokens(l);
    if (st == ST_OK)
        st = fill_tables(l);
    if (st == ST_OK)
        st = read_ids(l);
    if (st == ST_OK && l->t->kind == TOKENIZER_BPE) {
        fill_byte_tokens(l->t);
        st = read_merges(l);
    } else if (st == ST_OK) {
        st = read_scores(l);
    }
    if (st == ST_OK)
        mark_ends(l->t);
    return st == ST_NOT_FOUND ? ST_INVALID : st;
}

enum status tokenizer_new(const struct gguf *g, struct tokenizer **ret_tokenizer, struct error *err)
{
    struct loader l = {.g = g, .err = err};
    enum status st = ST_NOMEM;

    l.t = calloc(1, sizeof(*l.t));
    if (l.t == NULL) {
        error_set(err, ERR_INTERNAL, "model", "no memory for a tokenizer");
        return st;
    }
    for (int b = 0; b < 256; b++)
        l.t->byte_tokens[b] = TOKEN_NONE;
    fill_byte_alphabet(l.byte_of);
    st = load(&l);
    if (st == ST_OK) {
        *ret_tokenizer = l.t;
        l.t = NULL;
    }
    tokenizer_free(l.t);
    return st;
}

void tokenizer_free(struct tokenizer *t)
{
    if (t == NULL)
        return;
    free(t->tokens);
    free(t->bytes);
    free(t->texts.slots);
    free(t->pieces.slots);
    free(t->special.nodes);
    free(t->pairs.slots);
    free(t->ranks);
    free(t);
}

/* --- questions ------------------------------------------------------------------------------------------------------------ */

uint32_t tokenizer_n_tokens(const struct tokenizer *t)
{
    return t->n_tokens;
}

static const struct token *token_at(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->n_tokens ? &t->tokens[id] : NULL;
}

struct span tokenizer_piece(const struct tokenizer *t, int32_t id, bool with_control)
{
    const struct token *k = token_at(t, id);

    if (k == NULL || (token_is_control(k) && !with_control))
        return span_of(NULL, 0);
    return token_piece(t, (uint32_t)id);
}

int32_t tokenizer_find(const struct tokenizer *t, struct span text)
{
    return texts_find(t, text);
}

struct span tokenizer_text(const struct tokenizer *t, int32_t id)
{
    return token_at(t, id) != NULL ? token_text(t, (uint32_t)id) : span_of(NULL, 0);
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id)
{
    const struct token *k = token_at(t, id);

    return k != NULL && token_is_control(k);
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id)
{
    const struct token *k = token_at(t, id);

    return k != NULL && k->is_end;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->adds_bos;
}

size_t tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n_ids, bool with_control,
                        uint8_t *buf, size_t buf_bytes)
{
    bool drop_space = t->adds_space_prefix;
    size_t n = 0;

    for (size_t i = 0; i < n_ids; i++) {
        struct span piece = tokenizer_piece(t, ids[i], with_control);

        if (piece.n == 0)
            continue;
        if (drop_space && piece.at[0] == ' ')
            piece = span_of(piece.at + 1, piece.n - 1);
        drop_space = false;
        for (size_t j = 0; j < piece.n; j++, n++)
            if (n < buf_bytes)
                buf[n] = piece.at[j];
    }
    return n;
}
