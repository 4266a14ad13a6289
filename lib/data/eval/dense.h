/* dense.h - the float64 matrix product for moments and Frechet distances.
 *
 * Each element is a sum over k in ascending order, so results depend neither on the number of threads nor on the CPU.
 */
#ifndef VFM_DATA_EVAL_DENSE_H
#define VFM_DATA_EVAL_DENSE_H

#include <stdbool.h>
#include <stdint.h>

/* Dimensions of operands are padded with zeros to a multiple of this. */
#define VFM_DENSE_PAD 16
int64_t vfm_dense_padded(int64_t n);

/* c [m, n] += a^T b, for a [k, m] and b [k, n], row-major without gaps, at 64-byte aligned addresses; m and n are
 * multiples of VFM_DENSE_PAD.  symmetric (a == b): computes only the tiles on the diagonal and above.  Runs on the
 * compute threads. */
void vfm_dense_add_atb(double *c, const double *a, const double *b, int64_t k, int64_t m, int64_t n, bool symmetric);

#endif
