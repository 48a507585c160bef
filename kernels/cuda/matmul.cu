/* matmul.cu - matmul.h on cuBLASLt, loaded when fast prefill is asked for: the plug-in does not need the library otherwise, and it
 * is larger than everything else here together.
 *
 * The library counts in columns: its A is w as [k][n] turned, its B is x as [k][rows], its D is y as [n][rows].  An algorithm is
 * taken when it splits nothing over k (one accumulator a number of y, in one order) and needs no workspace, and is then used for
 * any number of rows; the heuristic is asked once a shape. */
#include "matmul.h"
#include "status.cuh"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#define LIBRARY_NAME(major)  LIBRARY_NAME_(major)
#define LIBRARY_NAME_(major) "libcublasLt.so." #major
static const char library_name[] = LIBRARY_NAME(CUBLAS_VER_MAJOR);

/* What is called of it. */
#define FUNCTIONS(X)                                                                                                   \
    X(cublasLtGetVersion) X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) \
    X(cublasLtMatmulDescSetAttribute) X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy)                      \
    X(cublasLtMatrixLayoutSetAttribute) X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy)            \
    X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmulAlgoConfigGetAttribute)   \
    X(cublasLtMatmul)

struct library {
#define X(name) decltype(&::name) name;
    FUNCTIONS(X)
#undef X
};

/* One shape with its algorithm. */
struct chosen {
    struct matmul_shape shape;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
};

struct matmul {
    void *handle;
    struct library lt;
    cublasLtHandle_t context;
    cublasLtMatmulDesc_t operation;
    struct chosen shapes[MATMUL_SHAPES_MAX];
    uint32_t n_shapes;
};

static enum status lt_status(const char *what, cublasStatus_t st)
{
    char text[64];

    if (st == CUBLAS_STATUS_SUCCESS)
        return ST_OK;
    snprintf(text, sizeof(text), "cuBLASLt: %s: status %d", what, (int)st);
    return device_failed_text(text);
}
#define LT(m, name, ...) lt_status(#name, (m)->lt.name(__VA_ARGS__))

static const char *load(struct matmul *m)
{
    m->handle = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (m->handle == nullptr)
        return dlerror();
#define X(name)                                                            \
    *reinterpret_cast<void **>(&m->lt.name) = dlsym(m->handle, #name);     \
    if (m->lt.name == nullptr)                                             \
        return "it has no " #name;
    FUNCTIONS(X)
#undef X
    return nullptr;
}

enum status matmul_open(struct matmul **ret_matmul, struct error *err)
{
    const cublasOperation_t turned = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    struct matmul *m = static_cast<struct matmul *>(calloc(1, sizeof(*m)));

    if (m == nullptr)
        return ST_NOMEM;
    const char *why = load(m);
    if (why != nullptr) {
        error_set(err, ERR_INVALID_PARAMETER, "--fast-prefill", "fast prefill needs cuBLASLt: %.160s", why);
        matmul_close(m);
        return ST_UNSUPPORTED;
    }
    enum status st = LT(m, cublasLtCreate, &m->context);
    if (st == ST_OK)
        st = LT(m, cublasLtMatmulDescCreate, &m->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (st == ST_OK)
        st = LT(m, cublasLtMatmulDescSetAttribute, m->operation, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof(turned));
    if (st == ST_OK)
        st = LT(m, cublasLtMatmulDescSetAttribute, m->operation, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof(plain));
    if (st != ST_OK) {
        error_set(err, ERR_INTERNAL, "--fast-prefill", "%.200s", device_error());
        matmul_close(m);
        return st;
    }
    *ret_matmul = m;
    return ST_OK;
}

static void free_shape(struct matmul *m, struct chosen *c)
{
    for (cublasLtMatrixLayout_t layout : { c->a, c->b, c->d })
        if (layout != nullptr)
            m->lt.cublasLtMatrixLayoutDestroy(layout);
}

void matmul_close(struct matmul *m)
{
    if (m == nullptr)
        return;
    for (uint32_t i = 0; i < m->n_shapes; i++)
        free_shape(m, &m->shapes[i]);
    if (m->operation != nullptr)
        m->lt.cublasLtMatmulDescDestroy(m->operation);
    if (m->context != nullptr)
        m->lt.cublasLtDestroy(m->context);
    free(m); /* the library stays: what it registered with the driver outlives a dlclose() badly */
}

uint64_t matmul_version(const struct matmul *m)
{
    return m->lt.cublasLtGetVersion();
}

static struct chosen *find(struct matmul *m, const struct matmul_shape *s)
{
    for (uint32_t i = 0; i < m->n_shapes; i++) {
        const struct matmul_shape *o = &m->shapes[i].shape;
        if (o->n == s->n && o->k == s->k && o->w_stride == s->w_stride && o->x_stride == s->x_stride && o->y_stride == s->y_stride)
            return &m->shapes[i];
    }
    return nullptr;
}

/* Is it one sum after another, for each number of y?  Stages, tiles and so on may be what they like. */
static bool is_unsplit(const struct matmul *m, const cublasLtMatmulHeuristicResult_t *r)
{
    int32_t splits = 0;
    uint32_t scheme = 0;
    size_t written = 0;

    return r->state == CUBLAS_STATUS_SUCCESS && r->workspaceSize == 0 &&
           m->lt.cublasLtMatmulAlgoConfigGetAttribute(&r->algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof(splits), &written) ==
               CUBLAS_STATUS_SUCCESS &&
           m->lt.cublasLtMatmulAlgoConfigGetAttribute(&r->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme),
                                                      &written) == CUBLAS_STATUS_SUCCESS &&
           splits <= 1 && scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static enum status ask(struct matmul *m, struct chosen *c)
{
    enum { RESULTS = 16 };
    const uint64_t no_workspace = 0;
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = 16;
    cublasLtMatmulHeuristicResult_t results[RESULTS];
    cublasLtMatmulPreference_t preference = nullptr;
    int n = 0;
    enum status st = LT(m, cublasLtMatmulPreferenceCreate, &preference);
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void *value;
        size_t bytes;
    } wishes[] = {
        { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &no_workspace, sizeof(no_workspace) },
        { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction, sizeof(no_reduction) },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment, sizeof(alignment) },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment, sizeof(alignment) },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof(alignment) },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment, sizeof(alignment) },
    };

    for (size_t i = 0; i < sizeof(wishes) / sizeof(wishes[0]) && st == ST_OK; i++)
        st = LT(m, cublasLtMatmulPreferenceSetAttribute, preference, wishes[i].what, wishes[i].value, wishes[i].bytes);
    if (st == ST_OK && m->lt.cublasLtMatmulAlgoGetHeuristic(m->context, m->operation, c->a, c->b, c->d, c->d, preference, RESULTS,
                                                            results, &n) != CUBLAS_STATUS_SUCCESS)
        n = 0;
    if (preference != nullptr)
        m->lt.cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; i < n && st == ST_OK; i++) {
        if (is_unsplit(m, &results[i])) {
            c->algorithm = results[i].algo;
            return ST_OK;
        }
    }
    return st == ST_OK ? ST_UNSUPPORTED : st;
}

