/* cpu_kern.h - the table of kernels of one instruction set.  cpu_kern_<isa>.c compile it from one source (cpu_*.inc.h).
 * Each kernel runs on one thread.  The drivers divide the work into ranges whose bounds depend only on shapes, so
 * results do not depend on the number of threads.
 */
#ifndef VFM_DEVICE_CPU_CPU_KERN_H
#define VFM_DEVICE_CPU_CPU_KERN_H

#include "device/ops/ops.h"

/* A GEMM operand as rows along K: element (r, k) is p[r ld + k], or p[k ld + r] if kmajor. */
struct vfm_mat {
	const void *p;
	int64_t ld;
	bool bf, kmajor;
};

/* The epilogue of a tile whose sum over K is complete. */
struct vfm_epi {
	void *c;
	int64_t ldc;
	bool c_bf, accumulate;
	const float *bias; /* may be NULL */
	enum vfm_act act, dact;
	void *aux; /* dtype of c; may be NULL */
	int64_t ld_aux;
	const void *add; /* added last; dtype and ldc of c, may be c; may be NULL */
};

/* The epilogue of a finished tile, whose rows are nr floats apart; it may run in parts. */
struct vfm_tail {
	const struct vfm_epi *epi;
	void (*epilogue)(const struct vfm_epi *e, const float *tile, int64_t m, int64_t n, int64_t mr, int64_t nr);
	const float *tile;
	int64_t m, n, rows, cols; /* place of the rows that remain, and their number; 0: none */
	int width;                /* nr */
};

/* Runs the epilogue of up to n of the rows that remain. */
static inline void vfm_tail_run(struct vfm_tail *t, int64_t n)
{
	if (n > t->rows)
		n = t->rows;
	if (n <= 0)
		return;
	t->epilogue(t->epi, t->tile, t->m, t->n, n, t->cols);
	t->tile += n * t->width;
	t->m += n;
	t->rows -= n;
}

/* A product of a panel of A and a panel of B over `units` units. */
struct vfm_panel_product {
	int64_t units;
	const float *a, *b;
	float *c; /* [mr][nr], rows ldc floats apart, = (first ? 0 : c) + a b */
	int64_t ldc;
	bool first;
	struct vfm_tail *tail; /* of the tile before; a kernel may run parts of it between its products */
};

/* The part of K that a convolution sums at a time (cpu_conv.c): unit u multiplies the lines from a + off[u] on, of mr
 * neighbouring pixels, by unit u of b.  A line is one unit of a pixel, 16 words; its part p begins p * part floats
 * later. */
struct vfm_conv_units {
	int64_t n, part;
	const int32_t *off;
};

/* n pixels of c elements, `pitch` elements apart, as lines: line b of pixel i is dst + b line + i step, its parts
 * `part` floats apart.  The last line is padded with zeros. */
struct vfm_patch_lines {
	const void *p;
	bool bf;
	int64_t pitch, n, c;
	float *dst;
	int64_t step, line, part;
};

/* Panels: A is packed as [k unit][mr], B as [k unit][nr].  A unit is ku elements of K, `words` floats per row: a float,
 * two neighbouring bf16, or the depth of an AMX tile (packed as in cpu_gemm_tile.h and cpu_gemm_bf16x3.h).  Incomplete
 * panels and units are padded with zeros. */
struct vfm_gemm_kern {
	int mr, nr, ku, words;
	int kc, kc_whole; /* units of a chunk; up to kc_whole units are one chunk */
	int mc;           /* most rows of a block of C */
	int held_rows;    /* with at most this many rows, packing a held B is a notable part of the work */
	/* Packs rows [r0, r0 + n) and elements [k0, k1) of m into panels of A (mr rows) or of B (nr), `stride` floats
	 * apart; writes up to 16 floats past the end of a panel.  sum (may be NULL): [n rounded up to whole panels] +=
	 * the sums over k. */
	void (*pack)(float *dst, bool of_a, int64_t stride, const struct vfm_mat *m, int64_t r0, int64_t n, int64_t k0,
		int64_t k1, float *sum);
	/* Units are summed from zero in runs of at most VFM_GEMM_RUN; an AMX run is a unit or a chunk. */
	void (*tile)(const struct vfm_panel_product *p);
	/* applies the epilogue to the valid mr x nr part of a tile and stores it at row m, column n of C */
	void (*epilogue)(const struct vfm_epi *e, const float *tile, int64_t m, int64_t n, int64_t mr, int64_t nr);
	void (*lines)(const struct vfm_patch_lines *x);
	/* tile [mr][nr] = (first ? 0 : tile) + lines * B; only the first `cols` columns are used */
	void (*conv)(
		const struct vfm_conv_units *u, const float *a, const float *b, float *tile, int64_t cols, bool first);
	/* called on the thread before the first and after the last tile of a range of work; may be NULL */
	void (*begin)(void);
	void (*end)(void);
};

enum { VFM_GEMM_RUN = 128 }; /* units of a run of the sums of a product (cpu_gemm.c) */

/* A product of few rows.  A unit is an element of K, or two neighbouring bf16 (pairs; with AVX-512 bf16). */
struct vfm_few {
	const float *x; /* [rows][units], rows ldx floats apart: f32, or pairs with zeros past the end of K */
	int64_t ldx, rows, k, units;
	int64_t slice; /* units of a slice: a multiple of VFM_GEMM_RUN, or all */
	bool pairs;
	struct vfm_mat b;
};

/* Ops of independent rows; the second argument of X is an operand with these rows.  The kernel of op X computes rows
 * [t0, t1): X(const struct vfm_X *a, int64_t t0, int64_t t1).  This list generates its member here, its entries in the
 * tables of kernels and its driver (cpu_rows.c). */
