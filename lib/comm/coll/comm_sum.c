/* Sums of several arrays, in a fixed order. */
#include "comm/coll/comm_sum.h"

#include "base/clones.h"

enum { BLOCK = 1024 };

#define SUM_BODY(type, acc_type, load, store)                                                                          \
	do {                                                                                                           \
		acc_type acc[BLOCK];                                                                                   \
		const type *p[4];                                                                                      \
		for (int k = 0; k < 4; k++)                                                                            \
			p[k] = (const type *)in[k < n_in ? k : 0];                                                     \
		if (n_in == 2) {                                                                                       \
			_Pragma("GCC ivdep") for (size_t i = 0; i < n; i++)((type *)out)[i] =                          \
				store((acc_type)(load(p[0][i]) + load(p[1][i])));                                      \
			break;                                                                                         \
		}                                                                                                      \
		if (n_in == 4) {                                                                                       \
			_Pragma("GCC ivdep") for (size_t i = 0; i < n; i++)((type *)out)[i] =                          \
				store((acc_type)(((load(p[0][i]) + load(p[1][i])) + load(p[2][i])) + load(p[3][i])));  \
			break;                                                                                         \
		}                                                                                                      \
		for (size_t at = 0; at < n; at += BLOCK) {                                                             \
			size_t m = n - at < BLOCK ? n - at : BLOCK;                                                    \
			const type *x = (const type *)in[0] + at;                                                      \
			type *y = (type *)out + at;                                                                    \
			for (size_t i = 0; i < m; i++)                                                                 \
				acc[i] = load(x[i]);                                                                   \
			for (int k = 1; k < n_in; k++) {                                                               \
				x = (const type *)in[k] + at;                                                          \
				for (size_t i = 0; i < m; i++)                                                         \
					acc[i] += load(x[i]);                                                          \
			}                                                                                              \
			for (size_t i = 0; i < m; i++)                                                                 \
				y[i] = store(acc[i]);                                                                  \
		}                                                                                                      \
	} while (0)

#define SAME(x) (x)

/* As vfm_f32_to_bf16, without a branch. */
static inline __attribute__((always_inline)) uint16_t round_to_bf16(float f)
{
	union {
		float f;
		uint32_t u;
	} x = {.f = f};
	uint32_t round = (x.u + 0x7fffu + ((x.u >> 16) & 1)) >> 16, nan = (x.u >> 16) | 0x40;

	return (uint16_t)((x.u & 0x7fffffffu) > 0x7f800000u ? nan : round);
}

/* out may be in[k]: hence no restrict, although no element depends on another one.  Two and four ranks have their own
 * loops; other numbers use blocks of accumulators. */
VFM_CLONES("arch=x86-64-v4", "avx2", "default")
__attribute__((optimize("O3"))) void vfm_comm_sum(
	enum vfm_dtype dt, void *out, const void *const *in, int n_in, size_t n)
{
	switch (dt) {
	case VFM_F32:
		SUM_BODY(float, float, SAME, SAME);
		break;
	case VFM_BF16:
		SUM_BODY(uint16_t, float, vfm_bf16_to_f32, round_to_bf16);
		break;
	case VFM_F64:
		SUM_BODY(double, double, SAME, SAME);
		break;
	case VFM_I64:
		SUM_BODY(uint64_t, uint64_t, SAME, SAME);
		break;
	default:
		break;
	}
}
