/* clip_agreement.h - the agreement of the signs of two hashes at one shift; see clip_hash.h. */
#ifndef VFM_MEDIA_MATCH_CLIP_AGREEMENT_H
#define VFM_MEDIA_MATCH_CLIP_AGREEMENT_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "media/match/clip_compare.h"
#include "media/match/clip_hash.h"

/* Functions that are compiled for each instruction set. */
#define INLINE static inline __attribute__((always_inline))

#define CLIP_COMMON 0.7                       /* fraction of the shorter clip that both must show */
#define CLIP_SURE   (VFM_CLIP_HASH_COEFS / 4) /* signs; fewer are not significant */

struct agreement {
	double sum, most; /* most: the upper bound above which 1 - the mean does not matter */
	int n;            /* counted slots */
};

/* Adds a pair of slots, with `left` pairs to follow.  Returns false if the mean can no longer become high enough. */
INLINE bool agreement_add(struct agreement *s, uint64_t strong_a, uint64_t strong_b, uint64_t unequal, int left)
{
	int all;

	if (strong_a | strong_b) { /* slots that are flat in both clips say nothing */
		all = __builtin_popcountll(strong_a & strong_b);
		s->n++;
		/* A flat slot resembles no other; and few certain signs say little. */
		if (all >= CLIP_SURE)
			s->sum += 1 - 2.0 * __builtin_popcountll(unequal & strong_a & strong_b) / all;
	}
	return s->sum - (1 - s->most) * s->n + s->most * left >= -1e-6;
}

/* Returns 1 - agreement over n common slots, or 2 if too few count. */
INLINE double agreement_distance(const struct agreement *s, int n)
{
	return 2 * s->n < n || (s->n < 2 && n > 1) || !s->n ? 2 : 1 - s->sum / s->n;
}

/* Returns the number of slots that clips with a and b slots must have in common. */
static inline int clip_least_common(int a, int b)
{
	int shorter = a < b ? a : b, longer = a < b ? b : a, n = (int)ceil(CLIP_COMMON * shorter);

	return n < 2 && longer > 2 ? 2 : n;
}

static inline bool clip_have_common(const struct vfm_clip_rows *a, const struct vfm_clip_rows *b, int common)
{
	return common <= a->slots && common <= b->slots;
}

#endif
