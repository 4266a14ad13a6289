/* emu_lt.c - stands for gemm_lt.c and cuBLASLt: computes a problem of the library on the host as its manual describes
 * it, in columns.  A device has no library, or one whose epilogues are used, or one that computes plain products. */
#include "device/cuda/gemm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "emu_dev.h"

static struct {
	const struct vfm_dev *dev;
	struct vfm_gemm_chooser *chooser;
} with_library[2];

static void lt_die(const char *why)
{
	fprintf(stderr, "emulated cuBLASLt: %s\n", why);
	abort();
}

static bool is_f8(enum vfm_dtype t)
{
	return t == VFM_F8E4M3 || t == VFM_F8E5M2;
}

/* Supports fp8 only with K contiguous, like the library. */
static int list(void *ctx, const struct vfm_lt_problem *p, size_t ws, struct vfm_lt_algo *out, int most)
{
	(void)ctx, (void)ws, (void)most;
	if (is_f8(p->a) && (!p->ta || p->tb))
		return 0;
	*out = (struct vfm_lt_algo){.ws = 512};
	return 1;
}

static bool supports(void *ctx, const struct vfm_lt_problem *p, size_t ws, struct vfm_lt_algo *a)
{
	return list(ctx, p, ws, a, 1) == 1;
}

static int no_timing(void *ctx, const struct vfm_gemm_op *op, const char **why, struct vfm_err *err)
{
	(void)ctx, (void)op, (void)err;
	*why = NULL;
	return 0;
}

static const struct vfm_gemm_lib lib = {.list = list, .supports = supports, .time_begin = no_timing};

static struct vfm_dev *open_with(int i, enum vfm_gemm_mode mode, struct vfm_err *err)
{
	struct vfm_dev *d = vfm_emu_open(err);

	if (!d)
		return NULL;
	vfm_gemm_chooser_free(with_library[i].chooser);
	with_library[i].chooser = vfm_gemm_chooser_new(&lib, NULL, mode, NULL, true);
	with_library[i].dev = d;
	return d;
}

struct vfm_dev *vfm_emu_open_epilogues(struct vfm_err *err)
{
	return open_with(0, VFM_GEMM_EPILOGUE, err);
}

struct vfm_dev *vfm_emu_open_plain(struct vfm_err *err)
{
	return open_with(1, VFM_GEMM_PLAIN, err);
}

void vfm_emu_close_libraries(void)
{
	for (int i = 0; i < 2; i++) {
		vfm_gemm_chooser_free(with_library[i].chooser);
		with_library[i].chooser = NULL;
		with_library[i].dev = NULL;
	}
}

int vfm_lt_choose(
	struct vfm_stream *s, struct vfm_gemm_op *op, bool part, struct vfm_gemm_choice *out, struct vfm_err *err)
{
	int rc;

	for (int i = 0; i < 2; i++)
		if (with_library[i].dev == s->dev) {
			rc = vfm_gemm_choose(with_library[i].chooser, op, out, err);
			if (rc >= 0 && !part) {
				s->dev->slow_gemm += out->refused;
				s->dev->heuristic_gemm += out->untimed;
			}
			return rc;
		}
	*out = (struct vfm_gemm_choice){.path = {.own_epi = true, .f32 = true, .own_rowsum = vfm_has(&op->g.a_rowsum)}};
	return 0;
}

/* ---- a problem ------------------------------------------------------------------------------------------------- */

static float read_element(const void *p, enum vfm_dtype t, int64_t i)
{
	float f;

	vfm_dtype_convert(VFM_F32, &f, t, (const char *)p + (size_t)i * vfm_dtype_size(t), 1);
	return f;
}

static void write_element(void *p, enum vfm_dtype t, int64_t i, double x)
{
	float f = (float)x;

	vfm_dtype_convert(t, (char *)p + (size_t)i * vfm_dtype_size(t), VFM_F32, &f, 1);
}

/* op(X) [rows, cols] as floats, row after row; in columns X[i,j] is at j * ld + i. */
static float *read_matrix(
	const void *p, enum vfm_dtype t, int64_t first, int64_t ld, bool trans, int64_t rows, int64_t cols)
{
	float *x = vfm_calloc((size_t)(rows * cols) + 1, sizeof(*x));

	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < cols; j++)
			x[i * cols + j] = read_element(p, t, first + (trans ? i * ld + j : j * ld + i));
	return x;
}

