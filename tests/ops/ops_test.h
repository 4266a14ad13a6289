/* ops_test.h - shared by the parts of test_ops: levels (devices under test), and operands as doubles. */
#ifndef VFM_TESTS_OPS_OPS_TEST_H
#define VFM_TESTS_OPS_OPS_TEST_H

#include "device/ops/cases.h"
#include "ref.h"

struct op_level {
	const char *name;
	struct vfm_dev *dev;
	struct vfm_stream *s;
	bool rounds; /* biases and products to the dtype of the result; it has only gemm and grouped_gemm */
};

/* Instruction sets of this CPU, the CUDA kernels (emulated), GEMM with AMX tiles (emulated), the CUDA kernels with
 * products of a library; with VFM_TEST_DEVICE=NAME only that device. */
extern struct op_level levels[];
extern int n_levels, n_isa, n_full; /* n_full: those with all ops */
extern const char *device;          /* VFM_TEST_DEVICE; NULL: none */
/* VFM_TEST_CASES=norm,gate: only cases whose names begin so; -gemm,-attn: all but these; * and ? as in a shell. */
extern const char *case_words;
extern struct vfm_cases cases; /* the list */
extern int n_bad;              /* calls of case_bad */

int open_levels(void **state);
struct vfm_dev *open_amx_model(struct vfm_err *err);
int close_levels(void **state);
/* Whether a level implements an op: the emulations of AMX and of a library have only products, that of
 * CUDA no op of NVIDIA's libraries. */
bool has_op(int level, enum vfm_op_id op);
bool case_wanted(const struct vfm_case *c);
/* Prints the failure of a case and counts it in n_bad. */
void case_bad(const char *level, const struct vfm_case *c, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- operands ---- */

/* Offset in elements of element i, counted without the gaps between rows. */
int64_t operand_offset(const struct vfm_tensor *t, int64_t i);
double operand_get(const struct vfm_tensor *t, const char *mem, int64_t i);
double *operand_doubles(const struct vfm_tensor *t, const char *mem); /* the caller frees them */
/* Stores v and sets v to what was stored: the reference reads the rounded values that the op reads. */
void operand_put(struct vfm_tensor *t, double *v);
struct vfm_tensor *operand_at(void *args, size_t offset);

/* The reference of a case, with all operands as doubles. */
void ref_of_case(struct ref *r, struct vfm_case *c);
void ref_release(struct ref *r);

/* The bytes of a case's operands before a run.  All levels compute in host memory of the first one. */
struct image {
	char *bytes[VFM_MAX_OPERANDS];
};

/* Allocates and fills the operands; with `saved` those that a forward saves hold its results. */
void image_take(struct image *m, struct vfm_case *c, bool saved);
void image_put(const struct image *m, struct vfm_case *c); /* restores the operands */
void image_release(struct image *m, struct vfm_case *c);

/* ---- the forward of a backward ---- */

/* The relation of the operands of a backward to those of its forward. */
struct op_rule {
	enum vfm_op_id bwd, fwd;
	size_t dy, y; /* L = sum dy * y; dy SIZE_MAX: L = y */
	struct {
		size_t grad, in; /* grad = dL / d in; of bwd, of fwd */
	} grads[7];
	int n_grads;
	struct {
		size_t bwd, fwd; /* inputs of the backward that the forward computes */
	} saved[4];
	int n_saved;
	size_t dy2, y2; /* of a second output, which adds to L; 0: none */
};

/* Whether the op is the backward of another, X_bwd, whose gradients the reference of X gives; sets *fwd to X. */
bool op_forward_of(enum vfm_op_id bwd, enum vfm_op_id *fwd);
/* Returns the rule of a case; NULL if its op is no backward.  That of X_bwd follows from the names of operands: dNAME
 * is the gradient of NAME, dy and dout those of the first result. */
const struct op_rule *op_rule_of(const struct vfm_case *c);
/* The arguments of the forward: only shapes and flags matter. */
void forward_args(const struct vfm_case *c, union vfm_op_args *f);
/* The operands of the forward: inputs that the backward shares; zeros for outputs and additive terms. */
void forward_operands(const struct op_rule *rule, const struct ref *bwd, union vfm_op_args *args, struct ref *f);
/* Gives a backward the statistics that its forward would have saved. */
void fill_saved_operands(struct vfm_case *c);

/* ---- tests ---- */

void test_parity(void **state);
void test_gradients(void **state);
void test_same_bits(void **state);
void test_checks(void **state);
void test_unread(void **state);
void test_nan(void **state);
void test_skipped_update(void **state);
void test_clip_nonfinite(void **state);
void test_adamw_units(void **state);
void test_in_place(void **state);
void test_conv_past(void **state);
void test_norm8(void **state);
void test_mxfp8(void **state);
void test_decode_weights(void **state);
void test_sum_in_place(void **state);
void test_merged_blocks(void **state);
void test_low_scores(void **state);
void test_bias_alone(void **state);
void test_channel_rms_values(void **state);
void test_channel_group_values(void **state);
void test_conv_parts(void **state);
void test_conv_in_place(void **state);
void test_conv_up(void **state);
void test_conv_packed(void **state);
void test_conv_not_finite(void **state);
void test_philox(void **state);
void test_bad_indices(void **state);
void test_bad_indices_of_kernels(void **state);
void test_normals(void **state);
void test_gemm_noise(void **state);
void test_gemm_precision(void **state);
void test_rows_alone(void **state);
void test_long_sums(void **state);

#endif
