/* The emulation itself: what is right passes in every order, what is planted wrong is found. */
#include "cuda_emu.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
extern "C" {
#include <cmocka.h>
}

#include <stdlib.h>
#include <vector>

enum { N_SEEDS = 20 };

/* ---- kernels that are right ---- */

/* Sum of n numbers by a tree in shared memory. */
static void block_sum(int *out, const int *in)
{
    SHARED_BYTES(bytes);
    int *s = reinterpret_cast<int *>(bytes);

    s[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
    for (unsigned n = blockDim.x / 2; n > 0; n /= 2) {
        __syncthreads();
        if (threadIdx.x < n)
            s[threadIdx.x] += s[threadIdx.x + n];
    }
    if (threadIdx.x == 0)
        atomicAdd(out, s[0]);
}

static void sums_in_shared_memory_are_right_in_every_order(void **)
{
    std::vector<int> in(4 * 256);
    int want = 0;

    for (size_t i = 0; i < in.size(); i++)
        want += in[i] = (int)(i * 7919 % 1000);
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        int out = 0;
        emu::set_seed(seed);
        LAUNCH(block_sum, 4, 256, 256 * sizeof(int), nullptr, &out, in.data());
        assert_int_equal(out, want);
    }
}

static void warp_operations(int *out)
{
    const int lane = (int)threadIdx.x % 32;
    int v = lane * lane;

    for (int x = 16; x > 0; x /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, x);
    const uint32_t odd = __ballot_sync(0xffffffffu, lane & 1);
    int half = lane;
    if (lane < 16)
        half = __reduce_add_sync(0x0000ffffu, lane);
    __syncwarp();
    const unsigned most = __reduce_max_sync(0xffffffffu, (unsigned)lane * 3);
    const int up = __shfl_up_sync(0xffffffffu, lane, 1), down = __shfl_down_sync(0xffffffffu, lane, 1);
    out[threadIdx.x] = v + (int)(odd == 0xaaaaaaaau) + half + (int)most + up * 1000 + down * 100000;
}

static void warps_shuffle_vote_and_reduce_as_the_manual_says(void **)
{
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        int out[64];
        emu::set_seed(seed);
        LAUNCH(warp_operations, 1, 64, 0, nullptr, out);
        for (int i = 0; i < 64; i++) {
            const int l = i % 32, up = l == 0 ? 0 : l - 1, down = l == 31 ? 31 : l + 1;
            assert_int_equal(out[i], 10416 + 1 + (l < 16 ? 120 : l) + 93 + up * 1000 + down * 100000);
        }
    }
}

/* One 16 x 8 x 32 product by mma, fragments gathered from row-major memory. */
static void mma_int(int *c, const uint8_t *a, const int8_t *b, bool signed_a)
{
    const unsigned g = threadIdx.x / 4, j = threadIdx.x % 4;
    uint32_t fa[4], fb[2];
    int fc[4] = { 1, 2, 3, 4 };

    for (unsigned i = 0; i < 4; i++)
        memcpy(&fa[i], a + (g + i % 2 * 8) * 32 + 4 * j + i / 2 * 16, 4);
    for (unsigned i = 0; i < 2; i++)
        memcpy(&fb[i], b + g * 32 + 4 * j + i * 16, 4);
    if (signed_a)
        mma_s8s8(fc, fa, fb);
    else
        mma_u8s8(fc, fa, fb);
    for (unsigned i = 0; i < 4; i++)
        c[(g + i / 2 * 8) * 8 + 2 * j + i % 2] = fc[i];
}

static void integer_mma_is_the_plain_product(void **)
{
    uint8_t a[16 * 32];
    int8_t b[8 * 32];
    int c[16 * 8];

    srand(7);
    for (uint8_t &x : a)
        x = (uint8_t)rand();
    for (int8_t &x : b)
        x = (int8_t)rand();
    for (bool signed_a : { false, true }) {
        LAUNCH(mma_int, 1, 32, 0, nullptr, c, a, b, signed_a);
        for (int r = 0; r < 16; r++)
            for (int n = 0; n < 8; n++) {
                int sum = r / 8 * 2 + n % 2 + 1;
                for (int k = 0; k < 32; k++)
                    sum += (signed_a ? (int8_t)a[r * 32 + k] : a[r * 32 + k]) * b[n * 32 + k];
                assert_int_equal(c[r * 8 + n], sum);
            }
    }
}

/* Rows by lanes 0 .. 31, eight of each of four matrices. */
static void transpose(uint32_t *out, const uint16_t *in)
{
    SHARED_BYTES(bytes);
    uint32_t x[4];

    memcpy(bytes + threadIdx.x * 16, in + threadIdx.x * 8, 16);
    __syncwarp();
    load_transposed(x, bytes + threadIdx.x * 16);
    memcpy(out + threadIdx.x * 4, x, sizeof(x));
}

