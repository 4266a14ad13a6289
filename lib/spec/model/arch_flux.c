/* flux: FLUX.1 (Black Forest Labs 2024), pictures: double-stream and then single-stream blocks as in hunyuan1, without a
 * refiner of the text. */
#include <stddef.h>

#include "spec/model/foreign.h"

#define FLUX                                                                                                           \
	.layers = 57, .single_layers = 38, .hidden = 3072, .heads = 24, .channels = 16, .text_dim = 4096,              \
	.text2_dim = 768, .rope_axes = {16, 56, 56}

static const struct vfm_preset presets_flux[] = {
	{.name = "flux.1-dev", FLUX, .guidance_dim = 256},
	{.name = "flux.1-schnell", FLUX},
	{0},
};

#define BLOCK  "transformer_blocks.%d."
#define DOUBLE "double_blocks.%d."
#define SINGLE "single_transformer_blocks.%d."
#define FUSED  "single_blocks.%d."

/* Names of the tensors in diffusers' FluxTransformer2DModel, and in the original release. */
static const struct vfm_foreign_row rows_flux[] = {
	{"patch", "D,P", .linear = true, .theirs = {"x_embedder", "img_in"}},
	{"ctx_proj", "D,E", .linear = true, .theirs = {"context_embedder", "txt_in"}},
	{"t_mlp.0", "D,T", .linear = true,
		.theirs = {"time_text_embed.timestep_embedder.linear_1", "time_in.in_layer"}},
	{"t_mlp.2", "D,D", .linear = true,
		.theirs = {"time_text_embed.timestep_embedder.linear_2", "time_in.out_layer"}},
	{"vec_mlp.0", "D,Z", .linear = true,
		.theirs = {"time_text_embed.text_embedder.linear_1", "vector_in.in_layer"}},
	{"vec_mlp.2", "D,D", .linear = true,
		.theirs = {"time_text_embed.text_embedder.linear_2", "vector_in.out_layer"}},
	{"guidance_mlp.0", "D,G", .linear = true, .needs = 'G',
		.theirs = {"time_text_embed.guidance_embedder.linear_1", "guidance_in.in_layer"}},
	{"guidance_mlp.2", "D,D", .linear = true, .needs = 'G',
		.theirs = {"time_text_embed.guidance_embedder.linear_2", "guidance_in.out_layer"}},
	{"blocks.%d.ada", "12D,D", .linear = true,
		.theirs = {BLOCK "norm1.linear|" BLOCK "norm1_context.linear",
			DOUBLE "img_mod.lin|" DOUBLE "txt_mod.lin"}},
	{"blocks.%d.attn.qkv", "3D,D", .linear = true,
		.theirs = {BLOCK "attn.to_q|" BLOCK "attn.to_k|" BLOCK "attn.to_v", DOUBLE "img_attn.qkv"}},
	{"blocks.%d.attn.qn.weight", "H",
		.theirs = {BLOCK "attn.norm_q.weight", DOUBLE "img_attn.norm.query_norm.scale"}},
	{"blocks.%d.attn.kn.weight", "H",
		.theirs = {BLOCK "attn.norm_k.weight", DOUBLE "img_attn.norm.key_norm.scale"}},
	{"blocks.%d.attn.proj", "D,D", .linear = true, .theirs = {BLOCK "attn.to_out.0", DOUBLE "img_attn.proj"}},
	{"blocks.%d.fc1", "M,D", .linear = true, .theirs = {BLOCK "ff.net.0.proj", DOUBLE "img_mlp.0"}},
	{"blocks.%d.fc2", "D,M", .linear = true, .theirs = {BLOCK "ff.net.2", DOUBLE "img_mlp.2"}},
	{"blocks.%d.text.qkv", "3D,D", .linear = true,
		.theirs = {BLOCK "attn.add_q_proj|" BLOCK "attn.add_k_proj|" BLOCK "attn.add_v_proj",
			DOUBLE "txt_attn.qkv"}},
	{"blocks.%d.text.qn.weight", "H",
		.theirs = {BLOCK "attn.norm_added_q.weight", DOUBLE "txt_attn.norm.query_norm.scale"}},
	{"blocks.%d.text.kn.weight", "H",
		.theirs = {BLOCK "attn.norm_added_k.weight", DOUBLE "txt_attn.norm.key_norm.scale"}},
	{"blocks.%d.text.proj", "D,D", .linear = true, .theirs = {BLOCK "attn.to_add_out", DOUBLE "txt_attn.proj"}},
	{"blocks.%d.text.fc1", "M,D", .linear = true, .theirs = {BLOCK "ff_context.net.0.proj", DOUBLE "txt_mlp.0"}},
	{"blocks.%d.text.fc2", "D,M", .linear = true, .theirs = {BLOCK "ff_context.net.2", DOUBLE "txt_mlp.2"}},
	{"blocks.%d.ada", "3D,D", .linear = true, .count = 'S',
		.theirs = {SINGLE "norm.linear", FUSED "modulation.lin"}},
	{"blocks.%d.attn.qkv", "3D,D", .linear = true, .count = 'S',
		.theirs = {SINGLE "attn.to_q|" SINGLE "attn.to_k|" SINGLE "attn.to_v", NULL}},
	{"blocks.%d.fc1", "M,D", .linear = true, .count = 'S', .theirs = {SINGLE "proj_mlp", NULL}},
	{"blocks.%d.attn.qkv|blocks.%d.fc1", "3D,D|M,D", .linear = true, .count = 'S',
		.theirs = {NULL, FUSED "linear1"}},
	{"blocks.%d.attn.qn.weight", "H", .count = 'S',
		.theirs = {SINGLE "attn.norm_q.weight", FUSED "norm.query_norm.scale"}},
	{"blocks.%d.attn.kn.weight", "H", .count = 'S',
		.theirs = {SINGLE "attn.norm_k.weight", FUSED "norm.key_norm.scale"}},
	{"blocks.%d.attn.proj.weight|blocks.%d.fc2.weight", "D,D|D,M", .count = 'S', .columns = true,
		.theirs = {SINGLE "proj_out.weight", FUSED "linear2.weight"}},
	{"blocks.%d.fc2.bias", "D", .count = 'S', .theirs = {SINGLE "proj_out.bias", FUSED "linear2.bias"}},
	{"ada", "2D,D", .linear = true, .swapped = 1 << 0,
		.theirs = {"norm_out.linear", "final_layer.adaLN_modulation.1"}},
	{"out", "F,D", .linear = true, .theirs = {"proj_out", "final_layer.linear"}},
	{0},
};

