/* Two models with joint attention of tokens and text, and a refiner of the text:
 *
 * hunyuan   HunyuanVideo 1.5 (arXiv 2511.18870): rows of a second text encoder and of an image, tokens of 1 x 1 x 1
 *           latents
 * hunyuan1  HunyuanVideo (arXiv 2412.03603): single-stream blocks follow the double-stream ones; the conditioning adds
 *           a vector of the text and, in distilled networks, the guidance scale
 */
#include <stddef.h>

#include "spec/model/foreign.h"

static const struct vfm_preset presets_hunyuan[] = {
	{.name = "hunyuanvideo-1.5",
		.layers = 54,
		.hidden = 2048,
		.heads = 16,
		.channels = 32,
		.patch = {1, 1, 1},
		.text_dim = 3584,
		.text_len = 1000,
		.text2_dim = 1472,
		.image_dim = 1152,
		.image_len = 729,
		.rope_axes = {16, 56, 56},
		.rope_theta = 256},
	{0},
};

#define TEXT_TIME "context_embedder.time_text_embed."
#define REFINER   "context_embedder.token_refiner.refiner_blocks.%d."
#define ORIGINAL  "txt_in.individual_token_refiner.blocks.%d."
#define BLOCK     "transformer_blocks.%d."
#define DOUBLE    "double_blocks.%d."

/* clang-format off */

/* The embedding of the text, and a double-stream block without its qkv: both models have these names. */
#define REFINER_ROWS \
	{"ctx_proj", "D,E", .linear = true, .theirs = {"context_embedder.proj_in", "txt_in.input_embedder"}}, \
	{"refiner.t.0", "D,T", .linear = true, \
		.theirs = {TEXT_TIME "timestep_embedder.linear_1", "txt_in.t_embedder.mlp.0"}}, \
	{"refiner.t.2", "D,D", .linear = true, \
		.theirs = {TEXT_TIME "timestep_embedder.linear_2", "txt_in.t_embedder.mlp.2"}}, \
	{"refiner.pool.0", "D,E", .linear = true, \
		.theirs = {TEXT_TIME "text_embedder.linear_1", "txt_in.c_embedder.linear_1"}}, \
	{"refiner.pool.2", "D,D", .linear = true, \
		.theirs = {TEXT_TIME "text_embedder.linear_2", "txt_in.c_embedder.linear_2"}}, \
	{"refiner.%d.ln1", "D", .linear = true, .count = 'N', .theirs = {REFINER "norm1", ORIGINAL "norm1"}}, \
	{"refiner.%d.qkv", "3D,D", .linear = true, .count = 'N', \
		.theirs = {REFINER "attn.to_q|" REFINER "attn.to_k|" REFINER "attn.to_v", ORIGINAL "self_attn_qkv"}}, \
	{"refiner.%d.proj", "D,D", .linear = true, .count = 'N', \
		.theirs = {REFINER "attn.to_out.0", ORIGINAL "self_attn_proj"}}, \
	{"refiner.%d.ln2", "D", .linear = true, .count = 'N', .theirs = {REFINER "norm2", ORIGINAL "norm2"}}, \
	{"refiner.%d.fc1", "4D,D", .linear = true, .count = 'N', \
		.theirs = {REFINER "ff.net.0.proj", ORIGINAL "mlp.fc1"}}, \
	{"refiner.%d.fc2", "D,4D", .linear = true, .count = 'N', \
		.theirs = {REFINER "ff.net.2", ORIGINAL "mlp.fc2"}}, \
	{"refiner.%d.ada", "2D,D", .linear = true, .count = 'N', \
		.theirs = {REFINER "norm_out.linear", ORIGINAL "adaLN_modulation.1"}}

