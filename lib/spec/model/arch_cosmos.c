/* cosmos: Cosmos-Predict 2 and 2.5 (arXiv 2511.00062): adaLN-LoRA for each attention, the MLP and the head, a gated
 * cross-attention that reads the text as it is, no biases, RoPE with a longer range, a mask of given frames. */
#include <stddef.h>

#include "spec/model/foreign.h"

#define COSMOS_2B  .layers = 28, .hidden = 2048, .heads = 16, .adaln_lora = 256
#define COSMOS_14B .layers = 36, .hidden = 5120, .heads = 40, .adaln_lora = 256

static const struct vfm_preset presets_cosmos[] = {
	{"cosmos2-t2i-2b", COSMOS_2B, .mask_channels = 1, .rope_scale = {1, 4, 4}},
	{"cosmos2-t2i-14b", COSMOS_14B, .mask_channels = 1, .rope_scale = {1, 4, 4}},
	{"cosmos2-2b", COSMOS_2B, .rope_scale = {1, 3, 3}},
	{"cosmos2-14b", COSMOS_14B, .rope_scale = {20.0 / 24, 2, 2}},
	{"cosmos2.5-2b", COSMOS_2B, .text_dim = 100352, .text_proj = 1024, .rope_scale = {1, 3, 3}},
	{"cosmos2.5-14b", COSMOS_14B, .text_dim = 100352, .text_proj = 1024, .rope_scale = {1, 3, 3}},
	{0},
};

/* Names of the tensors in diffusers' CosmosTransformer3DModel, and in the original release (nvidia-cosmos). */
static const struct vfm_foreign_row rows_cosmos[] = {
	{"patch", "D,P", .linear = true, .no_bias = true, .theirs = {"patch_embed.proj", "x_embedder.proj.1"}},
	{"t_mlp.0", "D,D", .linear = true, .no_bias = true,
		.theirs = {"time_embed.t_embedder.linear_1", "t_embedder.1.linear_1"}},
	{"t_mlp.2", "3D,D", .linear = true, .no_bias = true,
		.theirs = {"time_embed.t_embedder.linear_2", "t_embedder.1.linear_2"}},
	{"t_norm.weight", "D", .theirs = {"time_embed.norm.weight", "t_embedding_norm.weight"}},
	{"ctx_proj", "K,E", .linear = true, .needs = 'K', .optional = true,
		.theirs = {"crossattn_proj.0", "crossattn_proj.0"}},
	{"blocks.%d.ada_a", "3R,D", .linear = true, .no_bias = true,
		.theirs = {"transformer_blocks.%d.norm1.linear_1|transformer_blocks.%d.norm2.linear_1|"
			   "transformer_blocks.%d.norm3.linear_1",
			"blocks.%d.adaln_modulation_self_attn.1|blocks.%d.adaln_modulation_cross_attn.1|"
			"blocks.%d.adaln_modulation_mlp.1"}},
	{"blocks.%d.ada_b.0", "3D,R", .linear = true, .no_bias = true,
		.theirs = {"transformer_blocks.%d.norm1.linear_2", "blocks.%d.adaln_modulation_self_attn.2"}},
	{"blocks.%d.ada_b.1", "3D,R", .linear = true, .no_bias = true,
		.theirs = {"transformer_blocks.%d.norm2.linear_2", "blocks.%d.adaln_modulation_cross_attn.2"}},
	{"blocks.%d.ada_b.2", "3D,R", .linear = true, .no_bias = true,
		.theirs = {"transformer_blocks.%d.norm3.linear_2", "blocks.%d.adaln_modulation_mlp.2"}},
	{"blocks.%d.attn.qkv", "3D,D", .linear = true, .no_bias = true, .rope_halves = 2, .parts = 3,
		.theirs = {"transformer_blocks.%d.attn1.to_q|transformer_blocks.%d.attn1.to_k|"
			   "transformer_blocks.%d.attn1.to_v",
			"blocks.%d.self_attn.q_proj|blocks.%d.self_attn.k_proj|blocks.%d.self_attn.v_proj"}},
	{"blocks.%d.attn.qn.weight", "H", .rope_halves = 1, .parts = 1,
		.theirs = {"transformer_blocks.%d.attn1.norm_q.weight", "blocks.%d.self_attn.q_norm.weight"}},
	{"blocks.%d.attn.kn.weight", "H", .rope_halves = 1, .parts = 1,
		.theirs = {"transformer_blocks.%d.attn1.norm_k.weight", "blocks.%d.self_attn.k_norm.weight"}},
	{"blocks.%d.attn.proj", "D,D", .linear = true, .no_bias = true,
		.theirs = {"transformer_blocks.%d.attn1.to_out.0", "blocks.%d.self_attn.output_proj"}},
	{"blocks.%d.cross.q", "D,D", .linear = true, .no_bias = true,
		.theirs = {"transformer_blocks.%d.attn2.to_q", "blocks.%d.cross_attn.q_proj"}},
	{"blocks.%d.cross.kv", "2D,Y", .linear = true, .no_bias = true,
		.theirs = {"transformer_blocks.%d.attn2.to_k|transformer_blocks.%d.attn2.to_v",
			"blocks.%d.cross_attn.k_proj|blocks.%d.cross_attn.v_proj"}},
	{"blocks.%d.cross.qn.weight", "H",
		.theirs = {"transformer_blocks.%d.attn2.norm_q.weight", "blocks.%d.cross_attn.q_norm.weight"}},
	{"blocks.%d.cross.kn.weight", "H",
		.theirs = {"transformer_blocks.%d.attn2.norm_k.weight", "blocks.%d.cross_attn.k_norm.weight"}},
	{"blocks.%d.cross.proj", "D,D", .linear = true, .no_bias = true,
		.theirs = {"transformer_blocks.%d.attn2.to_out.0", "blocks.%d.cross_attn.output_proj"}},
	{"blocks.%d.fc1", "M,D", .linear = true, .no_bias = true,
		.theirs = {"transformer_blocks.%d.ff.net.0.proj", "blocks.%d.mlp.layer1"}},
	{"blocks.%d.fc2", "D,M", .linear = true, .no_bias = true,
		.theirs = {"transformer_blocks.%d.ff.net.2", "blocks.%d.mlp.layer2"}},
	{"ada_a", "R,D", .linear = true, .no_bias = true,
		.theirs = {"norm_out.linear_1", "final_layer.adaln_modulation.1"}},
	{"ada_b", "2D,R", .linear = true, .no_bias = true,
		.theirs = {"norm_out.linear_2", "final_layer.adaln_modulation.2"}},
	{"out", "F,D", .linear = true, .no_bias = true, .channels_last = true,
		.theirs = {"proj_out", "final_layer.linear"}},
	{0},
};

