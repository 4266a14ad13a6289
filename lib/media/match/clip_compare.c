/* clip_compare.c - comparison of hashes; see clip_hash.h. */
#include <math.h>
#include <string.h>

#include "base/clones.h"
#include "media/match/clip_agreement.h"
#include "media/match/clip_compare.h"
#include "media/match/clip_hash.h"
#include "media/match/image_compare.h"

#define COEFS VFM_CLIP_HASH_COEFS

#define WEAK       0.5 /* of the median magnitude of a slot: coefficients below have an uncertain sign */
#define GAIN       1.6 /* ratio of the motion of two clips, with their contrast taken into account */
#define SAME       40  /* root of the mean square difference of pictures that count as the same: 1.25 levels of luma */
#define SHOTS      3   /* 1 - correlation of motion is multiplied by this times the share of motion, … */
#define SHOTS_MOST 2.0 /* … at most by this */
#define ALIKE      1.5 /* factor of 1 - correlation of two pictures */

/* Sums have the same bits with each instruction set. */
#define FAST VFM_CLONES("avx2", "default")

typedef float lanes __attribute__((vector_size(32)));
typedef int32_t mask __attribute__((vector_size(32)));

#define LANES 8
#define PARTS (COEFS / LANES)

/* ---- preparation ---- */

/* Returns element COEFS / 2 of the ascending order: the largest one that at most COEFS / 2 elements are less than. */
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

FAST void vfm_clip_rows_fill(struct vfm_clip_rows *r, const struct vfm_clip_hash *h)
{
	float mean[COEFS];

	r->has_view = h->has_detail && !h->changes.n;
	r->has_detail = h->has_detail && h->changes.n;
	if (r->has_view)
		vfm_image_view_of(&r->view, &h->detail);
	if (r->has_detail)
		r->detail = h->detail;
	r->changes.n = h->changes.n;
	memcpy(r->changes.steps, h->changes.steps, (size_t)h->changes.n * sizeof(r->changes.steps[0]));
	for (int i = 0; i < COEFS; i++)
		mean[i] = (float)h->mean[i] / 4;
	for (int k = 0; k < h->slots; k++) {
		if (h->diff[k][0] == -128) {
			memset(r->x[k], 0, sizeof(r->x[k]));
			continue;
		}
		for (int i = 0; i < COEFS; i++)
			r->x[k][i] = mean[i] + h->scale * (float)h->diff[k][i];
	}
}

FAST void vfm_clip_rows_of(struct vfm_clip_rows *r, const struct vfm_clip_hash *h)
{
	r->slots = h->slots;
	vfm_clip_rows_fill(r, h);
	for (int k = 0; k < h->slots; k++)
		if (h->diff[k][0] == -128)
			r->sign[k] = r->strong[k] = 0;
		else
			find_signs(r->x[k], &r->sign[k], &r->strong[k]);
}

FAST void vfm_clip_half_of(struct vfm_clip_rows *out, const struct vfm_clip_rows *in)
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

void vfm_clip_rows_signs(struct vfm_clip_rows *r, const struct vfm_clip_signs *signs, int slots)
{
	r->slots = slots;
	for (int k = 0; k < slots; k++) {
		r->sign[k] = vfm_clip_sign_of(&signs[k]);
		r->strong[k] = vfm_clip_strong_of(&signs[k]);
	}
}

/* ---- comparison at one shift ---- */

INLINE double compare_signs(
	const struct vfm_clip_rows *a, int a0, const struct vfm_clip_rows *b, int b0, int n, uint64_t flip, double most)
{
	struct agreement s = {.most = most};

	for (int k = 0; k < n; k++)
		if (!agreement_add(&s, a->strong[a0 + k], b->strong[b0 + k], a->sign[a0 + k] ^ b->sign[b0 + k] ^ flip,
			    n - 1 - k))
			return 2;
	return agreement_distance(&s, n);
}

