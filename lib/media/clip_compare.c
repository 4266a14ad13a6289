/* clip_compare.c - comparison of hashes; see clip_hash.h. */
#include <math.h>
#include <string.h>

#include "media/clip_hash.h"

#define COEFS VFM_CLIP_HASH_COEFS
#define SLOTS VFM_CLIP_HASH_SLOTS

#define WEAK   0.5 /* of the median magnitude of a slot: coefficients below have an uncertain sign */
#define STILL  6.0 /* root mean square of the differences of a slot below which a clip counts as still */
#define GAIN   2.0 /* ratio of the motion of two clips */
#define COMMON 0.7 /* of the shorter clip that both must show */

/* ---- preparation ---- */

static float median_of(const float *x)
{
	float v[COEFS];

	for (int i = 0; i < COEFS; i++) { /* insertion sort */
		float a = fabsf(x[i]);
		int j = i;

		for (; j > 0 && v[j - 1] > a; j--)
			v[j] = v[j - 1];
		v[j] = a;
	}
	return v[COEFS / 2];
}

static void find_signs(const float *x, uint64_t *sign, uint64_t *strong)
{
	float least = (float)WEAK * median_of(x);

	*sign = *strong = 0;
	for (int i = 0; i < COEFS; i++) {
		*sign |= (uint64_t)(x[i] > 0) << i;
		*strong |= (uint64_t)(fabsf(x[i]) >= least && x[i] != 0) << i;
	}
}

void vfm_clip_rows_of(struct vfm_clip_rows *r, const struct vfm_clip_hash *h)
{
	r->slots = h->slots;
	for (int k = 0; k < h->slots; k++) {
		bool flat = h->diff[k][0] == -128;

		for (int i = 0; i < COEFS; i++)
			r->x[k][i] = flat ? 0 : (float)h->mean[i] / 4 + h->scale * (float)h->diff[k][i];
		find_signs(r->x[k], &r->sign[k], &r->strong[k]);
	}
}

/* Rows half a slot later. */
static void interpolate(struct vfm_clip_rows *out, const struct vfm_clip_rows *in)
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

/* Rows a0 and b0 and those after, n of each. */
static double agreement(
	const struct vfm_clip_rows *a, int a0, const struct vfm_clip_rows *b, int b0, int n, uint64_t flip)
{
	double sum = 0;

	for (int k = 0; k < n; k++) {
		uint64_t both = a->strong[a0 + k] & b->strong[b0 + k];
		int all = __builtin_popcountll(both);
		int unequal = __builtin_popcountll((a->sign[a0 + k] ^ b->sign[b0 + k] ^ flip) & both);

		/* A flat slot resembles nothing; and few certain signs say little. */
		sum += all >= COEFS / 4 ? 1 - 2.0 * unequal / all : 0;
	}
	return sum / n;
}

/* Correlation of the differences from the means of n rows; see clip_hash.h.  *still: it is undefined. */
static double correlate_motion(
	const struct vfm_clip_rows *a, int a0, const struct vfm_clip_rows *b, int b0, int n, uint64_t flip, bool *still)
{
	float sa[COEFS] = {0}, sb[COEFS] = {0}, aa[COEFS] = {0}, bb[COEFS] = {0}, ab[COEFS] = {0};
	double ea = 0, eb = 0, e = 0;

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
		e += flip >> i & 1 ? -(double)ab[i] : (double)ab[i];
	}
	*still = fmax(ea, eb) < STILL * STILL * n;
	if (*still || fmax(ea, eb) > GAIN * GAIN * fmin(ea, eb))
		return 0;
	return 1 - (1 - e / sqrt(ea * eb)) * n / (n - 1);
}

static int least_common(int a, int b)
{
	int shorter = a < b ? a : b, longer = a < b ? b : a, n = (int)ceil(COMMON * shorter);

	return n < 2 && longer > 2 ? 2 : n;
}

static void compare_phase(const struct vfm_clip_rows *a, const struct vfm_clip_rows *b, double phase_s, int common,
	struct vfm_clip_match *m)
{
	const uint64_t odd = vfm_clip_hash_odd();

	for (int shift = 1 - b->slots; shift < a->slots; shift++) {
		int a0 = shift > 0 ? shift : 0, b0 = shift < 0 ? -shift : 0;
		int n = a->slots - a0 < b->slots - b0 ? a->slots - a0 : b->slots - b0;

		for (int mirrored = 0; mirrored < 2 && n >= common; mirrored++) {
			uint64_t flip = mirrored ? odd : 0;
			double d = 1 - agreement(a, a0, b, b0, n, flip);
			bool still = true;

			if (d < m->distance && n > 1) {
				double c = correlate_motion(a, a0, b, b0, n, flip, &still);

				d = still ? d : fmax(d, 1 - c);
			}
			if (d < m->distance)
				*m = (struct vfm_clip_match){d, VFM_CLIP_HASH_STEP * shift - phase_s, n, mirrored != 0};
		}
	}
}

void vfm_clip_compare(
	const struct vfm_clip_rows *a, const struct vfm_clip_rows *b, double most, struct vfm_clip_match *m)
{
	const int common = least_common(a->slots, b->slots);
	struct vfm_clip_rows half;

	*m = (struct vfm_clip_match){.distance = most};
	compare_phase(a, b, 0, common, m);
	if (b->slots <= common)
		return;
	interpolate(&half, b);
	compare_phase(a, &half, VFM_CLIP_HASH_STEP / 2, common, m);
}
