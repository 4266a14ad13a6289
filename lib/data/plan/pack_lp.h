/* pack_lp.h - finds contents of bins for many items of few lengths: the linear relaxation of cutting stock.
 *
 *     minimize the sum of x_p over all contents p, with sum_p a_ip x_p = b_i for each length i and x_p >= 0
 *
 * where content p has length i a_ip times, and b_i is the fraction of the items with this length.  The contents are
 * generated: a knapsack with the dual values as profits finds the one that improves most (Gilmore and Gomory, "A linear
 * programming approach to the cutting-stock problem", 1961).  The results depend only on the input.
 */
#ifndef VFM_DATA_PLAN_PACK_LP_H
#define VFM_DATA_PLAN_PACK_LP_H

#include <stdbool.h>
#include <stdint.h>

struct vfm_contents {
	int32_t n;      /* number of lengths, and of contents */
	int32_t *len;   /* [n] descending */
	int32_t *times; /* [n, n] content p has len[i] times[p * n + i] times */
	double *rate;   /* [n] bins of this content, per item */
};

/* The time of vfm_contents_find: at most about a millisecond, at most about a second, or longer. */
enum vfm_contents_time { VFM_CONTENTS_FAST, VFM_CONTENTS_SLOW, VFM_CONTENTS_TOO_SLOW };
/* n is the number of lengths; gcd is that of all lengths. */
enum vfm_contents_time vfm_contents_time(int32_t n, int32_t context, int32_t gcd);
/* len [n]: different lengths from 1 to context, descending; items [n]: the number of items of each, > 0. */
void vfm_contents_find(struct vfm_contents *c, const int32_t *len, const double *items, int32_t n, int32_t context);
void vfm_contents_release(struct vfm_contents *c); /* accepts `{0}` */

/* Returns the greatest common divisor; b if a is 0. */
int32_t vfm_gcd(int32_t a, int32_t b);

#endif
