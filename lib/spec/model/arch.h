/* arch.h - the table of architectures, one row for each.  Checks, parameter counts, FLOPs, saved activations, inputs,
 * blocks and the reader of foreign files use the row; no other code compares names of architectures. */
#ifndef VFM_SPEC_MODEL_ARCH_H
#define VFM_SPEC_MODEL_ARCH_H

#include <stdbool.h>
#include <stdint.h>

/* X(NAME): arch.c or arch_NAME.c has the row of NAME, its presets, and its layouts in other programs. */
#define VFM_ARCH_LIST(X) X(dit) X(moviegen) X(stdit) X(moe) X(pixart) X(wan) X(ltx)

enum vfm_pos { VFM_POS_ROPE, VFM_POS_SINCOS, VFM_POS_BOTH, VFM_POS_LEARNED };

enum { VFM_ARCH_ATTNS = 3 };
/* The span of a self-attention: all tokens of a sample; those of one frame; those at one spatial position over time. */
enum vfm_attn_span { VFM_ATTN_FULL, VFM_ATTN_SPATIAL, VFM_ATTN_TEMPORAL };

enum vfm_mlp_kind {
	VFM_MLP_GELU,    /* fc2(gelu(fc1(x))) */
	VFM_MLP_SWIGLU,  /* w2(silu(a) * b), [a | b] = w13(x) */
	VFM_MLP_EXPERTS, /* a mixture of experts, and an MLP of width shared_experts * expert_ffn */
};

enum vfm_mod_kind {
	VFM_MOD_MATRIX, /* one matrix per block; with adaln_lora, two low-rank matrices per block and one shared matrix
			 */
	VFM_MOD_TABLE,  /* adaLN-single: one matrix for all blocks, and a table [n_mod, hidden] per block */
};

struct vfm_preset;
struct vfm_foreign;

struct vfm_arch {
	const char *name;
	int n_attn; /* self-attentions per block */
	enum vfm_attn_span attn[VFM_ARCH_ATTNS];
	int n_mod; /* modulation vectors per block: shift, scale and gate of each self-attention and of the MLP */
	enum vfm_mod_kind mod;
	enum vfm_mlp_kind mlp;
	bool rms_norm;    /* RMS norms; else layer norms */
	bool no_bias;     /* no biases in attention and MLP */
	bool plain_cross; /* no norm before the cross-attention */
	bool row_qk_norm; /* RMS norm of q and k over all heads; else over each head */
	double qk_eps;    /* epsilon of the norms of q and k; 0: model.norm_eps */
	/* Extent of RoPE in seconds and pixels (t, h, w): positions are fractions of it, and RoPE runs over all heads.
	 * 0: RoPE runs over each head, and positions are in patches.  Needs row_qk_norm and only VFM_ATTN_FULL. */
	double rope_extent[3];
	bool text_mlp;        /* two layers with a GELU embed the text; else one layer */
	bool head_table;      /* the head's shift and scale are two vectors plus the conditioning; else a layer of it */
	bool head_layer_norm; /* the norm of the head is a layer norm; else that of the blocks */
	enum vfm_pos pos; /* of its presets; architectures without VFM_POS_LEARNED here cannot use learned positions */
	const char *const *keys; /* keys of the section "model" that only some architectures have; NULL: none */
	const struct vfm_preset *presets;  /* the last entry has name NULL */
	const struct vfm_foreign *foreign; /* its layouts in other programs (foreign.h); NULL: none */
};

#define X(name) extern const struct vfm_arch vfm_arch_##name;
VFM_ARCH_LIST(X)
#undef X
extern const struct vfm_arch *const vfm_archs[];        /* NULL-terminated */
const struct vfm_arch *vfm_arch_find(const char *name); /* NULL if name is NULL or unknown */
extern const char *const vfm_arch_names[];              /* NULL-terminated, in the order of vfm_archs */

struct vfm_preset {
	const char *name;
	int64_t layers, hidden, heads;
	int64_t kv_heads, ffn, adaln_lora;           /* 0: the default */
	int64_t experts, expert_ffn, shared_experts; /* experts 0: the defaults */
	int64_t channels, text_dim, patch[3];        /* 0: the defaults */
	int64_t cond_channels, image_dim, image_pos; /* 0: none */
	bool no_qk_norm;
};

const struct vfm_preset *vfm_preset_at(int i); /* preset i, counted over all architectures; NULL: i is too large */

#endif