#define DOUBLE_ROWS \
	{"blocks.%d.ada", "12D,D", .linear = true, \
		.theirs = {BLOCK "norm1.linear|" BLOCK "norm1_context.linear", \
			DOUBLE "img_mod.linear|" DOUBLE "txt_mod.linear"}}, \
	{"blocks.%d.attn.qn.weight", "H", .theirs = {BLOCK "attn.norm_q.weight", DOUBLE "img_attn_q_norm.weight"}}, \
	{"blocks.%d.attn.kn.weight", "H", .theirs = {BLOCK "attn.norm_k.weight", DOUBLE "img_attn_k_norm.weight"}}, \
	{"blocks.%d.attn.proj", "D,D", .linear = true, .theirs = {BLOCK "attn.to_out.0", DOUBLE "img_attn_proj"}}, \
	{"blocks.%d.fc1", "M,D", .linear = true, .theirs = {BLOCK "ff.net.0.proj", DOUBLE "img_mlp.fc1"}}, \
	{"blocks.%d.fc2", "D,M", .linear = true, .theirs = {BLOCK "ff.net.2", DOUBLE "img_mlp.fc2"}}, \
	{"blocks.%d.text.qn.weight", "H", \
		.theirs = {BLOCK "attn.norm_added_q.weight", DOUBLE "txt_attn_q_norm.weight"}}, \
	{"blocks.%d.text.kn.weight", "H", \
		.theirs = {BLOCK "attn.norm_added_k.weight", DOUBLE "txt_attn_k_norm.weight"}}, \
	{"blocks.%d.text.proj", "D,D", .linear = true, .theirs = {BLOCK "attn.to_add_out", DOUBLE "txt_attn_proj"}}, \
	{"blocks.%d.text.fc1", "M,D", .linear = true, \
		.theirs = {BLOCK "ff_context.net.0.proj", DOUBLE "txt_mlp.fc1"}}, \
	{"blocks.%d.text.fc2", "D,M", .linear = true, .theirs = {BLOCK "ff_context.net.2", DOUBLE "txt_mlp.fc2"}}

/* clang-format on */

/* Names of the tensors in diffusers' HunyuanVideo15Transformer3DModel, and in the original release. */
static const struct vfm_foreign_row rows_hunyuan[] = {
	{"patch", "D,P", .linear = true, .form = "D,X,t,h,w", .theirs = {"x_embedder.proj", "img_in.proj"}},
	{"t_mlp.0", "D,T", .linear = true, .theirs = {"time_embed.timestep_embedder.linear_1", "time_in.mlp.0"}},
	{"t_mlp.2", "D,D", .linear = true, .theirs = {"time_embed.timestep_embedder.linear_2", "time_in.mlp.2"}},
	REFINER_ROWS,
	{"text2.0", "Z", .linear = true, .theirs = {"context_embedder_2.norm", "byt5_in.layernorm"}},
	{"text2.1", "2048,Z", .linear = true, .theirs = {"context_embedder_2.linear_1", "byt5_in.fc1"}},
	{"text2.3", "2048,2048", .linear = true, .theirs = {"context_embedder_2.linear_2", "byt5_in.fc2"}},
	{"text2.5", "D,2048", .linear = true, .theirs = {"context_embedder_2.linear_3", "byt5_in.fc3"}},
	{"img_mlp.0", "I", .linear = true, .theirs = {"image_embedder.norm_in", "vision_in.proj.0"}},
	{"img_mlp.1", "I,I", .linear = true, .theirs = {"image_embedder.linear_1", "vision_in.proj.1"}},
	{"img_mlp.3", "D,I", .linear = true, .theirs = {"image_embedder.linear_2", "vision_in.proj.3"}},
	{"img_mlp.4", "D", .linear = true, .theirs = {"image_embedder.norm_out", "vision_in.proj.4"}},
	{"row_type.0|row_type.1|row_type.2", "D", .form = "3,D",
		.theirs = {"cond_type_embed.weight", "cond_type_embedding.weight"}},
	{"blocks.%d.attn.qkv", "3D,D", .linear = true,
		.theirs = {BLOCK "attn.to_q|" BLOCK "attn.to_k|" BLOCK "attn.to_v",
			DOUBLE "img_attn_q|" DOUBLE "img_attn_k|" DOUBLE "img_attn_v"}},
	{"blocks.%d.text.qkv", "3D,D", .linear = true,
		.theirs = {BLOCK "attn.add_q_proj|" BLOCK "attn.add_k_proj|" BLOCK "attn.add_v_proj",
			DOUBLE "txt_attn_q|" DOUBLE "txt_attn_k|" DOUBLE "txt_attn_v"}},
	DOUBLE_ROWS,
	{"ada", "2D,D", .linear = true, .swapped = 1 << 0,
		.theirs = {"norm_out.linear", "final_layer.adaLN_modulation.1"}},
	{"out", "F,D", .linear = true, .theirs = {"proj_out", "final_layer.linear"}},
	{0},
};

#define OFF(f) offsetof(struct vfm_model_spec, f)