/* Of n rows of each of two clips, for each coefficient. */
struct moments {
	int n;
	float sa[COEFS], sb[COEFS];            /* means */
	float aa[COEFS], bb[COEFS], ab[COEFS]; /* sums of products of the differences from these */
};

INLINE void add_moments(struct moments *m, const struct vfm_clip_rows *a, int a0, const struct vfm_clip_rows *b, int b0)
{
	for (int k = 0; k < m->n; k++) {
		const float *x = a->x[a0 + k], *y = b->x[b0 + k];

		for (int i = 0; i < COEFS; i++) {
			m->sa[i] += x[i];
			m->sb[i] += y[i];
		}
	}
	for (int i = 0; i < COEFS; i++) {
		m->sa[i] /= (float)m->n;
		m->sb[i] /= (float)m->n;
	}
	for (int k = 0; k < m->n; k++) {
		const float *x = a->x[a0 + k], *y = b->x[b0 + k];

		for (int i = 0; i < COEFS; i++) {
			float p = x[i] - m->sa[i], q = y[i] - m->sb[i];

			m->aa[i] += p * p;
			m->bb[i] += q * q;
			m->ab[i] += p * q;
		}
	}
}

/* Returns whether correlate_motion is sure to find that the rows are not the same, and that 1 - correlation is `most`
 * or more.  This decides most pairs of clips before one background.  Float sums have errors below 1e-5 of the energies.
 */
INLINE bool motion_differs(const struct moments *m, bool mirrored, double most)
{
	float a = 0, b = 0, both = 0, of_a = 0, of_b = 0, of_both = 0, n = (float)m->n, ratio;

#pragma omp simd reduction(+ : a, b, both, of_a, of_b, of_both)
	for (int i = 0; i < COEFS; i++) {
		const float turn = mirrored && VFM_CLIP_HASH_ODD >> i & 1 ? -1 : 1;

		a += m->aa[i];
		b += m->bb[i];
		both += turn * m->ab[i];
		of_a += m->aa[i] + n * m->sa[i] * m->sa[i];
		of_b += m->bb[i] + n * m->sb[i] * m->sb[i];
		of_both += turn * (m->ab[i] + n * m->sa[i] * m->sb[i]);
	}
	if ((a > b ? a : b) < 1.001F * VFM_CLIP_HASH_STILL * VFM_CLIP_HASH_STILL * n ||
		2 * (sqrtf(of_a) * sqrtf(of_b) - of_both) < 1.001F * SAME * SAME * n + 1e-4F * (of_a + of_b))
		return false;
	ratio = (a / of_a) / (b / of_b);
	if (ratio > 1.001F * (float)(GAIN * GAIN) || ratio * (float)(GAIN * GAIN) < 0.999F)
		return true;
	return (1 - both / (sqrtf(a) * sqrtf(b))) * n / (n - 1) > (float)most + 1e-3F;
}

/* Correlation of the differences from the means of n rows; see clip_hash.h.  *still: it is undefined, or the rows,
 * scaled to one contrast, are the same.  Below 1 - most, any number. */
