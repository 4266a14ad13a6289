/* ltx: LTX-Video (arXiv 2501.00103): adaLN-single, RMS norms, norms of q and k and RoPE over all heads, positions in
 * seconds and pixels, tokens of 1 x 1 x 1 latents. */
#include <stddef.h>

#include "spec/model/foreign.h"

static const struct vfm_preset presets_ltx[] = {
	{.name = "ltx-2b",
		.layers = 28,
		.hidden = 2048,
		.heads = 32,
		.channels = 128,
		.text_dim = 4096,
		.patch = {1, 1, 1}},
	{.name = "ltx-13b",
		.layers = 48,
		.hidden = 4096,
		.heads = 32,
		.channels = 128,
		.text_dim = 4096,
		.patch = {1, 1, 1}},
	{0},
};

/* Names of the tensors in diffusers' LTXVideoTransformer3DModel, and in the original release (Lightricks/LTX-Video). */
static const struct vfm_foreign_row rows_ltx[] = {
	{"patch", "D,P", .linear = true, .theirs = {"proj_in", "patchify_proj"}},
	{"t_mlp.0", "D,T", .linear = true,
		.theirs = {"time_embed.emb.timestep_embedder.linear_1", "adaln_single.emb.timestep_embedder.linear_1"}},
	{"t_mlp.2", "D,D", .linear = true,
		.theirs = {"time_embed.emb.timestep_embedder.linear_2", "adaln_single.emb.timestep_embedder.linear_2"}},
	{"ada_shared", "6D,D", .linear = true, .theirs = {"time_embed.linear", "adaln_single.linear"}},
	{"ctx_mlp.0", "D,E", .linear = true, .theirs = {"caption_projection.linear_1", "caption_projection.linear_1"}},
	{"ctx_mlp.2", "D,D", .linear = true, .theirs = {"caption_projection.linear_2", "caption_projection.linear_2"}},
	{"blocks.%d.scale_shift_table", "6,D",
		.theirs = {"transformer_blocks.%d.scale_shift_table", "transformer_blocks.%d.scale_shift_table"}},
	{"blocks.%d.attn.qkv", "3D,D", .linear = true,
		.theirs = {"transformer_blocks.%d.attn1.to_q|transformer_blocks.%d.attn1.to_k|"
			   "transformer_blocks.%d.attn1.to_v",
			"transformer_blocks.%d.attn1.to_q|transformer_blocks.%d.attn1.to_k|"
			"transformer_blocks.%d.attn1.to_v"}},
	{"blocks.%d.attn.qn.weight", "D",
		.theirs = {"transformer_blocks.%d.attn1.norm_q.weight", "transformer_blocks.%d.attn1.q_norm.weight"}},
	{"blocks.%d.attn.kn.weight", "D",
		.theirs = {"transformer_blocks.%d.attn1.norm_k.weight", "transformer_blocks.%d.attn1.k_norm.weight"}},
	{"blocks.%d.attn.proj", "D,D", .linear = true,
		.theirs = {"transformer_blocks.%d.attn1.to_out.0", "transformer_blocks.%d.attn1.to_out.0"}},
	{"blocks.%d.cross.q", "D,D", .linear = true,
		.theirs = {"transformer_blocks.%d.attn2.to_q", "transformer_blocks.%d.attn2.to_q"}},
	{"blocks.%d.cross.kv", "2D,D", .linear = true,
		.theirs = {"transformer_blocks.%d.attn2.to_k|transformer_blocks.%d.attn2.to_v",
			"transformer_blocks.%d.attn2.to_k|transformer_blocks.%d.attn2.to_v"}},
	{"blocks.%d.cross.qn.weight", "D",
		.theirs = {"transformer_blocks.%d.attn2.norm_q.weight", "transformer_blocks.%d.attn2.q_norm.weight"}},
	{"blocks.%d.cross.kn.weight", "D",
		.theirs = {"transformer_blocks.%d.attn2.norm_k.weight", "transformer_blocks.%d.attn2.k_norm.weight"}},
	{"blocks.%d.cross.proj", "D,D", .linear = true,
		.theirs = {"transformer_blocks.%d.attn2.to_out.0", "transformer_blocks.%d.attn2.to_out.0"}},
	{"blocks.%d.fc1", "M,D", .linear = true,
		.theirs = {"transformer_blocks.%d.ff.net.0.proj", "transformer_blocks.%d.ff.net.0.proj"}},
	{"blocks.%d.fc2", "D,M", .linear = true,
		.theirs = {"transformer_blocks.%d.ff.net.2", "transformer_blocks.%d.ff.net.2"}},
	{"head_shift|head_scale", "D", .form = "2,D", .theirs = {"scale_shift_table", "scale_shift_table"}},
	{"out", "F,D", .linear = true, .theirs = {"proj_out", "proj_out"}},
	{0},
};

