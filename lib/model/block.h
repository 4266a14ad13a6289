/* block.h - the transformer block of an architecture: the code beyond its row in spec/arch.h. */
#ifndef VFM_MODEL_BLOCK_H
#define VFM_MODEL_BLOCK_H

#include "model/input.h"
#include "nn/layers.h"

/* Inputs of a block; allocated on the tape. */
struct vfm_block_in {
	const struct vfm_model_in *in;
	struct vfm_var *h;   /* [T,D] f32 or bf16: the residual stream */
	struct vfm_var *ctx; /* [text,D] in the compute dtype; NULL without cross-attention */
	struct vfm_var *pos; /* [T,D] f32: learned positions, added in every block; NULL without */
	/* [n_mod of the architecture] shifts, scales and gates of this block, [S,D] f32 (modulation.h) */
	struct vfm_var *const *mod;
};

struct vfm_block_kind {
	size_t size; /* bytes of the block struct */
	/* Declares the parameters "blocks.I.…" in `unit`. */
	void (*declare)(void *block, const struct vfm_model_spec *m, struct vfm_params *ps, int unit, int layer);
	/* Returns the new residual stream.  Has no side effects: recompute runs it again. */
	struct vfm_var *(*forward)(struct vfm_tape *t, const void *block, const struct vfm_block_in *in);
};

#define X(name) extern const struct vfm_block_kind vfm_block_##name;
VFM_ARCH_LIST(X)
#undef X

/* Returns the attention description of a model: widths, heads and biases. */
struct vfm_attn_desc vfm_block_attn(const struct vfm_model_spec *m, int unit);

/* The residual stream within a block: h, and a branch that the op of the next norm adds to it.  Sum and norm as one op
 * read the stream once less; so does their backward.
 *
 * A block ends with the value of its stream.  A branch that is pending between blocks would save 2 of the 46 passes
 * over [T,D] that a block makes in bf16 (tests/unit/test_traffic.c).  In return a recomputed block would save the
 * branch besides the stream, and compute gradients of parameters of another unit.
 *
 * A GEMM that adds its product to the stream would save 1 pass of a branch without gate in bf16, and none in f32.  With
 * tp it cannot, because the sum over ranks follows the product. */
struct vfm_residual {
	struct vfm_var *h;           /* [T,D] f32 or bf16 */
	struct vfm_var *branch;      /* [T,D]; NULL: none is pending */
	struct vfm_var *gate;        /* [S,D] of the branch; NULL: 1 */
	const struct vfm_seqs *seqs; /* of the gate */
};
/* Adds gate[seg] * branch to the stream; branch and gate may be NULL. */
void vfm_residual_add(struct vfm_tape *t, struct vfm_residual *r, struct vfm_var *branch, struct vfm_var *gate);
/* Returns the norm of the stream.  args->seqs may be absent. */
struct vfm_var *vfm_residual_norm(struct vfm_tape *t, struct vfm_residual *r, const struct vfm_norm_args *args);
/* The same with a modulation, for readers in fp8 (nn/layers.h). */
struct vfm_var *vfm_modulated_norm(struct vfm_tape *t, struct vfm_residual *r, const struct vfm_norm_args *args,
	struct vfm_var *shift, struct vfm_var *scale, struct vfm_norm_fp8 fp8);
/* Returns the stream with all branches. */
struct vfm_var *vfm_residual_value(struct vfm_tape *t, struct vfm_residual *r);

/* Cross-attention to the text ("blocks.I.cross") after an affine norm ("blocks.I.ln_c"; absent with plain_cross), added
 * to the residual stream.  No-op in a model without cross-attention. */
struct vfm_text_attn {
	enum vfm_norm_kind norm;
	struct vfm_param *ln_w, *ln_b; /* ln_w NULL: no norm; ln_b NULL: an RMS norm */
	bool present;
	struct vfm_cross_attn cross;
};
void vfm_text_attn_declare(struct vfm_text_attn *a, const struct vfm_model_spec *m, struct vfm_params *ps,
	const struct vfm_attn_desc *d, int layer);
void vfm_text_attn(
	struct vfm_tape *t, const struct vfm_text_attn *a, const struct vfm_block_in *in, struct vfm_residual *r);

#endif
