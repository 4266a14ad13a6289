/* model.h - what a model is, as plain numbers: dimensions, presets, and the counts that
 * follow from them (parameters, FLOPs).  No devices.
 */
#ifndef VFM_SPEC_MODEL_H
#define VFM_SPEC_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum vfm_pos { VFM_POS_ROPE, VFM_POS_SINCOS, VFM_POS_BOTH, VFM_POS_LEARNED };

/* dit       adaLN-Zero blocks (Peebles & Xie 2023), with cross-attention to text
 * moviegen  Llama-style (arXiv 2410.13720): RMS norm, SwiGLU, no biases, learned positions in front of every block
 * stdit     three self-attentions a block: within a frame, along time, over all
 * moe       dit with experts in the place of the MLP */
enum vfm_arch { VFM_ARCH_DIT, VFM_ARCH_MOVIEGEN, VFM_ARCH_STDIT, VFM_ARCH_MOE };

enum vfm_moe_router { VFM_MOE_EXPERT_CHOICE, VFM_MOE_TOKEN_CHOICE };

struct vfm_model_spec {
	char arch[16]; /* see vfm_model_arch */
	int64_t layers, hidden, heads;
	int64_t kv_heads;     /* grouped queries; 0: heads */
	int64_t ffn;          /* 0: 4 * hidden; moe has none */
	bool cross_attention; /* text through cross-attention; false: the original DiT */
	bool pooled_text;     /* the mean of the text is added to the conditioning */
	bool qk_norm;         /* RMS norm per head on q and k */
	int64_t adaln_lora;   /* rank of a block's modulation; 0: a full matrix a block */
	int pos;              /* enum vfm_pos */
	int64_t pos_max[3]; /* learned positions: rows of the tables of t, h, w; a sample has at most as many patches */
	/* mixture of experts */
	int64_t experts, expert_ffn, shared_experts;
	int moe_router; /* enum vfm_moe_router */
	/* expert choice: experts a token gets on average; token choice: experts each token takes */
	double moe_capacity;
	double moe_aux;             /* weight of the load-balance loss (token choice) */
	int64_t channels;           /* of the latents */
	int64_t patch[3];           /* t, h, w */
	int64_t text_dim, text_len; /* features, and at most so many rows a sample */
	double norm_eps, rope_theta;
};

/* VFM_EUSAGE lists the names. */
int vfm_model_preset(const char *name, struct vfm_model_spec *m, struct vfm_err *err);
extern const char *const vfm_model_presets[];      /* NULL-terminated */
void vfm_model_defaults(struct vfm_model_spec *m); /* dit-s */
/* Names the key ("model.heads: 7 does not divide model.hidden 384"). Fills ffn. */
int vfm_model_check(struct vfm_model_spec *m, struct vfm_err *err);

enum vfm_arch vfm_model_arch(const struct vfm_model_spec *m); /* of one that has passed the check */
int vfm_model_mods(const struct vfm_model_spec *m);           /* modulation vectors a block: 6, or 12 of stdit */
int64_t vfm_model_patch_dim(const struct vfm_model_spec *m);  /* features a token: channels * patch volume */
int64_t vfm_model_head_dim(const struct vfm_model_spec *m);
int64_t vfm_model_params(const struct vfm_model_spec *m);

/* A moe's without the experts that a token does not visit on average (expert choice: capacity experts a token). */
int64_t vfm_model_active_params(const struct vfm_model_spec *m);

/* Model FLOPs of a forward over a pack (DESIGN: 8 q h^2 + 4 Q h, 4 q h^2 + 4 c h^2 + 4 X h, 4 q h f, 6 q h f if gated,
 * and patchify, head, adaLN, embedders; with grouped queries the projections of k and v are that much smaller): q = sum
 * s_i, Q = sum s_i^2, c = sum c_i, X = sum s_i c_i over the samples.  Training is 3 times the forward; recompute is not
 * counted. */
struct vfm_pack_sums {
	double q, Q, c, X;
	double Qs, Qt; /* the same as Q over the frames of the samples, and over their columns in time */
	double n;      /* samples */
};
void vfm_pack_sums_grid(struct vfm_pack_sums *p, const int32_t grid[3], int64_t text_tokens);
/* The same for a sample of one frame. */
void vfm_pack_sums_add(struct vfm_pack_sums *p, int64_t tokens, int64_t text_tokens);
double vfm_model_flops(const struct vfm_model_spec *m, const struct vfm_pack_sums *p);

#endif
