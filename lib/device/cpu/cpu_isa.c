/* cpu_isa.c - queries CPUID for the best instruction set, which VFM_CPU_ISA may lower. */
#include "device/cpu/cpu_isa.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const names[VFM_ISA_N] = {"base", "avx2", "avx512", "avx512_bf16", "amx"};

const char *vfm_isa_name(enum vfm_isa isa)
{
	return names[isa];
}

#ifdef __x86_64__
#include <cpuid.h>

/* Linux grants the 8 KiB of tile state only on request. */
static bool amx_permitted(void)
{
	enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

	return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

enum vfm_isa vfm_isa_best(void)
{
	unsigned a, b, c, d;

	__builtin_cpu_init();
	if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
		return VFM_ISA_BASE;
	if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
		!__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
		return VFM_ISA_AVX2;
	/* Older supported compilers lack the names of these two. */
	if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & 1u << 5))
		return VFM_ISA_AVX512;
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & 1u << 22) || !(d & 1u << 24) || !amx_permitted())
		return VFM_ISA_AVX512_BF16;
	return VFM_ISA_AMX;
}
bool vfm_isa_fast_pairs(void)
{
	enum { COOPER_LAKE = 0x55 };
	unsigned a, b, c, d;

	__builtin_cpu_init();
	if (!__builtin_cpu_is("intel"))
		return true;
	return __get_cpuid(1, &a, &b, &c, &d) && ((a >> 4 & 0xf) | (a >> 12 & 0xf0)) == COOPER_LAKE;
}
#else
enum vfm_isa vfm_isa_best(void)
{
	return VFM_ISA_BASE;
}

bool vfm_isa_fast_pairs(void)
{
	return false;
}
#endif

int vfm_isa_choose(enum vfm_isa *isa, struct vfm_err *err)
{
	const char *want = getenv("VFM_CPU_ISA");
	enum vfm_isa best = vfm_isa_best();

	*isa = best;
	if (!want || !*want)
		return 0;
	for (int i = 0; i < VFM_ISA_N; i++) {
		if (strcmp(want, names[i]) != 0)
			continue;
		if (i > (int)best)
			return vfm_fail(err, VFM_EUSAGE, "VFM_CPU_ISA=%s: this CPU has only %s", want, names[best]);
		*isa = (enum vfm_isa)i;
		return 0;
	}
	return vfm_fail(
		err, VFM_EUSAGE, "VFM_CPU_ISA: expected base, avx2, avx512, avx512_bf16 or amx, got '%s'", want);
}