static double gelu(double x)
{
	return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

static double dgelu(double x)
{
	double u = 0.79788456080286536 * (x + 0.044715 * x * x * x), t = tanh(u);

	return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456080286536 * (1 + 3 * 0.044715 * x * x);
}

static void check_requirements(const struct vfm_lt_problem *p, const struct vfm_lt_args *x)
{
	bool aux = p->epi & (VFM_LT_AUX | VFM_LT_DGELU);

	if (aux && (p->ld_aux % 8 || (uintptr_t)x->aux % 16 || p->stride_aux % 8))
		lt_die("aux is not aligned");
	if ((p->epi & VFM_LT_BIAS) && p->bias != (is_f8(p->a) && p->c == VFM_F32 ? VFM_BF16 : p->c))
		lt_die("the dtype of the bias");
	if ((p->epi & VFM_LT_DGELU) && (p->epi & (VFM_LT_BIAS | VFM_LT_GELU)))
		lt_die("no such epilogue");
	if ((p->epi & VFM_LT_BGRADB) && (p->c != VFM_F32 || p->batch > 1))
		lt_die("row sums");
	if (!x->ws || (uintptr_t)x->ws % 256)
		lt_die("no scratch memory");
}

static void store_result(
	const struct vfm_lt_problem *p, const struct vfm_lt_args *x, int64_t z, int64_t i, int64_t j, double s)
{
	int64_t at = z * p->stride_c + j * p->ldc + i, aux = z * p->stride_aux + j * p->ld_aux + i;

	if (p->beta)
		s += (double)read_element(x->c, p->c, at);
	if (p->epi & VFM_LT_BIAS)
		s += (double)read_element(x->bias, p->bias, z * p->stride_bias + i);
	if (p->epi & VFM_LT_AUX)
		write_element(x->aux, p->c, aux, s);
	if (p->epi & VFM_LT_GELU)
		s = gelu(s);
	if (p->epi & VFM_LT_DGELU)
		s *= dgelu((double)read_element(x->aux, p->c, aux));
	write_element(x->c, p->c, at, s);
}

int vfm_lt_run(struct vfm_stream *s, const struct vfm_gemm_choice *c, const struct vfm_lt_args *x, struct vfm_err *err)
{
	const struct vfm_lt_problem *p = &c->p;
	double scale = p->scaled ? (double)*x->scale_a * (double)*x->scale_b : 1;

	(void)s, (void)err;
	if (vfm_emu_launched)
		vfm_emu_launched("cuBLASLt");
	check_requirements(p, x);
	memset(x->ws, 0x5a, c->algo.ws); /* the library may write all of it */
	for (int64_t z = 0; z < p->batch; z++) {
		float *a = read_matrix(x->a, p->a, z * p->stride_a, p->lda, p->ta, p->m, p->k);
		float *b = read_matrix(x->b, p->b, z * p->stride_b, p->ldb, !p->tb, p->n, p->k); /* op(B)^T */

		for (int64_t j = 0; j < p->n; j++) {
			double sums = 0;

			for (int64_t l = 0; l < p->k; l++)
				sums += (double)b[j * p->k + l];
			if (p->epi & VFM_LT_BGRADB)
				write_element(x->bias, p->c, j, sums);
			for (int64_t i = 0; i < p->m; i++) {
				double sum = 0;

				for (int64_t l = 0; l < p->k; l++)
					sum += (double)a[i * p->k + l] * (double)b[j * p->k + l];
				store_result(p, x, z, i, j, scale * sum);
			}
		}
		free(a);
		free(b);
	}
	return 0;
}

int vfm_lt_fork(struct vfm_stream *s, struct vfm_stream *const **sides, struct vfm_err *err)
{
	(void)s, (void)sides, (void)err;
	return 0; /* one group after another */
}

int vfm_lt_join(struct vfm_stream *s, struct vfm_err *err)
{
	(void)s, (void)err;
	return 0;
}