/* config.json of diffusers */
static const struct vfm_foreign_key keys_diffusers[] = {
	{"in_channels", VFM_FOREIGN_INPUTS, .off = 0},
	{"out_channels", VFM_FOREIGN_INT, .off = OFF(channels)},
	{"num_attention_heads", VFM_FOREIGN_INT, .off = OFF(heads)},
	{"attention_head_dim", VFM_FOREIGN_HEAD_DIM, .off = 0},
	{"num_layers", VFM_FOREIGN_INT, .off = OFF(layers)},
	{"num_refiner_layers", VFM_FOREIGN_INT, .off = OFF(refiner_layers)},
	{"mlp_ratio", VFM_FOREIGN_MLP_RATIO, .off = 0},
	{"patch_size", VFM_FOREIGN_ONE_OF, .values = "[1]"},
	{"patch_size_t", VFM_FOREIGN_ONE_OF, .values = "[1]"},
	{"qk_norm", VFM_FOREIGN_ONE_OF, .values = "[\"rms_norm\"]"},
	{"text_embed_dim", VFM_FOREIGN_INT, .off = OFF(text_dim)},
	{"text_embed_2_dim", VFM_FOREIGN_INT, .off = OFF(text2_dim)},
	{"image_embed_dim", VFM_FOREIGN_INT, .off = OFF(image_dim)},
	{"rope_theta", VFM_FOREIGN_NUM, .off = OFF(rope_theta)},
	{"rope_axes_dim", VFM_FOREIGN_INT3, .off = OFF(rope_axes)},
	{"use_meanflow", VFM_FOREIGN_ONE_OF, .values = "[false]"},
	/* of the pipeline: the size and the task that the network was trained for */
	{"target_size", VFM_FOREIGN_ANY, .values = "640"},
	{"task_type", VFM_FOREIGN_ANY, .values = "\"i2v\""},
	{0},
};

/* config.json of the original release, which has no single-stream blocks */
static const struct vfm_foreign_key keys_original[] = {
	{"patch_size", VFM_FOREIGN_ONE_OF, .values = "[[1, 1, 1]]"},
	{"in_channels", VFM_FOREIGN_INT, .off = OFF(channels)},
	{"concat_condition", VFM_FOREIGN_ONE_OF, .values = "[true]"},
	{"out_channels", VFM_FOREIGN_INT, .off = OFF(channels)},
	{"hidden_size", VFM_FOREIGN_INT, .off = OFF(hidden)},
	{"heads_num", VFM_FOREIGN_INT, .off = OFF(heads)},
	{"mlp_width_ratio", VFM_FOREIGN_MLP_RATIO, .off = 0},
	{"mlp_act_type", VFM_FOREIGN_ONE_OF, .values = "[\"gelu_tanh\"]"},
	{"mm_double_blocks_depth", VFM_FOREIGN_INT, .off = OFF(layers)},
	{"mm_single_blocks_depth", VFM_FOREIGN_ONE_OF, .values = "[0]"},
	{"rope_dim_list", VFM_FOREIGN_INT3, .off = OFF(rope_axes)},
	{"qkv_bias", VFM_FOREIGN_ONE_OF, .values = "[true]"},
	{"qk_norm", VFM_FOREIGN_ONE_OF, .values = "[true]"},
	{"qk_norm_type", VFM_FOREIGN_ONE_OF, .values = "[\"rms\"]"},
	{"guidance_embed", VFM_FOREIGN_ONE_OF, .values = "[false]"},
	{"use_meanflow", VFM_FOREIGN_ONE_OF, .values = "[false]"},
	{"text_projection", VFM_FOREIGN_ONE_OF, .values = "[\"single_refiner\"]"},
	{"use_attention_mask", VFM_FOREIGN_ONE_OF, .values = "[true]"},
	{"text_states_dim", VFM_FOREIGN_INT, .off = OFF(text_dim)},
	{"text_states_dim_2", VFM_FOREIGN_ANY, .values = "null"},
	{"text_pool_type", VFM_FOREIGN_ANY, .values = "null"},
	{"rope_theta", VFM_FOREIGN_NUM, .off = OFF(rope_theta)},
	{"attn_mode", VFM_FOREIGN_ANY, .values = "\"flash\""},
	{"attn_param", VFM_FOREIGN_ANY, .values = "null"},
	{"glyph_byT5_v2", VFM_FOREIGN_ONE_OF, .values = "[true]"},
	{"vision_projection", VFM_FOREIGN_ONE_OF, .values = "[\"linear\"]"},
	{"vision_states_dim", VFM_FOREIGN_INT, .off = OFF(image_dim)},
	{"is_reshape_temporal_channels", VFM_FOREIGN_ONE_OF, .values = "[false]"},
	{"use_cond_type_embedding", VFM_FOREIGN_ONE_OF, .values = "[true]"},
	{"ideal_resolution", VFM_FOREIGN_ANY, .values = "null"},
	{"ideal_task", VFM_FOREIGN_ANY, .values = "null"},
	{0},
};