static void four_matrices_come_transposed_from_shared_memory(void **)
{
    uint16_t in[32 * 8];
    uint32_t out[32 * 4];

    for (unsigned i = 0; i < 32 * 8; i++)
        in[i] = (uint16_t)i; /* 64 of each matrix, 8 a row */
    LAUNCH(transpose, 1, 32, 512, nullptr, out, in);
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned m = 0; m < 4; m++) {
            const unsigned first = 64 * m + lane % 4 * 16 + lane / 4;
            assert_int_equal(out[4 * lane + m], first | (first + 8) << 16);
        }
}

static void codes_become_numbers(void **)
{
    for (int code = -128; code < 128; code++) {
        const uint32_t pair = brains_of_codes(0xff00ff00u | (uint8_t)code | (uint32_t)(uint8_t)(5 - code) << 16);
        assert_true(__uint_as_float(pair << 16) == (float)code);
        assert_true(__uint_as_float(pair & 0xffff0000) == (float)(int8_t)(5 - code));
    }
}

static void mma_half(float *c, const uint16_t *a, const uint16_t *b, bool brain)
{
    const unsigned g = threadIdx.x / 4, j = threadIdx.x % 4;
    uint32_t fa[4], fb[2];
    float fc[4] = {};

    for (unsigned i = 0; i < 4; i++)
        memcpy(&fa[i], a + (g + i % 2 * 8) * 16 + 2 * j + i / 2 * 8, 4);
    for (unsigned i = 0; i < 2; i++)
        memcpy(&fb[i], b + g * 16 + 2 * j + i * 8, 4);
    if (brain)
        mma_bf16(fc, fa, fb);
    else
        mma_f16(fc, fa, fb);
    for (unsigned i = 0; i < 4; i++)
        c[(g + i / 2 * 8) * 8 + 2 * j + i % 2] = fc[i];
}

static void float_mma_is_the_plain_product(void **)
{
    for (int brain = 0; brain < 2; brain++) {
        uint16_t a[16 * 16], b[8 * 16];
        float c[16 * 8];
        auto number = [&](uint16_t h) { return brain ? __uint_as_float((uint32_t)h << 16) : half_to_float(h); };
        auto code = [&](float x) { return brain ? (uint16_t)(__float_as_uint(x) >> 16) : float_to_half(x); };
        for (int i = 0; i < 16 * 16; i++)
            a[i] = code((float)(i * 37 % 19 - 9));
        for (int i = 0; i < 8 * 16; i++)
            b[i] = code((float)(i * 53 % 17 - 8));
        LAUNCH(mma_half, 1, 32, 0, nullptr, c, a, b, (bool)brain);
        for (int r = 0; r < 16; r++)
            for (int n = 0; n < 8; n++) {
                float sum = 0;
                for (int k = 0; k < 16; k++)
                    sum += number(a[r * 16 + k]) * number(b[n * 16 + k]);
                assert_true(c[r * 8 + n] == sum);
            }
    }
}

static void every_half_comes_back(void **)
{
    for (uint32_t h = 0; h < 65536; h++)
        if ((h & 0x7fff) <= 0x7c00)
            assert_int_equal(float_to_half(half_to_float((uint16_t)h)), h);
    assert_int_equal(float_to_half(65519.0f), 0x7bff);
    assert_int_equal(float_to_half(65520.0f), 0x7c00);
    assert_int_equal(float_to_half(1.0f + 0x1p-11f), 0x3c00); /* ties to even */
    assert_int_equal(float_to_half(1.0f + 0x3p-11f), 0x3c02);
    assert_int_equal(float_to_half(0x1p-25f), 0);
    assert_int_equal(float_to_half(0x3p-25f), 2);
}

/* ---- planted mistakes ---- */

