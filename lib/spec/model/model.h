/* model.h - the specification of a model: dimensions, presets and derived values.  Local; no device. */
#ifndef VFM_SPEC_MODEL_MODEL_H
#define VFM_SPEC_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "io/key.h"
#include "spec/model/arch.h"

enum vfm_moe_router { VFM_MOE_EXPERT_CHOICE, VFM_MOE_TOKEN_CHOICE };

enum {
	VFM_TIME_FEATURES = 256, /* of the time, before its layers; cosmos has model.hidden */
	VFM_TEXT2_WIDTH = 2048,  /* the inner width of the layers that embed the second text */
};

struct vfm_model_spec {
	char arch[16]; /* a name in vfm_arch_names */
	int64_t layers, hidden, heads;
	int64_t single_layers; /* the last of the layers, which are single-stream blocks (arch.h) */
	int64_t kv_heads;      /* grouped-query attention; 0: heads */
	int64_t ffn;           /* 0: 4 * hidden; ignored by architectures with experts */
	bool cross_attention;  /* the blocks read the text by cross-attention; false: as in the original DiT */
	bool pooled_text;      /* adds the mean of the text to the conditioning */
	bool qk_norm;          /* RMS norm per head on q and k */
	int64_t adaln_lora;    /* rank of a block's modulation; 0: a full matrix per block */
	int pos;               /* enum vfm_pos */
	int64_t pos_max[3]; /* learned positions: rows of the tables of t, h, w, which limit the patches of a sample */
	/* mixture of experts */
	int64_t experts, expert_ffn, shared_experts;
	int moe_router; /* enum vfm_moe_router */
	/* expert choice: mean number of experts per token; token choice: experts per token */
	double moe_capacity;
	double moe_aux;        /* weight of the load-balance loss (token choice) */
	int64_t channels;      /* of the latents */
	int64_t cond_channels; /* of the condition, which follows the latents in an input token; 0: none */
	int64_t mask_channels; /* masks that follow the latents in an input token (arch.h): 1 is padding; 2: given */
	int64_t patch[3];      /* t, h, w */
	int64_t text_dim, text_len;   /* features of a text row; maximum rows per sample (longer texts are truncated) */
	int64_t text2_dim, text2_len; /* the same of a second text encoder; text2_dim 0: none */
	int64_t text_proj;            /* features of the layer that embeds the text; 0: none (VFM_TEXT_ROWS) */
	/* features of an image row; every sample has image_len rows; 0: no image rows */
	int64_t image_dim, image_len;
	int64_t image_pos; /* learned positions added to the image rows: 0 or image_len */
	bool text_pad;     /* every text has text_len rows; zeros pad shorter ones */
	double norm_eps, rope_theta;
	int64_t rope_axes[3];   /* t, h, w: the features of a head that rotate with each; 0: vfm_model_rope_axes */
	int64_t refiner_layers; /* VFM_TEXT_REFINER */
	int64_t guidance_dim;   /* features of the guidance scale that a distilled network reads; 0: none */
	double rope_scale[3];   /* t, h, w: RoPE reaches this many times as far (vfm_model_rope_axes) */
	double rope_fps;        /* frames per second of the videos; 0: that of the published models */
	/* RoPE over all heads: frames and pixels per latent element (t, h, w) */
	int64_t rope_stride[3];
};

/* Sets *m to the preset `name`.  VFM_EUSAGE: unknown name; the message lists the presets. */
int vfm_model_preset(const char *name, struct vfm_model_spec *m, struct vfm_err *err);
void vfm_model_defaults(struct vfm_model_spec *m); /* dit-s */
/* Checks m and sets ffn if it is 0.  The message names the key: "model.heads: 7 does not divide model.hidden 384". */
int vfm_model_check(struct vfm_model_spec *m, struct vfm_err *err);

/* The keys of the section "model", with their ranges; offsets are those in struct vfm_model_spec. */
extern const struct vfm_key vfm_model_keys[];
extern const int vfm_model_n_keys;
/* The keys that the architecture of m reads; the caller owns it.  m must have passed the check. */
json_t *vfm_model_json(const struct vfm_model_spec *m);
/* Sets the keys that the section has, and ignores unknown ones.  VFM_EUSAGE: a value is of another type or out of range;
 * the message names the key after `where`. */
int vfm_model_read(struct vfm_model_spec *m, const json_t *section, const char *where, struct vfm_err *err);