static const struct vfm_foreign foreign_hunyuan = {
	.n_layouts = 2,
	.layout =
		{
			{"diffusers", "cond_type_embed.weight", "HunyuanVideo15Transformer3DModel",
				.keys = keys_diffusers},
			{"original", "cond_type_embedding.weight", "HunyuanVideo_1_5_DiffusionTransformer",
				.keys = keys_original},
		},
	.rows = rows_hunyuan,
	.head_dim = 128,
	.text_len = 1000,
	.image_len = 729,
	.rope_theta = 256,
	.patch = {1, 1, 1},
	.fixed_patch = true,
	.objective = "flow",
};

static const char *const keys_hunyuan[] = {
	"model.rope_axes", "model.refiner_layers", "model.text2_dim", "model.text2_len", NULL};

const struct vfm_arch vfm_arch_hunyuan = {
	.name = "hunyuan",
	.n_attn = 1,
	.n_mod = 12,
	.joint = true,
	.row_type = true,
	.text = VFM_TEXT_REFINER,
	.given = VFM_GIVEN_COND,
	.keys = keys_hunyuan,
	.presets = presets_hunyuan,
	.foreign = &foreign_hunyuan,
};

/* ---- hunyuan1 ---- */

static const struct vfm_preset presets_hunyuan1[] = {
	{.name = "hunyuanvideo",
		.layers = 60,
		.single_layers = 40,
		.hidden = 3072,
		.heads = 24,
		.channels = 16,
		.text_dim = 4096,
		.text_len = 256,
		.text2_dim = 768,
		.guidance_dim = 256,
		.rope_axes = {16, 56, 56},
		.rope_theta = 256},
	{0},
};

#define SINGLE "single_transformer_blocks.%d."
#define FUSED  "single_blocks.%d."

/* Names of the tensors in diffusers' HunyuanVideoTransformer3DModel, and in the original release. */
static const struct vfm_foreign_row rows_hunyuan1[] = {
	{"patch", "D,P", .linear = true, .form = "D,X,t,h,w", .theirs = {"x_embedder.proj", "img_in.proj"}},
	{"t_mlp.0", "D,T", .linear = true, .theirs = {"time_text_embed.timestep_embedder.linear_1", "time_in.mlp.0"}},
	{"t_mlp.2", "D,D", .linear = true, .theirs = {"time_text_embed.timestep_embedder.linear_2", "time_in.mlp.2"}},
	{"vec_mlp.0", "D,Z", .linear = true,
		.theirs = {"time_text_embed.text_embedder.linear_1", "vector_in.in_layer"}},
	{"vec_mlp.2", "D,D", .linear = true,
		.theirs = {"time_text_embed.text_embedder.linear_2", "vector_in.out_layer"}},
	{"guidance_mlp.0", "D,G", .linear = true, .needs = 'G',
		.theirs = {"time_text_embed.guidance_embedder.linear_1", "guidance_in.mlp.0"}},
	{"guidance_mlp.2", "D,D", .linear = true, .needs = 'G',
		.theirs = {"time_text_embed.guidance_embedder.linear_2", "guidance_in.mlp.2"}},
	REFINER_ROWS,
	{"blocks.%d.attn.qkv", "3D,D", .linear = true,
		.theirs = {BLOCK "attn.to_q|" BLOCK "attn.to_k|" BLOCK "attn.to_v", DOUBLE "img_attn_qkv"}},
	{"blocks.%d.text.qkv", "3D,D", .linear = true,
		.theirs = {BLOCK "attn.add_q_proj|" BLOCK "attn.add_k_proj|" BLOCK "attn.add_v_proj",
			DOUBLE "txt_attn_qkv"}},
	DOUBLE_ROWS,
	{"blocks.%d.ada", "3D,D", .linear = true, .count = 'S',
		.theirs = {SINGLE "norm.linear", FUSED "modulation.linear"}},
	{"blocks.%d.attn.qkv", "3D,D", .linear = true, .count = 'S',
		.theirs = {SINGLE "attn.to_q|" SINGLE "attn.to_k|" SINGLE "attn.to_v", NULL}},
	{"blocks.%d.fc1", "M,D", .linear = true, .count = 'S', .theirs = {SINGLE "proj_mlp", NULL}},
	{"blocks.%d.attn.qkv|blocks.%d.fc1", "3D,D|M,D", .linear = true, .count = 'S',
		.theirs = {NULL, FUSED "linear1"}},
	{"blocks.%d.attn.qn.weight", "H", .count = 'S', .theirs = {SINGLE "attn.norm_q.weight", FUSED "q_norm.weight"}},
	{"blocks.%d.attn.kn.weight", "H", .count = 'S', .theirs = {SINGLE "attn.norm_k.weight", FUSED "k_norm.weight"}},
	{"blocks.%d.attn.proj.weight|blocks.%d.fc2.weight", "D,D|D,M", .count = 'S', .columns = true,
		.theirs = {SINGLE "proj_out.weight", FUSED "linear2.weight"}},
	{"blocks.%d.fc2.bias", "D", .count = 'S', .theirs = {SINGLE "proj_out.bias", FUSED "linear2.bias"}},
	{"ada", "2D,D", .linear = true, .swapped = 1 << 0,
		.theirs = {"norm_out.linear", "final_layer.adaLN_modulation.1"}},
	{"out", "F,D", .linear = true, .theirs = {"proj_out", "final_layer.linear"}},
	{0},
};