#define VFM_CPU_ROW_OPS(X)                                                                                             \
	X(add_row, x)                                                                                                  \
	X(row_dot, x) X(row_norm_rope, x) X(swiglu, y) X(swiglu_bwd, dy) X(geglu, x) X(softmax, x) X(softmax_bwd, y)
/* As VFM_CPU_ROW_OPS for ops of independent elements [i0, i1) of contiguous operands (cpu_ops.c). */
#define VFM_CPU_ELEMENT_OPS(X) X(unary, x) X(sum_parts, y)

/* All other kernels.  Token ranges [t0, t1) lie within sample s; s < 0: no samples.  tmp: 4 D floats. */
#define VFM_CPU_KERNELS(K)                                                                                             \
	/* tiles [panel of gemm_f32.nr columns, the first is n0][rows][nr] = the sums of columns [n0, n1); */          \
	/* room for two more such arrays follows */                                                                    \
	K(void, few_rows, (const struct vfm_few *f, int64_t n0, int64_t n1, float *tiles))                             \
	/* with amax: *part = the largest finite |y| of the rows */                                                    \
	K(void, norm, (const struct vfm_norm *a, int64_t t0, int64_t t1, int64_t s, float *tmp, float *part))          \
	/* part: [2][D], = sums of dy xhat and of dy; with dh [4][D]: also of h dx and of dh */                        \
	K(void, norm_bwd, (const struct vfm_norm_bwd *a, int64_t t0, int64_t t1, int64_t s, float *tmp, float *part))  \
	K(void, gate, (const struct vfm_gate *a, int64_t t0, int64_t t1, int64_t s, float *tmp))                       \
	/* part: [D] = the sum of h dy; with dh_sum [2][D]: also of dh */                                              \
	K(void, gate_bwd, (const struct vfm_gate_bwd *a, int64_t t0, int64_t t1, int64_t s, float *tmp, float *part))  \
	/* part: [D] = the sum of dy */                                                                                \
	K(void, add_row_bwd, (const struct vfm_add_row_bwd *a, int64_t t0, int64_t t1, float *part))                   \
	K(void, qk_norm_rope, (const struct vfm_qk_norm_rope *a, int64_t t0, int64_t t1, float *tmp))                  \
	/* part: [d] = the sum of dweight */                                                                           \
	K(void, qk_norm_rope_bwd,                                                                                      \
		(const struct vfm_qk_norm_rope_bwd *a, int64_t t0, int64_t t1, float *tmp, float *part))               \
	/* part: [H*d] = the sum of dweight */                                                                         \
	K(void, row_norm_rope_bwd, (const struct vfm_row_norm_rope_bwd *a, int64_t t0, int64_t t1, float *part))       \
	K(void, axpby, (float alpha, const void *x, bool x_bf, float beta, void *y, bool y_bf, int64_t n))             \
	K(void, adamw, (const struct vfm_adamw *a, int64_t i0, int64_t i1))                                            \
	K(double, sumsq, (const void *x, bool bf, int64_t n))                                                          \
	/* returns the sum over tokens of mean_f (pred - target)^2 */                                                  \
	K(double, mse, (const struct vfm_mse *a, int64_t t0, int64_t t1, int64_t s))                                   \
	K(void, diffuse, (const struct vfm_diffuse *a, int64_t t0, int64_t t1, int64_t s, float *tmp))                 \
	/* out[i] = normal(rng, first + i) */                                                                          \
	K(void, normals, (const struct vfm_rng *rng, int64_t first, int64_t n, float *out))                            \
	/* dst += src */                                                                                               \
	K(void, sum_into, (float *dst, const float *src, int64_t n))                                                   \
	K(float, dot, (const void *x, bool x_bf, const void *y, bool y_bf, int64_t n))                                 \
	/* pixels [i0, i1), counted over all frames; tmp: 3 C floats */                                                \
	/* stats (GROUP): mean and 1 / sqrt(var + eps) of each group of the frame of these pixels, [2][groups] */      \
	K(void, channel_norm,                                                                                          \
		(const struct vfm_channel_norm *a, int64_t i0, int64_t i1, const float *stats, float *tmp))            \
	/* part [2][groups]: means of the pixels [i0, i1) of a frame, sums of (x - mean)^2; tmp as above */            \
	K(void, channel_stats, (const struct vfm_channel_norm *a, int64_t i0, int64_t i1, float *part, float *tmp))    \
	K(void, embed3, (const struct vfm_embed3 *a, int64_t t0, int64_t t1))                                          \
	/* y = value[code] * factor, a factor for 64 elements; value [16], code as in vfm_decode_weights */            \
	K(void, decode_nf4,                                                                                            \
		(void *y, bool bf, const uint8_t *code, const float *value, const float *factor, int64_t blocks))      \
	/* y = code * factor * (1 / 127), a factor for 32 elements */                                                  \
	K(void, decode_int8, (void *y, bool bf, const int8_t *code, const float *factor, int64_t blocks))

struct vfm_cpu_kern {
	struct vfm_gemm_kern gemm_f32, gemm_bf16;
#define K(result, name, args) result(*name) args;
	VFM_CPU_KERNELS(K)
#undef K
#define X(op, operand) void (*op)(const struct vfm_##op *a, int64_t i0, int64_t i1);
	VFM_CPU_ROW_OPS(X)
	VFM_CPU_ELEMENT_OPS(X)
#undef X
};

extern const struct vfm_cpu_kern vfm_cpu_kern_base, vfm_cpu_kern_avx2, vfm_cpu_kern_avx512, vfm_cpu_kern_avx512bf16;
/* With AMX; they have no epilogues: those of vfm_cpu_kern_avx512bf16, which has the same nr, are used. */
extern const struct vfm_gemm_kern vfm_gemm_amx_f32, vfm_gemm_amx;

#endif