#define OFF(f) offsetof(struct vfm_model_spec, f)

/* config.json of diffusers */
static const struct vfm_foreign_key keys_diffusers[] = {
	{"patch_size", VFM_FOREIGN_ONE_OF, .values = "[1]"},
	{"patch_size_t", VFM_FOREIGN_ONE_OF, .values = "[1]"},
	{"num_attention_heads", VFM_FOREIGN_INT, .off = OFF(heads)},
	{"attention_head_dim", VFM_FOREIGN_HEAD_DIM, .off = 0},
	{"cross_attention_dim", VFM_FOREIGN_INT, .off = OFF(hidden)},
	{"in_channels", VFM_FOREIGN_INPUTS, .off = 0},
	{"out_channels", VFM_FOREIGN_INT, .off = OFF(channels)},
	{"caption_channels", VFM_FOREIGN_INT, .off = OFF(text_dim)},
	{"num_layers", VFM_FOREIGN_INT, .off = OFF(layers)},
	{"activation_fn", VFM_FOREIGN_ONE_OF, .values = "[\"gelu-approximate\"]"},
	{"qk_norm", VFM_FOREIGN_ONE_OF, .values = "[\"rms_norm_across_heads\"]"},
	{"norm_elementwise_affine", VFM_FOREIGN_ONE_OF, .values = "[false]"},
	{"norm_eps", VFM_FOREIGN_ONE_OF, .values = "[1e-06]"},
	{"attention_bias", VFM_FOREIGN_ONE_OF, .values = "[true]"},
	{"attention_out_bias", VFM_FOREIGN_ONE_OF, .values = "[true]"},
	{0},
};

/* The release is one file, with the autoencoder's tensors and without config.json. */
static const struct vfm_foreign foreign_ltx = {
	.n_layouts = 2,
	.layout =
		{
			{"diffusers", "time_embed.linear.weight", "LTXVideoTransformer3DModel", .keys = keys_diffusers},
			{"original", "patchify_proj.weight", .ignored = "vae.*", .import_only = true,
				.keys = keys_diffusers},
		},
	.rows = rows_ltx,
	.heads = 32,
	.text_len = 512,
	.patch = {1, 1, 1},
	.fixed_patch = true,
	.objective = "flow",
};

static const char *const keys_ltx[] = {"model.rope_fps", "model.rope_stride", NULL};

const struct vfm_arch vfm_arch_ltx = {
	.name = "ltx",
	.n_attn = 1,
	.n_mod = 6,
	.mod = VFM_MOD_TABLE,
	.rms_norm = true,
	.plain_cross = true,
	.row_qk_norm = true,
	.qk_eps = 1e-5,
	.rope_extent = {20, 2048, 2048},
	.rope_fps = 25,
	.text = VFM_TEXT_MLP,
	.head_table = true,
	.head_layer_norm = true,
	.keys = keys_ltx,
	.presets = presets_ltx,
	.foreign = &foreign_ltx,
};