#define OFF(f) offsetof(struct vfm_model_spec, f)

/* config.json of diffusers */
static const struct vfm_foreign_key keys_diffusers[] = {
	{"in_channels", VFM_FOREIGN_FEATURES},
	{"out_channels", VFM_FOREIGN_FEATURES},
	{"num_attention_heads", VFM_FOREIGN_INT, .off = OFF(heads)},
	{"attention_head_dim", VFM_FOREIGN_HEAD_DIM},
	{"num_layers", VFM_FOREIGN_DOUBLE, .off = OFF(layers)},
	{"num_single_layers", VFM_FOREIGN_COUNT, .off = OFF(single_layers)},
	{"patch_size", VFM_FOREIGN_ONE_OF, .values = "[1]"},
	{"joint_attention_dim", VFM_FOREIGN_INT, .off = OFF(text_dim)},
	{"pooled_projection_dim", VFM_FOREIGN_INT, .off = OFF(text2_dim)},
	{"guidance_embeds", VFM_FOREIGN_FLAG, .off = OFF(guidance_dim)},
	{"axes_dims_rope", VFM_FOREIGN_INT3, .off = OFF(rope_axes)},
	{0},
};

static const struct vfm_foreign foreign_flux = {
	.n_layouts = 2,
	.layout =
		{
			{"diffusers", "single_transformer_blocks.0.proj_mlp.weight", "FluxTransformer2DModel",
				.keys = keys_diffusers},
			{"original", "double_blocks.0.img_attn.norm.key_norm.scale", NULL, .keys = keys_diffusers},
		},
	.rows = rows_flux,
	.head_dim = 128,
	.text_len = 512,
	.patch = {1, 2, 2},
	.fixed_patch = true,
	.objective = "flow",
};

static const char *const keys_flux[] = {
	"model.single_layers", "model.rope_axes", "model.text2_dim", "model.guidance_dim", NULL};

const struct vfm_arch vfm_arch_flux = {
	.name = "flux",
	.n_attn = 1,
	.n_mod = 12,
	.joint = true,
	.text2_vector = true,
	.text = VFM_TEXT_LINEAR,
	.keys = keys_flux,
	.presets = presets_flux,
	.foreign = &foreign_flux,
};