/* config.json of diffusers */
static const struct vfm_foreign_key keys_diffusers1[] = {
	{"in_channels", VFM_FOREIGN_INPUTS, .off = 0},
	{"out_channels", VFM_FOREIGN_INT, .off = OFF(channels)},
	{"num_attention_heads", VFM_FOREIGN_INT, .off = OFF(heads)},
	{"attention_head_dim", VFM_FOREIGN_HEAD_DIM, .off = 0},
	{"num_layers", VFM_FOREIGN_DOUBLE, .off = OFF(layers)},
	{"num_single_layers", VFM_FOREIGN_COUNT, .off = OFF(single_layers)},
	{"num_refiner_layers", VFM_FOREIGN_INT, .off = OFF(refiner_layers)},
	{"mlp_ratio", VFM_FOREIGN_MLP_RATIO, .off = 0},
	{"patch_size", VFM_FOREIGN_ONE_OF, .values = "[2]"},
	{"patch_size_t", VFM_FOREIGN_ONE_OF, .values = "[1]"},
	{"qk_norm", VFM_FOREIGN_ONE_OF, .values = "[\"rms_norm\"]"},
	{"guidance_embeds", VFM_FOREIGN_FLAG, .off = OFF(guidance_dim)},
	{"text_embed_dim", VFM_FOREIGN_INT, .off = OFF(text_dim)},
	{"pooled_projection_dim", VFM_FOREIGN_INT, .off = OFF(text2_dim)},
	{"rope_theta", VFM_FOREIGN_NUM, .off = OFF(rope_theta)},
	{"rope_axes_dim", VFM_FOREIGN_INT3, .off = OFF(rope_axes)},
	{"image_condition_type", VFM_FOREIGN_ONE_OF, .values = "[null, \"token_replace\"]"},
	{0},
};

static const struct vfm_foreign foreign_hunyuan1 = {
	.n_layouts = 2,
	.layout =
		{
			{"diffusers", "context_embedder.time_text_embed.timestep_embedder.linear_1.weight",
				"HunyuanVideoTransformer3DModel", .keys = keys_diffusers1},
			{"original", "txt_in.t_embedder.mlp.0.weight", NULL, .keys = keys_diffusers1},
		},
	.rows = rows_hunyuan1,
	.head_dim = 128,
	.text_len = 256,
	.rope_theta = 256,
	.patch = {1, 2, 2},
	.fixed_patch = true,
	.objective = "flow",
};

static const char *const keys_hunyuan1[] = {"model.single_layers", "model.rope_axes", "model.refiner_layers",
	"model.text2_dim", "model.guidance_dim", NULL};

const struct vfm_arch vfm_arch_hunyuan1 = {
	.name = "hunyuan1",
	.n_attn = 1,
	.n_mod = 12,
	.joint = true,
	.text2_vector = true,
	.text = VFM_TEXT_REFINER,
	.keys = keys_hunyuan1,
	.presets = presets_hunyuan1,
	.foreign = &foreign_hunyuan1,
};