enum status matmul_choose(struct matmul *m, const struct matmul_shape *s)
{
    struct chosen c = {};

    if (find(m, s) != nullptr)
        return ST_OK;
    if (m->n_shapes == MATMUL_SHAPES_MAX)
        return ST_LIMIT;
    c.shape = *s;
    enum status st = LT(m, cublasLtMatrixLayoutCreate, &c.a, CUDA_R_16BF, s->k, s->n, s->w_stride);
    if (st == ST_OK)
        st = LT(m, cublasLtMatrixLayoutCreate, &c.b, CUDA_R_16BF, s->k, MATMUL_ROWS, s->x_stride);
    if (st == ST_OK)
        st = LT(m, cublasLtMatrixLayoutCreate, &c.d, CUDA_R_32F, s->n, MATMUL_ROWS, s->y_stride);
    if (st == ST_OK)
        st = ask(m, &c);
    if (st != ST_OK) {
        free_shape(m, &c);
        return st;
    }
    m->shapes[m->n_shapes++] = c;
    return ST_OK;
}

enum status matmul_run(struct matmul *m, const struct matmul_shape *shape, const uint16_t *w, const uint16_t *x, float *y, uint32_t rows,
                       bool add, device_stream s)
{
    const float one = 1.0f, beta = add ? 1.0f : 0.0f;
    const uint64_t n = rows;
    struct chosen *c = find(m, shape);

    if (c == nullptr)
        return device_failed_text("cuBLASLt: a shape that was not prepared");
    enum status st = LT(m, cublasLtMatrixLayoutSetAttribute, c->b, CUBLASLT_MATRIX_LAYOUT_COLS, &n, sizeof(n));
    if (st == ST_OK)
        st = LT(m, cublasLtMatrixLayoutSetAttribute, c->d, CUBLASLT_MATRIX_LAYOUT_COLS, &n, sizeof(n));
    return st != ST_OK ? st
                       : LT(m, cublasLtMatmul, m->context, m->operation, &one, w, c->a, x, c->b, &beta, y, c->d, y, c->d, &c->algorithm,
                            nullptr, 0, reinterpret_cast<cudaStream_t>(s));
}

#else /* a toolkit without the header */

enum status matmul_open(struct matmul **, struct error *err)
{
    error_set(err, ERR_INVALID_PARAMETER, "--fast-prefill", "fast prefill needs cuBLASLt, and this plug-in was built without its header");
    return ST_UNSUPPORTED;
}
void matmul_close(struct matmul *)
{
}
uint64_t matmul_version(const struct matmul *)
{
    return 0;
}
enum status matmul_choose(struct matmul *, const struct matmul_shape *)
{
    return ST_UNSUPPORTED;
}
enum status matmul_run(struct matmul *, const struct matmul_shape *, const uint16_t *, const uint16_t *, float *, uint32_t, bool, device_stream)
{
    return ST_SYSTEM;
}
#endif
