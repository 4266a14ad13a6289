/* lapack.c - loads liblapack.so.3 at its first call. */
#include "data/eval/lapack.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/mem.h"

#define LIBRARY "liblapack.so.3"

/* As gfortran passes them: addresses of all arguments, and at the end the lengths of texts. */
typedef void (*dpstrf_fn)(const char *uplo, const int32_t *n, double *a, const int32_t *lda, int32_t *piv,
	int32_t *rank, const double *tol, double *work, int32_t *info, size_t uplo_len);
typedef void (*dgesdd_fn)(const char *jobz, const int32_t *m, const int32_t *n, double *a, const int32_t *lda,
	double *s, double *u, const int32_t *ldu, double *vt, const int32_t *ldvt, double *work, const int32_t *lwork,
	int32_t *iwork, int32_t *info, size_t jobz_len);

static struct {
	pthread_once_t once;
	dpstrf_fn dpstrf;
	dgesdd_fn dgesdd;
	const char *why; /* NULL: all are there */
} lapack = {.once = PTHREAD_ONCE_INIT};

static void load_lapack(void)
{
	void *lib = dlopen(LIBRARY, RTLD_LAZY | RTLD_LOCAL);

	if (lib) {
		lapack.dpstrf = (dpstrf_fn)dlsym(lib, "dpstrf_");
		lapack.dgesdd = (dgesdd_fn)dlsym(lib, "dgesdd_");
	}
	if (!lapack.dpstrf || !lapack.dgesdd) {
		const char *reason = dlerror();

		lapack.why = vfm_strdup(reason ? reason : LIBRARY ": not found");
	}
}

static int need_lapack(struct vfm_err *err)
{
	pthread_once(&lapack.once, load_lapack);
	return lapack.why ? vfm_fail(err, VFM_EENV, "cannot load LAPACK (package liblapack3): %s", lapack.why) : 0;
}

static int check_sizes(int64_t m, int64_t n, int64_t ld, struct vfm_err *err)
{
	return m <= INT32_MAX && n <= INT32_MAX && ld <= INT32_MAX
		? 0
		: vfm_fail(err, VFM_EUSAGE, "a matrix of %lld x %lld is too large for LAPACK", (long long)m,
			  (long long)n);
}

int vfm_lapack_pivoted_cholesky(
	double *a, int64_t n, int64_t ld, double tol, int32_t *piv, int64_t *rank, struct vfm_err *err)
{
	int32_t order = (int32_t)n, lda = (int32_t)ld, r = 0, info;
	double *work;

	*rank = 0;
	TRY(check_sizes(n, n, ld, err));
	TRY(need_lapack(err));
	work = vfm_calloc(2 * (size_t)n + 1, sizeof(*work));
	/* The upper triangle by columns is the lower triangle by rows. */
	lapack.dpstrf("U", &order, a, &lda, piv, &r, &tol, work, &info, 1);
	free(work);
	if (info < 0)
		return vfm_fail(err, VFM_EENV, "LAPACK: dpstrf refused its argument %d", -info);
	for (int64_t i = 0; i < n; i++)
		piv[i]--;
	*rank = r;
	return 0;
}

int vfm_lapack_singular_values(double *a, int64_t m, int64_t n, int64_t ld, double *sigma, struct vfm_err *err)
{
	/* by columns, a is its transpose */
	int32_t rows = (int32_t)n, cols = (int32_t)m, lda = (int32_t)ld, one = 1, lwork = -1, info;
	int64_t least = m < n ? m : n;
	double size = 0, *work;
	int32_t *iwork;

	TRY(check_sizes(m, n, ld, err));
	TRY(need_lapack(err));
	iwork = vfm_calloc(8 * (size_t)least + 1, sizeof(*iwork));
	lapack.dgesdd("N", &rows, &cols, a, &lda, sigma, NULL, &one, NULL, &one, &size, &lwork, iwork, &info, 1);
	lwork = (int32_t)size;
	work = vfm_calloc((size_t)lwork + 1, sizeof(*work));
	lapack.dgesdd("N", &rows, &cols, a, &lda, sigma, NULL, &one, NULL, &one, work, &lwork, iwork, &info, 1);
	free(work);
	free(iwork);
	if (info != 0)
		return vfm_fail(err, VFM_EENV, "LAPACK: dgesdd failed (%d)", info);
	return 0;
}
