/* vae_wan.c - names of tensors in Wan's releases, and the mean and deviation of its latents. */
#include <stdio.h>
#include <string.h>

#include "encoder/vae/vae_impl.h"

/* ---- names of tensors ---- */

static const char *const part_names[VAE_PARTS] = {"encoder", "decoder"};

/* By enum vae_tensor: in diffusers, and in Wan's releases.  "": only the name of the block. */
static const char *const tensor_names[][2] = {
	[VAE_CONV_IN] = {"conv_in", "conv1"},
	[VAE_NORM_OUT] = {"norm_out.gamma", "head.0.gamma"},
	[VAE_CONV_OUT] = {"conv_out", "head.2"},
	[VAE_NORM1] = {"norm1.gamma", "residual.0.gamma"},
	[VAE_CONV1] = {"conv1", "residual.2"},
	[VAE_NORM2] = {"norm2.gamma", "residual.3.gamma"},
	[VAE_CONV2] = {"conv2", "residual.6"},
	[VAE_SHORTCUT] = {"conv_shortcut", "shortcut"},
	[VAE_ATTN_NORM] = {"norm.gamma", "norm.gamma"},
	[VAE_ATTN_QKV] = {"to_qkv", "to_qkv"},
	[VAE_ATTN_PROJ] = {"proj", "proj"},
	[VAE_RESAMPLE] = {"resample.1", "resample.1"},
	[VAE_TIME_CONV] = {"time_conv", "time_conv"},
};
static const char *const quant_names[VAE_PARTS][2] = {{"quant_conv", "conv1"}, {"post_quant_conv", "conv2"}};

/* Writes the name of a block in the releases: one list for all levels, or with shortcuts one for each level. */
static void name_release_block(char *s, const struct vae_config *c, const struct vae_place *p)
{
	const char *list = p->part == VAE_ENCODER ? "downsamples" : "upsamples";
	const int per_level = c->num_res_blocks + (p->part == VAE_ENCODER ? 1 : 2);

	if (c->wan.residual)
		snprintf(s, VAE_NAME, "%s.%d.%s.%d", list, p->level, list, p->index);
	else
		snprintf(s, VAE_NAME, "%s.%d", list, p->level * per_level + p->index);
}

static void name_diffusers_block(char *s, const struct vae_config *c, const struct vae_place *p, bool resample)
{
	if (p->part == VAE_ENCODER && !c->wan.residual)
		snprintf(s, VAE_NAME, "down_blocks.%d", p->level * (c->num_res_blocks + 1) + p->index);
	else if (p->part == VAE_ENCODER && resample)
		snprintf(s, VAE_NAME, "down_blocks.%d.downsampler", p->level);
	else if (p->part == VAE_ENCODER)
		snprintf(s, VAE_NAME, "down_blocks.%d.resnets.%d", p->level, p->index);
	else if (resample)
		snprintf(s, VAE_NAME, "up_blocks.%d.upsampler%s", p->level, c->wan.residual ? "" : "s.0");
	else
		snprintf(s, VAE_NAME, "up_blocks.%d.resnets.%d", p->level, p->index);
}

void vae_name(char name[VAE_NAME], const struct vae_config *c, const struct vae_place *p, enum vae_tensor t)
{
	const bool resample = t == VAE_RESAMPLE || t == VAE_TIME_CONV;
	const bool attn = t == VAE_ATTN_NORM || t == VAE_ATTN_QKV || t == VAE_ATTN_PROJ;
	char block[VAE_NAME];

	if (t == VAE_QUANT) {
		snprintf(name, VAE_NAME, "%s", quant_names[p->part][c->wan.original]);
		return;
	}
	if (t == VAE_CONV_IN || t == VAE_NORM_OUT || t == VAE_CONV_OUT) {
		snprintf(name, VAE_NAME, "%s.%s", part_names[p->part], tensor_names[t][c->wan.original]);
		return;
	}
	if (p->mid && c->wan.original) /* the attention stands between the blocks 0 and 2 */
		snprintf(block, sizeof(block), "middle.%d", attn ? 1 : 2 * p->index);
	else if (p->mid)
		snprintf(block, sizeof(block), "mid_block.%s.%d", attn ? "attentions" : "resnets", p->index);
	else if (c->wan.original)
		name_release_block(block, c, p);
	else
		name_diffusers_block(block, c, p, resample);
	snprintf(name, VAE_NAME, "%s.%.60s.%s", part_names[p->part], block, tensor_names[t][c->wan.original]);
}

/* ---- mean and standard deviation of latents, from the code of the releases ---- */

static const struct {
	int z_dim;
	float mean[48], std[48];
} releases[] = {
	{16,
		{-0.7571f, -0.7089f, -0.9113f, 0.1075f, -0.1745f, 0.9653f, -0.1517f, 1.5508f, 0.4134f, -0.0715f,
			0.5517f, -0.3632f, -0.1922f, -0.9497f, 0.2503f, -0.2921f},
		{2.8184f, 1.4541f, 2.3275f, 2.6558f, 1.2196f, 1.7708f, 2.6052f, 2.0743f, 3.2687f, 2.1526f, 2.8652f,
			1.5579f, 1.6382f, 1.1253f, 2.8251f, 1.9160f}},
	{48,
		{-0.2289f, -0.0052f, -0.1323f, -0.2339f, -0.2799f, 0.0174f, 0.1838f, 0.1557f, -0.1382f, 0.0542f,
			0.2813f, 0.0891f, 0.1570f, -0.0098f, 0.0375f, -0.1825f, -0.2246f, -0.1207f, -0.0698f, 0.5109f,
			0.2665f, -0.2108f, -0.2158f, 0.2502f, -0.2055f, -0.0322f, 0.1109f, 0.1567f, -0.0729f, 0.0899f,
			-0.2799f, -0.1230f, -0.0313f, -0.1649f, 0.0117f, 0.0723f, -0.2839f, -0.2083f, -0.0520f, 0.3748f,
			0.0152f, 0.1957f, 0.1433f, -0.2944f, 0.3573f, -0.0548f, -0.1681f, -0.0667f},
		{0.4765f, 1.0364f, 0.4514f, 1.1677f, 0.5313f, 0.4990f, 0.4818f, 0.5013f, 0.8158f, 1.0344f, 0.5894f,
			1.0901f, 0.6885f, 0.6165f, 0.8454f, 0.4978f, 0.5759f, 0.3523f, 0.7135f, 0.6804f, 0.5833f,
			1.4146f, 0.8986f, 0.5659f, 0.7069f, 0.5338f, 0.4889f, 0.4917f, 0.4069f, 0.4999f, 0.6866f,
			0.4093f, 0.5709f, 0.6065f, 0.6415f, 0.4944f, 0.5726f, 1.2042f, 0.5458f, 1.6887f, 0.3971f,
			1.0600f, 0.3943f, 0.5537f, 0.5444f, 0.4089f, 0.7468f, 0.7744f}},
};

bool vae_release_scaling(struct vae_config *c)
{
	for (size_t i = 0; i < sizeof(releases) / sizeof(releases[0]); i++)
		if (releases[i].z_dim == c->z_dim) {
			memcpy(c->mean, releases[i].mean, (size_t)c->z_dim * sizeof(float));
			memcpy(c->std, releases[i].std, (size_t)c->z_dim * sizeof(float));
			return true;
		}
	return false;
}
