/* Which variant runs: the only file that asks the CPU what it has. */
#include "kernels/kernels.h"

#include <cpuid.h>
#include <string.h>

#include "kernels/variants.h"

static bool
has_any(void)
{
    return true;
}

/* F16C has no name in clang 14's __builtin_cpu_supports; it is bit 29 of ecx of leaf 1. That the
   system saves the wide registers is part of what the builtin answers for avx2. */
static bool
has_avx2(void)
{
    unsigned int eax = 0;
    unsigned int ebx = 0;
    unsigned int ecx = 0;
    unsigned int edx = 0;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 29)) != 0;
}

static bool
has_avx512vnni(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

static const struct {
    const struct bh_kernels *kernels;
    bool (*usable)(void);
} variants[] = {
#define BH_KERNEL_VARIANT(symbol, name, requirement) {&symbol, requirement},
#include "kernels/kernels.def"
#undef BH_KERNEL_VARIANT
};

const struct bh_kernels *
bh_kernels_at(uint32_t idx, bool *usable)
{
    if (idx >= BH_COUNT(variants)) {
        return NULL;
    }
    *usable = variants[idx].usable();
    return variants[idx].kernels;
}

const struct bh_kernels *
bh_kernels_find(const char *name)
{
    const struct bh_kernels *best = NULL;
    for (uint32_t i = 0; i < BH_COUNT(variants); i++) {
        bool wanted = name == NULL || strcmp(name, variants[i].kernels->name) == 0;
        if (wanted && variants[i].usable()) {
            best = variants[i].kernels;
        }
    }
    return best;
}
