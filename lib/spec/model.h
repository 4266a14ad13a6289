/* model.h - what a model is, as plain numbers: dimensions, presets, and the counts that
 * follow from them (parameters, FLOPs).  No devices.
 */
#ifndef VFM_SPEC_MODEL_H
#define VFM_SPEC_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/arch.h"
#include "spec/key.h"

enum vfm_moe_router { VFM_MOE_EXPERT_CHOICE, VFM_MOE_TOKEN_CHOICE };

struct vfm_model_spec {
	char arch[16]; /* a name in vfm_arch_names */
	int64_t layers, hidden, heads;
	int64_t kv_heads;     /* grouped queries; 0: heads */
	int64_t ffn;          /* 0: 4 * hidden; not read where experts stand in the place of the MLP */
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
	int64_t text_dim, text_len; /* features of a text row; rows that are read of a sample, the rest is cut off */
	double norm_eps, rope_theta;
};

/* VFM_EUSAGE lists the names. */
int vfm_model_preset(const char *name, struct vfm_model_spec *m, struct vfm_err *err);
void vfm_model_defaults(struct vfm_model_spec *m); /* dit-s */
/* Names the key ("model.heads: 7 does not divide model.hidden 384"). Fills ffn. */
int vfm_model_check(struct vfm_model_spec *m, struct vfm_err *err);

/* The keys of the section "model", with their ranges; offsets are those in struct vfm_model_spec. */
extern const struct vfm_key vfm_model_keys[];
extern const int vfm_model_n_keys;

const struct vfm_arch *vfm_model_arch(const struct vfm_model_spec *m); /* of a model that has passed the check */
bool vfm_model_has_experts(const struct vfm_model_spec *m);
/* Token choice: in each pack the host reads how many tokens each expert gets. */
bool vfm_model_tokens_choose(const struct vfm_model_spec *m);
/* Whether all blocks share a matrix of modulation, to which each adds its own. */
bool vfm_model_has_shared_mod(const struct vfm_model_spec *m);
int64_t vfm_model_patch_dim(const struct vfm_model_spec *m); /* features a token: channels * patch volume */
int64_t vfm_model_head_dim(const struct vfm_model_spec *m);
int64_t vfm_model_params(const struct vfm_model_spec *m);

/* Without the experts that do not compute a token on average (expert choice: capacity experts compute one). */
int64_t vfm_model_active_params(const struct vfm_model_spec *m);

/* Model FLOPs of a forward over a pack: 8 q h^2 + 4 Q h of a self-attention, 4 q h^2 + 4 c h^2 + 4 X h of the
 * cross-attention, 4 q h f of the MLP (6 q h f if it is gated), and patchify, head, modulation, embedders; grouped
 * queries have smaller projections of k and v.  Sums over the samples: q = sum s_i, Q = sum s_i^2, c = sum c_i,
 * X = sum s_i c_i.  Training is 3 times the forward; recompute is not counted. */
struct vfm_pack_sums {
	double q, Q, c, X;
	double Qs, Qt; /* as Q, of the frames of the samples, and of their columns in time */
	double n;      /* samples */
};
/* Adds a sample of grid[0] x grid[1] x grid[2] patches. */
void vfm_pack_sums_add(struct vfm_pack_sums *p, const int32_t grid[3], int64_t text_tokens);
double vfm_model_flops(const struct vfm_model_spec *m, const struct vfm_pack_sums *p);

#endif
