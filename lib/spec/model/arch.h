/* arch.h - the table of architectures, one row for each.  Checks, parameter counts, FLOPs, saved activations, inputs,
 * blocks and the reader of foreign files use the row; no other code compares names of architectures. */
#ifndef VFM_SPEC_MODEL_ARCH_H
#define VFM_SPEC_MODEL_ARCH_H

#include <stdbool.h>
#include <stdint.h>

/* X(NAME): arch.c or arch_NAME.c has the row of NAME, its presets, and its layouts in other programs. */
#define VFM_ARCH_LIST(X)                                                                                               \
	X(dit) X(moviegen) X(stdit) X(moe) X(pixart) X(wan) X(ltx) X(cosmos) X(hunyuan) X(hunyuan1) X(flux)

enum vfm_pos { VFM_POS_ROPE, VFM_POS_SINCOS, VFM_POS_BOTH, VFM_POS_LEARNED };

enum { VFM_ARCH_ATTNS = 3 };
/* The span of a self-attention: all tokens of a sample; those of one frame; those at one spatial position over time. */
enum vfm_attn_span { VFM_ATTN_FULL, VFM_ATTN_SPATIAL, VFM_ATTN_TEMPORAL };

enum vfm_mlp_kind {
	VFM_MLP_GELU,       /* fc2(gelu(fc1(x))), with the tanh approximation */
	VFM_MLP_GELU_EXACT, /* the same with the error function */
	VFM_MLP_SWIGLU,     /* w2(silu(a) * b), [a | b] = w13(x) */
	VFM_MLP_EXPERTS,    /* a mixture of experts, and an MLP of width shared_experts * expert_ffn */
};

enum vfm_mod_kind {
	VFM_MOD_MATRIX, /* one matrix per block; with adaln_lora, two low-rank matrices per block and one shared matrix
			 */
	VFM_MOD_TABLE,  /* adaLN-single: one matrix for all blocks, and a table [n_mod, hidden] per block */
	/* Two low-rank matrices (adaln_lora) for each attention, each MLP and the head.  They read the norm of the time
	 * features, and add to a shift, scale and gate of the time that all of them share. */
	VFM_MOD_LOW_RANK,
};

enum vfm_text_kind {
	VFM_TEXT_LINEAR,  /* one layer embeds the text */
	VFM_TEXT_MLP,     /* two layers with a GELU */
	VFM_TEXT_ROWS,    /* none: attention reads the rows, or with model.text_proj the GELU of a layer of them */
	VFM_TEXT_REFINER, /* one layer, then blocks of self-attention (net/diffusion/embed.h); with joint */
};

/* How the blocks read given latent frames (image to video). */
enum vfm_given_kind {
	VFM_GIVEN_CLEAN, /* they replace the noisy frames, and are not predicted */
	/* The same; the input has masks after the latents (model.mask_channels): 1 in given frames, then padding, 0. */
	VFM_GIVEN_MASK,
	/* All frames are noisy and predicted; in the input the given latents follow, else 0, then a mask of them. */
	VFM_GIVEN_COND,
};

struct vfm_preset;
struct vfm_foreign;

struct vfm_arch {
	const char *name;
	int n_attn; /* self-attentions per block */
	enum vfm_attn_span attn[VFM_ARCH_ATTNS];
	/* modulation vectors per block: shift, scale and gate of each self-attention, with cross_mod of the
	 * cross-attention, and of the MLP; a single-stream block has 3 (vfm_model_n_mod) */
	int n_mod;
	enum vfm_mod_kind mod;
	enum vfm_mlp_kind mlp;
	bool rms_norm;     /* RMS norms; else layer norms */
	bool no_bias;      /* no biases in attention and MLP */
	bool no_bias_ends; /* no biases in patches, time, modulation and head */
	bool plain_cross;  /* no norm before the cross-attention */
	/* Joint attention: the text is a second stream of rows with weights and modulation of its own (net/diffusion/joint.h),
	 * without cross-attention.  n_attn is 1, and n_mod counts both streams.  With the key model.single_layers, the
	 * last blocks are single-stream: one set of weights for both, and the MLP next to the attention. */
	bool joint;
	bool row_type;     /* with joint: the rows of each encoder get a vector of that encoder */
	bool text2_vector; /* the conditioning adds the second text, one row; else its rows are in the text stream */
	bool cross_mod;    /* the cross-attention has shift, scale and gate; its norm has no weights */
	bool row_qk_norm;  /* RMS norm of q and k over all heads; else over each head */
	double qk_eps;     /* epsilon of the norms of q and k; 0: model.norm_eps */
	/* Extent of RoPE in seconds and pixels (t, h, w): positions are fractions of it, and RoPE runs over all heads.
	 * 0: RoPE runs over each head, and positions are in patches.  Needs row_qk_norm and only VFM_ATTN_FULL. */
	double rope_extent[3];
	/* Frames per second of the published models' videos.  With RoPE over each head, positions in t are patches of
	 * such videos.  0: positions do not depend on model.rope_fps. */
	double rope_fps;
	enum vfm_text_kind text;
	enum vfm_given_kind given;
	double time_scale;    /* of the network's time input; 0: VFM_TIME_SCALE */
	double given_time;    /* time of given latent frames, between 0 and 1 */
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
extern const struct vfm_arch *const vfm_archs[];                     /* NULL-terminated */
const struct vfm_arch *vfm_arch_find(const char *name);              /* NULL if name is NULL or unknown */
bool vfm_arch_lists_key(const struct vfm_arch *a, const char *path); /* whether a->keys has "model.KEY" */
extern const char *const vfm_arch_names[];                           /* NULL-terminated, in the order of vfm_archs */

struct vfm_preset {
	const char *name;
	int64_t layers, hidden, heads;
	int64_t kv_heads, ffn, adaln_lora;           /* 0: the default */
	int64_t experts, expert_ffn, shared_experts; /* experts 0: the defaults */
	int64_t channels, text_dim, patch[3];        /* 0: the defaults */
	int64_t cond_channels, image_dim, image_pos; /* 0: none */
	int64_t text_proj, mask_channels;            /* 0: the defaults */
	int64_t text2_dim;                           /* 0: none */
	int64_t single_layers, guidance_dim;         /* 0: none */
	int64_t text_len, image_len;                 /* 0: the defaults */
	int64_t rope_axes[3];                        /* 0: the default */
	double rope_theta;                           /* 0: the default */
	double rope_scale[3];                        /* 0: 1 */
	bool no_qk_norm;
};

const struct vfm_preset *vfm_preset_at(int i); /* preset i, counted over all architectures; NULL: i is too large */

#endif