INLINE double correlate_motion(const struct vfm_clip_rows *a, int a0, const struct vfm_clip_rows *b, int b0, int n,
	bool mirrored, double most, bool *still)
{
	double ea = 0, eb = 0, e = 0, of_a = 0, of_b = 0, of_both = 0, ratio, share;
	struct moments m = {.n = n};

	add_moments(&m, a, a0, b, b0);
	*still = false;
	if (motion_differs(&m, mirrored, most))
		return 0;
	for (int i = 0; i < COEFS; i++) {
		bool flip = mirrored && VFM_CLIP_HASH_ODD >> i & 1;

		ea += (double)m.aa[i];
		eb += (double)m.bb[i];
		of_a += (double)m.aa[i] + n * (double)m.sa[i] * (double)m.sa[i];
		of_b += (double)m.bb[i] + n * (double)m.sb[i] * (double)m.sb[i];
		e += flip ? -(double)m.ab[i] : (double)m.ab[i];
		of_both += (flip ? -1 : 1) * ((double)m.ab[i] + n * (double)m.sa[i] * (double)m.sb[i]);
	}
	*still = fmax(ea, eb) < (double)(VFM_CLIP_HASH_STILL * VFM_CLIP_HASH_STILL) * n ||
		2 * (sqrt(of_a * of_b) - of_both) < (double)SAME * SAME * n;
	ratio = ea * of_b / fmax(eb * of_a, 1e-9); /* of the shares of motion; of_a, of_b: all energy */
	if (*still || ratio > GAIN * GAIN || ratio * GAIN * GAIN < 1)
		return 0;
	share = 0.5 * (ea / fmax(of_a, 1e-9) + eb / fmax(of_b, 1e-9));
	return 1 - fmin(SHOTS_MOST, fmax(1, SHOTS * share)) * (1 - e / sqrt(ea * eb)) * n / (n - 1);
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

/* b: the rows of a clip, or if half is 1 those half a slot later; `changes` are those of the clip. */
INLINE void compare_phase(const struct vfm_clip_rows *a, const struct vfm_clip_rows *b,
	const struct vfm_clip_changes *changes, int half, int common, struct vfm_clip_match *m)
{
	const bool changing = a->changes.n && changes->n;

	for (int shift = common - b->slots; clip_have_common(a, b, common) && shift <= a->slots - common; shift++) {
		int a0 = shift > 0 ? shift : 0, b0 = shift < 0 ? -shift : 0;
		int n = a->slots - a0 < b->slots - b0 ? a->slots - a0 : b->slots - b0;

		for (int mirrored = 0; mirrored < 2; mirrored++) {
			uint64_t flip = mirrored ? VFM_CLIP_HASH_ODD : 0;
			double d = compare_signs(a, a0, b, b0, n, flip, m->distance);
			bool still = true;

			if (d < m->distance && n > 1) {
				double c = correlate_motion(a, a0, b, b0, n, mirrored, m->distance, &still);

				d = still ? d : fmax(d, 1 - c);
			} else if (d < m->distance) {
				d = fmax(d, ALIKE * (1 - correlate_pictures(a->x[a0], b->x[b0], flip)));
			}
			if (d < m->distance && changing)
				d = fmax(d,
					vfm_clip_changes_compare(
						&a->changes, changes, 2 * shift - half, mirrored != 0));
			if (d < m->distance)
				*m = (struct vfm_clip_match){
					d, VFM_CLIP_HASH_STEP * (shift - 0.5 * half), mirrored != 0};
		}
	}
}

static void compare_images(
	const struct vfm_clip_rows *a, const struct vfm_clip_rows *b, double most, struct vfm_clip_match *m)
{
	struct vfm_image_match i;

	vfm_image_compare(&a->view, &b->view, most, &i);
	*m = (struct vfm_clip_match){.distance = i.distance, .mirrored = i.mirrored};
}

/* Raises the distance of two clips to that of their mean pictures. */
static void compare_means(
	const struct vfm_clip_rows *a, const struct vfm_clip_rows *b, double most, struct vfm_clip_match *m)
{
	struct vfm_image_view x, y;
	struct vfm_image_match i;

	vfm_image_view_of(&x, &a->detail);
	vfm_image_view_of(&y, &b->detail);
	vfm_image_compare(&x, &y, most, &i);
	m->distance = fmax(m->distance, i.distance);
}

FAST void vfm_clip_compare(const struct vfm_clip_rows *a, const struct vfm_clip_rows *b,
	const struct vfm_clip_rows *half, double most, struct vfm_clip_match *m)
{
	const int common = clip_least_common(a->slots, b->slots);

	if (a->has_view && b->has_view) {
		compare_images(a, b, most, m);
		return;
	}
	*m = (struct vfm_clip_match){.distance = most};
	compare_phase(a, b, &b->changes, 0, common, m);
	compare_phase(a, half, &b->changes, 1, common, m);
	if (m->distance < most && a->has_detail && b->has_detail)
		compare_means(a, b, most, m);
}