static void no_barrier_before_reading(int *out)
{
    SHARED_BYTES(bytes);
    int *s = reinterpret_cast<int *>(bytes);

    s[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = s[(threadIdx.x + 1) % blockDim.x];
}

static void no_barrier_before_overwriting(int *out)
{
    SHARED_OBJECT(int, s);

    for (int i = 0; i < 4; i++) {
        if (threadIdx.x == 0)
            s = i;
        __syncthreads();
        out[threadIdx.x] += s; /* a barrier is missing after this */
    }
}

static void no_syncwarp_between_lanes(int *out)
{
    SHARED_BYTES(bytes);
    int *s = reinterpret_cast<int *>(bytes);

    s[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = s[threadIdx.x ^ 1];
}

static void no_wait_for_the_copy(int *out, const int *in)
{
    SHARED_BYTES(bytes);
    int *s = reinterpret_cast<int *>(bytes);

    if (threadIdx.x < 8)
        cp_async16(s + 4 * threadIdx.x, in + 4 * threadIdx.x);
    cp_async_commit();
    cp_async_wait<1>(); /* one group may still be on its way: this one */
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
    cp_async_wait<0>();
}

template <typename F> static bool some_seed_shows_it(F wrong)
{
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        emu::set_seed(seed);
        if (wrong())
            return true;
    }
    return false;
}

static void missing_synchronisation_gives_wrong_numbers(void **)
{
    std::vector<int> out(32), in(32);

    for (int i = 0; i < 32; i++)
        in[(size_t)i] = i;
    assert_true(some_seed_shows_it([&] {
        LAUNCH(no_barrier_before_reading, 1, 32, 128, nullptr, out.data());
        return out[0] != 1 || out[31] != 0;
    }));
    assert_true(some_seed_shows_it([&] {
        out.assign(32, 0);
        LAUNCH(no_barrier_before_overwriting, 1, 32, 0, nullptr, out.data());
        for (int v : out)
            if (v != 6)
                return true;
        return false;
    }));
    assert_true(some_seed_shows_it([&] {
        LAUNCH(no_syncwarp_between_lanes, 1, 32, 128, nullptr, out.data());
        return out[0] != 1 || out[1] != 0;
    }));
    assert_true(some_seed_shows_it([&] {
        LAUNCH(no_wait_for_the_copy, 1, 32, 128, nullptr, out.data(), in.data());
        return out[5] != 5;
    }));
}

static void half_the_block_at_a_barrier()
{
    if (threadIdx.x < 32)
        __syncthreads();
}

static void two_barriers_at_once()
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

static void a_lane_stays_away()
{
    if (threadIdx.x != 5)
        __shfl_xor_sync(0xffffffffu, 1, 1);
}

static void a_lane_that_is_not_in_its_mask()
{
    __ballot_sync(0x0000ffffu, 1);
}

static void lanes_in_two_operations()
{
    if (threadIdx.x < 16)
        __ballot_sync(0xffffffffu, 1);
    else
        __syncwarp();
}

static void a_shuffle_from_outside_the_mask(int *out)
{
    if (threadIdx.x < 16)
        out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 20);
}

static void leaves_with_a_copy(const int *in)
{
    SHARED_BYTES(bytes);

    cp_async16(bytes, in);
    cp_async_commit();
}

static void never_waits_for_the_launch_before()
{
    if (threadIdx.x > 0)
        grid_wait();
}

static void begins_the_next_launch_first()
{
    grid_launch();
    grid_wait();
}

template <typename F> static void assert_fails(const char *with, F launch)
{
    emu::expect_failure(true);
    launch();
    if (emu::failure().find(with) == std::string::npos)
        fail_msg("\"%s\" does not tell \"%s\"", emu::failure().c_str(), with);
    emu::expect_failure(false);
}

static void divergence_is_found_and_named(void **)
{
    int out[32];
    alignas(16) int in[4] = {};

    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
        emu::set_seed(seed);
        assert_fails("divergent", [] { LAUNCH(half_the_block_at_a_barrier, 1, 64, 0, nullptr); });
        assert_fails("different barriers", [] { LAUNCH(two_barriers_at_once, 1, 64, 0, nullptr); });
        assert_fails("divergent", [] { LAUNCH(a_lane_stays_away, 1, 32, 0, nullptr); });
        assert_fails("not in mask", [] { LAUNCH(a_lane_that_is_not_in_its_mask, 1, 32, 0, nullptr); });
        assert_fails("different operations", [] { LAUNCH(lanes_in_two_operations, 1, 32, 0, nullptr); });
        assert_fails("reads lane 20", [&] { LAUNCH(a_shuffle_from_outside_the_mask, 1, 32, 0, nullptr, out); });
        assert_fails("has not waited", [&] { LAUNCH(leaves_with_a_copy, 1, 1, 16, nullptr, in); });
    }
    assert_fails("has not waited for the launch before", [] { emu::run(1, 32, 0, true, never_waits_for_the_launch_before); });
    assert_fails("lets the next launch begin", [] { emu::run(1, 32, 0, true, begins_the_next_launch_first); });
    assert_fails("no device takes", [] { LAUNCH(half_the_block_at_a_barrier, 1, 1056, 0, nullptr); });
}

static void fresh_shared_memory(float *out)
{
    SHARED_BYTES(bytes);
    SHARED_OBJECT(float, x);

    out[0] = reinterpret_cast<float *>(bytes)[3];
    out[1] = x;
}

static void shared_memory_begins_as_no_number(void **)
{
    float out[2] = {};

    LAUNCH(fresh_shared_memory, 1, 1, 16, nullptr, out);
    assert_true(out[0] != out[0] && out[1] != out[1]);
}

int main()
{
    const CMUnitTest tests[] = {
        cmocka_unit_test(sums_in_shared_memory_are_right_in_every_order),
        cmocka_unit_test(warps_shuffle_vote_and_reduce_as_the_manual_says),
        cmocka_unit_test(integer_mma_is_the_plain_product),
        cmocka_unit_test(float_mma_is_the_plain_product),
        cmocka_unit_test(four_matrices_come_transposed_from_shared_memory),
        cmocka_unit_test(codes_become_numbers),
        cmocka_unit_test(every_half_comes_back),
        cmocka_unit_test(missing_synchronisation_gives_wrong_numbers),
        cmocka_unit_test(divergence_is_found_and_named),
        cmocka_unit_test(shared_memory_begins_as_no_number),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
