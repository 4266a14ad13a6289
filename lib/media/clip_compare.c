/* clip_compare.c - comparison of hashes; see clip_hash.h. */
#include <math.h>
#include <string.h>

#include "media/clip_hash.h"

#define COEFS VFM_CLIP_HASH_COEFS
#define SLOTS VFM_CLIP_HASH_SLOTS

#define WEAK   0.5 /* of the median magnitude of a slot: coefficients below have an uncertain sign */
#define GAIN   1.6 /* ratio of the motion of two clips, with their contrast taken into account */
#define SAME   40  /* root of the mean square of what differs in pictures that count as the same: 1.25 levels of luma */
#define ALIKE  1.5 /* by which 1 - correlation of two pictures is multiplied */
#define COMMON 0.7 /* of the shorter clip that both must show */

/* Functions that are compiled for each instruction set. */
#define INLINE static inline __attribute__((always_inline))

typedef float lanes __attribute__((vector_size(32)));
typedef int32_t mask __attribute__((vector_size(32)));

#define LANES 8
#define PARTS (COEFS / LANES)

/* ---- preparation ---- */

/* Returns the element COEFS / 2 of the ascending order: the largest one that so many or fewer are less than. */
INLINE float median_of(const lanes v[PARTS])
{
	float each[COEFS], median = 0;
	mask less[PARTS] = {0};
	lanes most = {0};

	memcpy(each, v, sizeof(each));
	for (int j = 0; j < COEFS; j++)
#pragma GCC unroll 6
		for (int i = 0; i < PARTS; i++)
			less[i] -= v[i] > each[j];
	for (int i = 0; i < PARTS; i++) {
		lanes x = (lanes)((mask)v[i] & (less[i] <= COEFS / 2));
		mask greater = x > most;

		most = (lanes)(((mask)x & greater) | ((mask)most & ~greater));
	}
	for (int i = 0; i < LANES; i++)
		median = most[i] > median ? most[i] : median;
	return median;
}

/* Bit i is set if element i of m is. */
INLINE uint64_t gather_bits(const mask m[PARTS])
{
	static const mask bit = {1, 2, 4, 8, 16, 32, 64, 128};
	mask low = (m[0] & bit) | (m[1] & bit << 8) | (m[2] & bit << 16),
	     high = (m[3] & bit) | (m[4] & bit << 8) | (m[5] & bit << 16);
	uint32_t bits[2] = {0};

	_Static_assert(PARTS == 6, "bits of 24 elements in a lane");
	for (int k = 0; k < LANES; k++) {
		bits[0] |= (uint32_t)low[k];
		bits[1] |= (uint32_t)high[k];
	}
	return bits[0] | (uint64_t)bits[1] << 24;
}

INLINE void find_signs(const float *x, uint64_t *sign, uint64_t *strong)
{
	lanes v[PARTS], size[PARTS];
	mask positive[PARTS], large[PARTS];
	float least;

	memcpy(v, x, sizeof(v));
	for (int i = 0; i < PARTS; i++) {
		positive[i] = v[i] > 0;
		size[i] = (lanes)((mask)v[i] & INT32_MAX);
	}
	least = (float)WEAK * median_of(size);
	for (int i = 0; i < PARTS; i++)
		large[i] = (size[i] >= least) & (size[i] > 0);
	*sign = gather_bits(positive);
	*strong = gather_bits(large);
}

/* signs: NULL, or those of the rows. */
INLINE void rows_of(struct vfm_clip_rows *r, const struct vfm_clip_hash *h, const struct vfm_clip_signs *signs)
{
	float mean[COEFS];

	r->slots = h->slots;
	for (int i = 0; i < COEFS; i++)
		mean[i] = (float)h->mean[i] / 4;
	for (int k = 0; k < h->slots; k++) {
		if (h->diff[k][0] == -128) {
			memset(r->x[k], 0, sizeof(r->x[k]));
			r->sign[k] = r->strong[k] = 0;
			continue;
		}
		for (int i = 0; i < COEFS; i++)
			r->x[k][i] = mean[i] + h->scale * (float)h->diff[k][i];
		if (signs) {
			r->sign[k] = vfm_clip_sign_of(&signs[k]);
			r->strong[k] = vfm_clip_strong_of(&signs[k]);
		} else {
			find_signs(r->x[k], &r->sign[k], &r->strong[k]);
		}
	}
}

INLINE void half_of(struct vfm_clip_rows *out, const struct vfm_clip_rows *in)
{
	out->slots = in->slots - 1;
	for (int k = 0; k < out->slots; k++) {
		for (int i = 0; i < COEFS; i++)
			out->x[k][i] = 0.5F * (in->x[k][i] + in->x[k + 1][i]);
		find_signs(out->x[k], &out->sign[k], &out->strong[k]);
		if (!in->strong[k] || !in->strong[k + 1])
			out->strong[k] = 0;
	}
}

/* ---- comparison at one shift ---- */

