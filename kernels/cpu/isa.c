/* isa.c - which kernels this machine can run.  cpuid tells what the processor has, xgetbv what the system saves: an
 * instruction set counts only when both agree. */
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>

struct features {
    bool avx2, avxvnni, avx512;
};

static uint64_t saved_state(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static struct features detect(void)
{
    struct features f = { 0 };
    unsigned a, b, c, d, b7, c7;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return f;
    const bool fma = (c & bit_FMA) && (c & bit_F16C);
    const uint64_t saved = saved_state();
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d))
        return f;
    const unsigned highest = a;
    f.avx2 = fma && (b7 & bit_AVX2) && (saved & 6) == 6;
    f.avx512 = f.avx2 && (saved & 0xe6) == 0xe6 && (b7 & bit_AVX512F) && (b7 & bit_AVX512BW) && (b7 & bit_AVX512VL) &&
               (b7 & bit_AVX512DQ) && (c7 & bit_AVX512VNNI);
    if (highest >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        f.avxvnni = f.avx2 && (a & 1u << 4);
    return f;
}
#endif

const struct kernels *kernels_by_name(const char *isa)
{
    if (strcmp(isa, "scalar") == 0)
        return &kernels_scalar;
#if defined(__x86_64__)
    const struct features f = detect();
    if (f.avx2 && strcmp(isa, "avx2") == 0)
        return &kernels_avx2;
    if (f.avxvnni && strcmp(isa, "avxvnni") == 0)
        return &kernels_avxvnni;
    if (f.avx512 && strcmp(isa, "avx512vnni") == 0)
        return &kernels_avx512;
#endif
    return NULL;
}

const struct kernels *kernels_select(void)
{
    static const char *const order[] = { "avx512vnni", "avxvnni", "avx2", "scalar" };
    const char *forced = getenv("WEIR_CPU_ISA");
    const struct kernels *k = NULL;

    if (forced != NULL && forced[0] != '\0')
        return kernels_by_name(forced);
    for (size_t i = 0; k == NULL && i < sizeof(order) / sizeof(order[0]); i++)
        k = kernels_by_name(order[i]);
    return k;
}
