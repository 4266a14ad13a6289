/* clip_signs.c - finds the clips that resemble one by their signs; see clip_hash.h. */
#include "base/clones.h"
#include "media/match/clip_agreement.h"
#include "media/match/clip_compare.h"
#include "media/match/clip_hash.h"
#include "media/match/clip_signs.h"

/* ---- one pair of clips at one shift ---- */

struct overlap { /* the common slots of two clips */
	const uint64_t *sign_a, *strong_a, *sign_b, *strong_b;
	int n;
};

static inline struct overlap overlap_at(const struct vfm_clip_rows *a, const struct vfm_clip_rows *b, int shift)
{
	int a0 = shift > 0 ? shift : 0, b0 = shift < 0 ? -shift : 0;
	int n = a->slots - a0 < b->slots - b0 ? a->slots - a0 : b->slots - b0;

	return (struct overlap){a->sign + a0, a->strong + a0, b->sign + b0, b->strong + b0, n};
}

INLINE bool agrees_exactly(const struct overlap *o, double most, uint64_t flip)
{
	struct agreement s = {.most = most};

	for (int k = 0; k < o->n; k++)
		if (!agreement_add(
			    &s, o->strong_a[k], o->strong_b[k], o->sign_a[k] ^ o->sign_b[k] ^ flip, o->n - 1 - k))
			return false;
	return agreement_distance(&s, o->n) <= most;
}

INLINE bool agrees(const struct overlap *o, double most)
{
	return agrees_exactly(o, most, 0) || agrees_exactly(o, most, VFM_CLIP_HASH_ODD);
}

/* ---- a clip and others ---- */

INLINE uint64_t find_resembling(const struct vfm_clip_rows *const *a, int n, const struct vfm_clip_rows *b, double most,
	bool (*test)(const struct overlap *o, double most))
{
	uint64_t found = 0;

	for (int i = 0; i < n; i++) {
		const int common = clip_least_common(a[i]->slots, b->slots);

		for (int shift = common - b->slots; clip_have_common(a[i], b, common) && shift <= a[i]->slots - common;
			shift++) {
			const struct overlap o = overlap_at(a[i], b, shift);

			if (test(&o, most)) {
				found |= UINT64_C(1) << i;
				break;
			}
		}
	}
	return found;
}

VFM_CLONES("popcnt", "default")
static uint64_t find_resembling_plain(
	const struct vfm_clip_rows *const *a, int n, const struct vfm_clip_rows *b, double most)
{
	return find_resembling(a, n, b, most, agrees);
}

/* ---- instruction sets ---- */

#if defined(__x86_64__)
#include <immintrin.h>

#define WIDE __attribute__((target("popcnt,avx2,avx512f,avx512dq,avx512vl,avx512vpopcntdq")))

WIDE static inline float add_lanes(__m256 v)
{
	__m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

	x = _mm_add_ps(x, _mm_movehl_ps(x, x));
	return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

/* Sums of eight slots at a time, upright and mirrored, in float.  These decide unless they are close to the limit. */
WIDE static inline bool agrees_wide(const struct overlap *o, double most)
{
	const __m512i odd = _mm512_set1_epi64((long long)VFM_CLIP_HASH_ODD);
	const __m256 one = _mm256_set1_ps(1), two = _mm256_set1_ps(2);
	__m256 upright = _mm256_setzero_ps(), mirrored = upright;
	const double error = 1e-5 * (o->n + 1);
	double best, limit;
	float a, b;
	int counted = 0;

	for (int k = 0; k < o->n; k += 8) {
		__mmask8 in = o->n - k >= 8 ? 0xff : (__mmask8)((1 << (o->n - k)) - 1);
		__m512i sa = _mm512_maskz_loadu_epi64(in, o->sign_a + k),
			sb = _mm512_maskz_loadu_epi64(in, o->sign_b + k),
			ta = _mm512_maskz_loadu_epi64(in, o->strong_a + k),
			tb = _mm512_maskz_loadu_epi64(in, o->strong_b + k), any = _mm512_or_epi64(ta, tb),
			both = _mm512_and_epi64(ta, tb), unequal = _mm512_and_epi64(_mm512_xor_epi64(sa, sb), both),
			flipped = _mm512_xor_epi64(unequal, _mm512_and_epi64(both, odd)),
			all = _mm512_popcnt_epi64(both);
		__mmask8 sure = _mm512_cmpge_epi64_mask(all, _mm512_set1_epi64(CLIP_SURE));
		__m256 share = _mm256_div_ps(two, _mm512_cvtepi64_ps(all)),
		       u = _mm256_mul_ps(share, _mm512_cvtepi64_ps(_mm512_popcnt_epi64(unequal))),
		       f = _mm256_mul_ps(share, _mm512_cvtepi64_ps(_mm512_popcnt_epi64(flipped)));

		upright = _mm256_mask_add_ps(upright, sure, upright, _mm256_sub_ps(one, u));
		mirrored = _mm256_mask_add_ps(mirrored, sure, mirrored, _mm256_sub_ps(one, f));
		counted += __builtin_popcount(_mm512_test_epi64_mask(any, any));
	}
	if (2 * counted < o->n || (counted < 2 && o->n > 1) || !counted)
		return false;
	a = add_lanes(upright), b = add_lanes(mirrored);
	best = (double)(a > b ? a : b);
	limit = (1 - most) * counted;
	if (best < limit - error)
		return false;
	return best > limit + error || agrees(o, most);
}

WIDE static uint64_t find_resembling_wide(
	const struct vfm_clip_rows *const *a, int n, const struct vfm_clip_rows *b, double most)
{
	return find_resembling(a, n, b, most, agrees_wide);
}

static bool has_wide(void)
{
	return __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
		__builtin_cpu_supports("avx512vpopcntdq");
}
#endif

uint64_t vfm_clip_signs_resemble(
	const struct vfm_clip_rows *const *a, int n, const struct vfm_clip_rows *b, double most)
{
#if defined(__x86_64__)
	if (has_wide())
		return find_resembling_wide(a, n, b, most);
#endif
	return find_resembling_plain(a, n, b, most);
}
