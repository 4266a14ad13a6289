/* lapack.h - the LAPACK routines that the library calls, in double precision.
 *
 * The first call loads liblapack.so.3.  Loading takes milliseconds, for which other commands should not wait.
 * Row-major arrays need no copies, because matrices are symmetric or their transposes have the same result.
 * Thread-safe.
 */
#ifndef VFM_DATA_EVAL_LAPACK_H
#define VFM_DATA_EVAL_LAPACK_H

#include <stdint.h>

#include "base/err.h"

/* Cholesky factorization with complete pivoting of a positive semidefinite matrix a [n, n] with rows of ld elements
 * (dpstrf): A[piv[i]][piv[j]] = sum over k < rank of L[i][k] L[j][k].  L replaces the lower triangle of a, row-major;
 * columns from rank on are undefined.  The factorization ends when the largest remaining diagonal element is at most
 * tol.  piv [n] counts from 0. */
int vfm_lapack_pivoted_cholesky(
	double *a, int64_t n, int64_t ld, double tol, int32_t *piv, int64_t *rank, struct vfm_err *err);

/* Singular values of a [m, n] with rows of ld elements, descending (dgesdd); overwrites a.  sigma [min(m, n)]. */
int vfm_lapack_singular_values(double *a, int64_t m, int64_t n, int64_t ld, double *sigma, struct vfm_err *err);

#endif