#define OFF(f) offsetof(struct vfm_model_spec, f)

/* config.json of diffusers */
static const struct vfm_foreign_key keys_diffusers[] = {
	{"in_channels", VFM_FOREIGN_INPUTS, .off = 1}, /* all but the padding mask */
	{"out_channels", VFM_FOREIGN_INT, .off = OFF(channels)},
	{"num_attention_heads", VFM_FOREIGN_INT, .off = OFF(heads)},
	{"attention_head_dim", VFM_FOREIGN_HEAD_DIM, .off = 0},
	{"num_layers", VFM_FOREIGN_INT, .off = OFF(layers)},
	{"mlp_ratio", VFM_FOREIGN_MLP_RATIO, .off = 0},
	{"text_embed_dim", VFM_FOREIGN_CONTEXT, .off = 0},
	{"adaln_lora_dim", VFM_FOREIGN_INT, .off = OFF(adaln_lora)},
	{"max_size", VFM_FOREIGN_ANY, .values = "[128, 240, 240]"},
	{"patch_size", VFM_FOREIGN_ONE_OF, .values = "[[1, 2, 2]]"},
	{"rope_scale", VFM_FOREIGN_NUM3, .off = OFF(rope_scale)},
	{"concat_padding_mask", VFM_FOREIGN_ONE_OF, .values = "[true]"},
	{"extra_pos_embed_type", VFM_FOREIGN_ONE_OF, .values = "[null]"},
	{"use_crossattn_projection", VFM_FOREIGN_FLAG, .off = OFF(text_proj)},
	/* The shapes of the projection give these two; without one, diffusers writes 1024. */
	{"crossattn_proj_in_channels", VFM_FOREIGN_ANY, .values = "1024"},
	{"crossattn_proj_in_channels", VFM_FOREIGN_INT, .off = OFF(text_dim), .needs = 'K'},
	{"encoder_hidden_states_channels", VFM_FOREIGN_ANY, .values = "1024"},
	{"encoder_hidden_states_channels", VFM_FOREIGN_INT, .off = OFF(text_proj), .needs = 'K'},
	{"controlnet_block_every_n", VFM_FOREIGN_ONE_OF, .values = "[null]"},
	{"img_context_dim_in", VFM_FOREIGN_ONE_OF, .values = "[null]"},
	{"img_context_num_tokens", VFM_FOREIGN_ANY, .values = "256"},
	{"img_context_dim_out", VFM_FOREIGN_ANY, .values = "2048"},
	{0},
};

static const struct vfm_foreign foreign_cosmos = {
	.n_layouts = 2,
	.layout =
		{
			{"diffusers", "time_embed.t_embedder.linear_1.weight|patch_embed.proj.weight",
				"CosmosTransformer3DModel", .keys = keys_diffusers},
			{"original", "t_embedder.1.linear_1.weight|x_embedder.proj.1.weight",
				.ignored = "accum_*,pos_embedder.*", .keys = keys_diffusers},
		},
	.rows = rows_cosmos,
	.head_dim = 128,
	.text_len = 512,
	.text_pad = true,
	.patch = {1, 2, 2},
	.fixed_patch = true,
	.objective = "flow",
};

static const char *const keys_cosmos[] = {
	"model.mask_channels", "model.text_proj", "model.rope_scale", "model.rope_fps", NULL};

const struct vfm_arch vfm_arch_cosmos = {
	.name = "cosmos",
	.n_attn = 1,
	.n_mod = 9,
	.mod = VFM_MOD_LOW_RANK,
	.mlp = VFM_MLP_GELU_EXACT,
	.no_bias = true,
	.no_bias_ends = true,
	.cross_mod = true,
	.qk_eps = 1e-5,
	.rope_fps = 24,
	.text = VFM_TEXT_ROWS,
	.given = VFM_GIVEN_MASK,
	.time_scale = 1,
	.given_time = 1e-4,
	.keys = keys_cosmos,
	.presets = presets_cosmos,
	.foreign = &foreign_cosmos,
};