const struct vfm_arch *vfm_model_arch(const struct vfm_model_spec *m); /* m must have passed the check */
bool vfm_model_has_experts(const struct vfm_model_spec *m);
bool vfm_model_has_cross(const struct vfm_model_spec *m);                /* the blocks have cross-attention */
bool vfm_model_reads_text(const struct vfm_model_spec *m);               /* blocks or conditioning do */
bool vfm_model_pools_text(const struct vfm_model_spec *m);               /* the mean of the text is read */
bool vfm_model_is_single(const struct vfm_model_spec *m, int64_t layer); /* a single-stream block */
int vfm_model_n_mod(const struct vfm_model_spec *m, int64_t layer);      /* modulation vectors of a block */
/* Returns the number of rows to which second texts are cut; 0: none, since a vector (arch.h) is one row or an error. */
int64_t vfm_model_text2_cut(const struct vfm_model_spec *m);
/* Returns the rows of the text stream that a second text of `rows` rows gives; 0 if it is a vector (arch.h). */
int64_t vfm_model_text2_rows(const struct vfm_model_spec *m, int64_t rows);
/* Returns whether the router is token choice.  The host then reads the number of tokens per expert in each pack. */
bool vfm_model_tokens_choose(const struct vfm_model_spec *m);
/* Returns whether the model has attention within frames or columns. */
bool vfm_model_has_units(const struct vfm_model_spec *m);
/* Returns whether all blocks share a modulation matrix.  Each block then adds its own table to the shared
 * modulation. */
bool vfm_model_has_shared_mod(const struct vfm_model_spec *m);
void vfm_model_patch(const struct vfm_model_spec *m, int32_t patch[3]); /* t, h, w */
int64_t vfm_model_patch_dim(const struct vfm_model_spec *m); /* features per token: channels * patch volume */
int64_t vfm_model_cond_dim(const struct vfm_model_spec *m);  /* features of the condition per token; 0: none */
/* Features of given frames per token: masks, or latents and a mask; 0: none. */
int64_t vfm_model_given_dim(const struct vfm_model_spec *m);
bool vfm_model_takes_given(const struct vfm_model_spec *m);    /* false: its input has no mask of given frames */
bool vfm_model_predicts_given(const struct vfm_model_spec *m); /* VFM_GIVEN_COND */
int64_t vfm_model_input_dim(const struct vfm_model_spec *m);   /* the sum of these three */
int64_t vfm_model_context_dim(const struct vfm_model_spec *m); /* features of a row that cross-attention reads */
/* Returns the text rows that the model reads for a sample with `rows` <= text_len: `rows`, or text_len with
 * text_pad. */
int64_t vfm_model_text_rows(const struct vfm_model_spec *m, int64_t rows);
int64_t vfm_model_head_dim(const struct vfm_model_spec *m);
bool vfm_model_has_row_rope(const struct vfm_model_spec *m); /* whether RoPE runs over all heads */
/* Sets the factors of positions in t, h, w.  RoPE over all heads: the fraction of rope_extent (arch.h) per patch. */
void vfm_model_rope_scale(const struct vfm_model_spec *m, double scale[3]);
/* RoPE over each head of d features: without rope_axes, 2 (d/6) features each rotate with h and w, the rest with t.  With
 * n features, rope_scale r makes the base of the frequencies rope_theta r^(n / (n - 2)) (NTK-aware scaling). */
struct vfm_rope_axes {
	int64_t features[3]; /* of t, h, w */
	double theta[3], scale[3];
};
void vfm_model_rope_axes(const struct vfm_model_spec *m, struct vfm_rope_axes *r);

/* Sums over the samples of a pack.  A pair is a query and a key that it attends to. */
struct vfm_pack_sums {
	double tokens, text_rows, samples;
	double segments; /* samples, plus one for each sample with a given frame (net/diffusion/input.h) */
	/* joint attention: rows of the second text encoder, and of images; text_rows are those of the first encoder */
	double text2_rows, image_rows;
	double pairs_joint; /* of all rows of a sample, tokens and text; of the rows of the first encoder */
	double pairs_text;
	/* pairs of full self-attention, of attention within frames, of attention along time, and of tokens with text
	 * rows */
	double pairs_full, pairs_spatial, pairs_temporal, pairs_cross;
};
/* Adds a sample of grid[0] x grid[1] x grid[2] patches. */
void vfm_pack_sums_add(struct vfm_pack_sums *p, const int32_t grid[3], int64_t text_tokens);
/* The same for a sample that also has rows of the second encoder and of an image. */
void vfm_pack_sums_add_joint(
	struct vfm_pack_sums *p, const int32_t grid[3], int64_t text_tokens, int64_t text2, int64_t image);

#endif
