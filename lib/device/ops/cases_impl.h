/* cases_impl.h - helpers for cases.c and cases_*.c. */
#ifndef VFM_DEVICE_OPS_CASES_IMPL_H
#define VFM_DEVICE_OPS_CASES_IMPL_H

#include "device/ops/cases.h"

/* Appends a case.  Its name is that of the op followed by fmt. */
struct vfm_case *vfm_case_add(struct vfm_cases *l, enum vfm_op_id op, unsigned flags, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Sets seqs[which] of the case to n samples with lengths len [n]. */
void vfm_case_seqs(struct vfm_cases *l, struct vfm_case *c, int which, int n, const int *len);

/* These functions add the forward and backward of an op for n samples with lengths len [n] and rows of d elements. */
enum { NORM_PLAIN, NORM_WEIGHT, NORM_WEIGHT_BIAS, NORM_MOD };
void vfm_case_norm(struct vfm_cases *l, unsigned flags, enum vfm_norm_kind kind, int mode, enum vfm_dtype xt,
	enum vfm_dtype yt, enum vfm_dtype st, int n, const int *len, int64_t d);
void vfm_case_add_norm(struct vfm_cases *l, unsigned flags, enum vfm_norm_kind kind, int mode, bool gated,
	enum vfm_dtype xt, enum vfm_dtype ht, enum vfm_dtype st, int n, const int *len, int64_t d);
/* Adds only a norm, which quantizes its result (history) or computes its amax.  branch: with a residual sum. */
void vfm_case_norm8(struct vfm_cases *l, unsigned flags, int mode, bool branch, enum vfm_dtype xt, enum vfm_dtype st,
	int n, const int *len, int64_t d, bool history, bool first);
void vfm_case_gate(struct vfm_cases *l, unsigned flags, enum vfm_dtype xt, enum vfm_dtype ht, enum vfm_dtype gt, int n,
	const int *len, int64_t d);
/* Adds row_norm_rope and its backward for n tokens with h heads of d, and row_dot unless rope is VFM_ROPE_HEAD. */
enum vfm_case_rope { VFM_ROPE_NONE, VFM_ROPE_TOKEN, VFM_ROPE_HEAD }; /* no rope; rope [n,d]; rope [n,h,d] */
void vfm_case_row_norm(struct vfm_cases *l, unsigned flags, enum vfm_dtype t, int64_t n, int64_t h, int64_t d,
	enum vfm_case_rope rope);
/* Adds add_row for t rows of d elements; also add_row_bwd if rt is f32. */
void vfm_case_add_row(struct vfm_cases *l, unsigned flags, enum vfm_dtype xt, enum vfm_dtype rt, int64_t t, int64_t d);
/* Adds qk_norm_rope and its backward for n tokens of h heads. */
void vfm_case_qk(
	struct vfm_cases *l, unsigned flags, enum vfm_dtype t, int64_t n, int64_t h, int64_t d, bool norm, bool rope);
/* As vfm_case_qk with norm and rope, and with a second tensor [n2,h2,d]. */
void vfm_case_qk_pair(
	struct vfm_cases *l, unsigned flags, enum vfm_dtype t, int64_t n, int64_t h, int64_t d, int64_t n2, int64_t h2);

void vfm_cases_norm(struct vfm_cases *l);
void vfm_cases_attn(struct vfm_cases *l);
void vfm_cases_optim(struct vfm_cases *l);
void vfm_cases_rows(struct vfm_cases *l);
void vfm_cases_encoder(struct vfm_cases *l);
void vfm_cases_moe(struct vfm_cases *l);
void vfm_cases_conv(struct vfm_cases *l);

static const enum vfm_dtype types[2] = {VFM_F32, VFM_BF16};
static const struct vfm_tensor none; /* an absent operand */

/* Short samples, one of them empty and one with a single token. */
enum { N_MIXED = 5, T_MIXED = 143 };
static const int mixed[N_MIXED] = {37, 1, 0, 100, 5};
/* Samples without a row on this rank. */
enum { N_ABSENT = 3 };
static const int absent[N_ABSENT] = {0, 0, 0};

static inline int sum_lengths(int n, const int *len)
{
	int t = 0;

	for (int i = 0; i < n; i++)
		t += len[i];
	return t;
}

static inline struct vfm_tensor mat(enum vfm_dtype t, int64_t rows, int64_t cols, int64_t pad)
{
	struct vfm_tensor r = vfm_t2(NULL, t, rows, cols);

	r.stride[0] = cols + pad;
	return r;
}

static inline struct vfm_tensor vec(enum vfm_dtype t, int64_t n)
{
	return vfm_t1(NULL, t, n);
}

/* Returns a view [rows, heads, d] within rows of heads * d + pad. */
static inline struct vfm_tensor heads(enum vfm_dtype t, int64_t rows, int64_t h, int64_t d, int64_t pad)
{
	struct vfm_tensor r = vfm_t3(NULL, t, rows, h, d);

	r.stride[0] = h * d + pad;
	return r;
}

#endif