struct agreement {
	double sum, most; /* most: above it, 1 - the mean does not matter */
	int n;            /* slots that are counted */
};

/* Adds a pair of slots; `left` more follow.  Returns false if the mean cannot become high enough any more. */
INLINE bool add_slot(struct agreement *s, uint64_t strong_a, uint64_t strong_b, uint64_t unequal, int left)
{
	int all;

	if (strong_a | strong_b) { /* slots that are flat in both clips say nothing */
		all = __builtin_popcountll(strong_a & strong_b);
		s->n++;
		/* A flat slot resembles no other; and few certain signs say little. */
		if (all >= COEFS / 4)
			s->sum += 1 - 2.0 * __builtin_popcountll(unequal & strong_a & strong_b) / all;
	}
	return s->sum - (1 - s->most) * s->n + s->most * left >= -1e-6;
}

/* 1 - agreement, of n common slots; 2 if too few count. */
INLINE double distance_of(const struct agreement *s, int n)
{
	return 2 * s->n < n || (s->n < 2 && n > 1) || !s->n ? 2 : 1 - s->sum / s->n;
}

INLINE double compare_signs(
	const struct vfm_clip_rows *a, int a0, const struct vfm_clip_rows *b, int b0, int n, uint64_t flip, double most)
{
	struct agreement s = {.most = most};

	for (int k = 0; k < n; k++)
		if (!add_slot(&s, a->strong[a0 + k], b->strong[b0 + k], a->sign[a0 + k] ^ b->sign[b0 + k] ^ flip,
			    n - 1 - k))
			return 2;
	return distance_of(&s, n);
}

/* Correlation of the differences from the means of n rows; see clip_hash.h.  *still: it is undefined, or the rows,
 * scaled to one contrast, are the same. */
INLINE double correlate_motion(
	const struct vfm_clip_rows *a, int a0, const struct vfm_clip_rows *b, int b0, int n, uint64_t flip, bool *still)
{
	float sa[COEFS] = {0}, sb[COEFS] = {0}, aa[COEFS] = {0}, bb[COEFS] = {0}, ab[COEFS] = {0};
	double ea = 0, eb = 0, e = 0, of_a = 0, of_b = 0, of_both = 0, ratio;

	for (int k = 0; k < n; k++) {
		const float *x = a->x[a0 + k], *y = b->x[b0 + k];

		for (int i = 0; i < COEFS; i++) {
			sa[i] += x[i];
			sb[i] += y[i];
		}
	}
	for (int i = 0; i < COEFS; i++) {
		sa[i] /= (float)n;
		sb[i] /= (float)n;
	}
	for (int k = 0; k < n; k++) {
		const float *x = a->x[a0 + k], *y = b->x[b0 + k];

		for (int i = 0; i < COEFS; i++) {
			float p = x[i] - sa[i], q = y[i] - sb[i];

			aa[i] += p * p;
			bb[i] += q * q;
			ab[i] += p * q;
		}
	}
	for (int i = 0; i < COEFS; i++) {
		ea += (double)aa[i];
		eb += (double)bb[i];
		of_a += (double)aa[i] + n * (double)sa[i] * (double)sa[i];
		of_b += (double)bb[i] + n * (double)sb[i] * (double)sb[i];
		e += flip >> i & 1 ? -(double)ab[i] : (double)ab[i];
		of_both += (flip >> i & 1 ? -1 : 1) * ((double)ab[i] + n * (double)sa[i] * (double)sb[i]);
	}
	*still = fmax(ea, eb) < (double)(VFM_CLIP_HASH_STILL * VFM_CLIP_HASH_STILL) * n ||
		2 * (sqrt(of_a * of_b) - of_both) < (double)SAME * SAME * n;
	ratio = ea * of_b / fmax(eb * of_a, 1e-9); /* of the shares of motion; of_a, of_b: all energy */
	if (*still || ratio > GAIN * GAIN || ratio * GAIN * GAIN < 1)
		return 0;
	return 1 - (1 - e / sqrt(ea * eb)) * n / (n - 1);
}

/* Correlation of two rows. */
INLINE double correlate_pictures(const float *x, const float *y, uint64_t flip)
{
	double xx = 0, yy = 0, xy = 0;

	for (int i = 0; i < COEFS; i++) {
		xx += (double)(x[i] * x[i]);
		yy += (double)(y[i] * y[i]);
		xy += flip >> i & 1 ? -(double)(x[i] * y[i]) : (double)(x[i] * y[i]);
	}
	return xy / sqrt(fmax(xx * yy, 1e-9));
}

static int least_common(int a, int b)
{
	int shorter = a < b ? a : b, longer = a < b ? b : a, n = (int)ceil(COMMON * shorter);

	return n < 2 && longer > 2 ? 2 : n;
}

INLINE void compare_phase(const struct vfm_clip_rows *a, const struct vfm_clip_rows *b, double phase_s, int common,
	struct vfm_clip_match *m)
{
	for (int shift = common - b->slots; shift <= a->slots - common && common <= b->slots; shift++) {
		int a0 = shift > 0 ? shift : 0, b0 = shift < 0 ? -shift : 0;
		int n = a->slots - a0 < b->slots - b0 ? a->slots - a0 : b->slots - b0;

		for (int mirrored = 0; mirrored < 2; mirrored++) {
			uint64_t flip = mirrored ? VFM_CLIP_HASH_ODD : 0;
			double d = compare_signs(a, a0, b, b0, n, flip, m->distance);
			bool still = true;

			if (d < m->distance && n > 1) {
				double c = correlate_motion(a, a0, b, b0, n, flip, &still);

				d = still ? d : fmax(d, 1 - c);
			} else if (d < m->distance) {
				d = fmax(d, ALIKE * (1 - correlate_pictures(a->x[a0], b->x[b0], flip)));
			}
			if (d < m->distance)
				*m = (struct vfm_clip_match){d, VFM_CLIP_HASH_STEP * shift - phase_s, n, mirrored != 0};
		}
	}
}

INLINE void compare(const struct vfm_clip_rows *a, const struct vfm_clip_rows *b, const struct vfm_clip_rows *half,
	double most, struct vfm_clip_match *m)
{
	const int common = least_common(a->slots, b->slots);

	*m = (struct vfm_clip_match){.distance = most};
	compare_phase(a, b, 0, common, m);
	compare_phase(a, half, VFM_CLIP_HASH_STEP / 2, common, m);
}

/* ---- candidates ---- */

INLINE bool signs_resemble(const struct vfm_clip_signs *a, int na, const struct vfm_clip_signs *b, int nb, double most)
{
	const int common = least_common(na, nb);

	for (int shift = common - nb; shift <= na - common; shift++) {
		const struct vfm_clip_signs *p = a + (shift > 0 ? shift : 0), *q = b + (shift < 0 ? -shift : 0);
		int n = (int)(a + na - p < b + nb - q ? a + na - p : b + nb - q);

		for (int mirrored = 0; mirrored < 2; mirrored++) {
			uint64_t flip = mirrored ? VFM_CLIP_HASH_ODD : 0;
			struct agreement s = {.most = most};
			int k = 0;

			while (k < n &&
				add_slot(&s, vfm_clip_strong_of(&p[k]), vfm_clip_strong_of(&q[k]),
					vfm_clip_sign_of(&p[k]) ^ vfm_clip_sign_of(&q[k]) ^ flip, n - 1 - k))
				k++;
			if (k == n && distance_of(&s, n) <= most)
				return true;
		}
	}
	return false;
}

/* ---- instruction sets ---- */

#if defined(__x86_64__)
#define FAST __attribute__((target("avx2,popcnt")))

FAST static void rows_of_avx2(
	struct vfm_clip_rows *r, const struct vfm_clip_hash *h, const struct vfm_clip_signs *signs)
{
	rows_of(r, h, signs);
}

FAST static void half_of_avx2(struct vfm_clip_rows *out, const struct vfm_clip_rows *in)
{
	half_of(out, in);
}

FAST static void compare_avx2(const struct vfm_clip_rows *a, const struct vfm_clip_rows *b,
	const struct vfm_clip_rows *half, double most, struct vfm_clip_match *m)
{
	compare(a, b, half, most, m);
}

FAST static bool signs_resemble_avx2(
	const struct vfm_clip_signs *a, int na, const struct vfm_clip_signs *b, int nb, double most)
{
	return signs_resemble(a, na, b, nb, most);
}

static bool is_fast(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
}
#else
#define rows_of_avx2        rows_of
#define half_of_avx2        half_of
#define compare_avx2        compare
#define signs_resemble_avx2 signs_resemble

static bool is_fast(void)
{
	return false;
}
#endif

void vfm_clip_rows_of(struct vfm_clip_rows *r, const struct vfm_clip_hash *h)
{
	vfm_clip_rows_with(r, h, NULL);
}

void vfm_clip_rows_with(struct vfm_clip_rows *r, const struct vfm_clip_hash *h, const struct vfm_clip_signs *signs)
{
	if (is_fast())
		rows_of_avx2(r, h, signs);
	else
		rows_of(r, h, signs);
}

void vfm_clip_half_of(struct vfm_clip_rows *half, const struct vfm_clip_rows *r)
{
	if (is_fast())
		half_of_avx2(half, r);
	else
		half_of(half, r);
}

void vfm_clip_compare(const struct vfm_clip_rows *a, const struct vfm_clip_rows *b, const struct vfm_clip_rows *half,
	double most, struct vfm_clip_match *m)
{
	if (is_fast())
		compare_avx2(a, b, half, most, m);
	else
		compare(a, b, half, most, m);
}

bool vfm_clip_signs_resemble(
	const struct vfm_clip_signs *a, int na, const struct vfm_clip_signs *b, int nb, double most)
{
	return is_fast() ? signs_resemble_avx2(a, na, b, nb, most) : signs_resemble(a, na, b, nb, most);
}
