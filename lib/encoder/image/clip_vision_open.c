/* clip_vision_open.c - the files of a vision tower: its dimensions, and the names and shapes of its tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "encoder/image/clip_vision_impl.h"
#include "io/file.h"

enum { HEAD_MAX = 128, WAN_HEAD = 80, WAN_LAYERS_MAX = 1000 };
#define WAN_CLIP "models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth"

/* The names of transformers, and those of Wan's release. */
struct vision_names {
	const char *patch, *class, *position, *norm, *last_norm, *block;
	const char *layer[VISION_LAYERS][VISION_STACK];
	const char *others[6]; /* beginnings of names of tensors that the rows do not depend on */
};
static const struct vision_names names_transformers = {
	.patch = "embeddings.patch_embedding.weight",
	.class = "embeddings.class_embedding",
	.position = "embeddings.position_embedding.weight",
	.norm = "pre_layrnorm",
	.last_norm = "post_layernorm",
	.block = "encoder.layers",
	.layer = {[VISION_NORM1] = {"layer_norm1"},
		[VISION_QKV] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
		[VISION_OUT] = {"self_attn.out_proj"},
		[VISION_NORM2] = {"layer_norm2"},
		[VISION_UP] = {"mlp.fc1"},
		[VISION_DOWN] = {"mlp.fc2"}},
	.others = {"vision_model.embeddings.position_ids", "visual_projection.weight", "text_model.",
		"text_projection.weight", "logit_scale"},
};
static const struct vision_names names_wan = {
	.patch = "patch_embedding.weight",
	.class = "cls_embedding",
	.position = "pos_embedding",
	.norm = "pre_norm",
	.last_norm = "post_norm",
	.block = "transformer",
	.layer = {[VISION_NORM1] = {"norm1"},
		[VISION_QKV] = {"attn.to_qkv"},
		[VISION_OUT] = {"attn.proj"},
		[VISION_NORM2] = {"norm2"},
		[VISION_UP] = {"mlp.0"},
		[VISION_DOWN] = {"mlp.2"}},
	.others = {"visual.head", "textual.", "log_scale"},
};

/* ---- dimensions ---- */

/* The release has no configuration: its program has the activation, eps and heads of the one model that it opens. */
static void dims_of_wan(struct vision_dims *d, const struct vfm_weights *w)
{
	const struct vfm_weight *patch = vfm_weights_find(w, "visual.patch_embedding.weight"),
				*position = vfm_weights_find(w, "visual.pos_embedding"),
				*up = vfm_weights_find(w, "visual.transformer.0.mlp.0.weight");
	char name[64];

	*d = (struct vision_dims){.eps = 1e-5f};
	if (patch && patch->ndim == 4)
		d->dim = patch->shape[0], d->patch = patch->shape[2];
	if (position && position->ndim == 3)
		while ((d->grid + 1) * (d->grid + 1) < position->shape[1] && d->grid <= VISION_SIDE_MAX)
			d->grid++;
	if (up && up->ndim == 2)
		d->ffn = up->shape[0];
	do
		snprintf(name, sizeof(name), "visual.transformer.%lld.norm1.weight", (long long)d->layers);
	while (vfm_weights_has(w, name) && d->layers++ < WAN_LAYERS_MAX);
	d->heads = d->dim / WAN_HEAD;
	d->image = d->grid * d->patch;
}

static int check_vision_dims(struct vision_dims *d, const char *path, struct vfm_err *err)
{
	if (d->dim < 1 || d->ffn < 1 || d->layers < 1 || d->patch < 1 || d->image < 1)
		return vfm_fail(err, VFM_EUSAGE, "%s: not the vision tower of Wan's release: %s is missing or empty",
			path,
			d->dim < 1 || d->patch < 1 ? "visual.patch_embedding.weight"
				: d->image < 1     ? "visual.pos_embedding"
						   : "visual.transformer.0");
	if (d->image > VISION_SIDE_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%s: pictures of %lld pixels a side; at most %d are supported", path,
			(long long)d->image, VISION_SIDE_MAX);
	if (d->heads < 1 || d->dim % d->heads || d->dim / d->heads > HEAD_MAX || d->dim / d->heads % 8)
		return vfm_fail(err, VFM_EUSAGE,
			"%s: %lld heads in a width of %lld: a head is a multiple of 8 up to %d", path,
			(long long)d->heads, (long long)d->dim, HEAD_MAX);
	d->grid = d->image / d->patch;
	d->rows = 1 + d->grid * d->grid;
	return 0;
}

/* ---- tensors ---- */

/* Requests PREFIX.weight and PREFIX.bias, of `out` rows and `in` columns; in 0: of a norm. */
static void want_vision_layer(
	struct vfm_clip_vision *v, struct vision_layer *l, int i, const char *prefix, int64_t out, int64_t in)
{
	const int64_t shape[] = {out, in};

	l->weight_from[i] = vfm_weights_want(v->weights, in ? 2 : 1, shape, "%s.weight", prefix);
	l->bias_from[i] = vfm_weights_want(v->weights, 1, shape, "%s.bias", prefix);
}

static void want_vision_block(
	struct vfm_clip_vision *v, struct vision_block *b, const char *prefix, const struct vision_names *n, int64_t at)
{
	const struct vision_dims *d = &v->d;
	const int64_t shape[VISION_LAYERS][2] = {[VISION_NORM1] = {d->dim, 0},
		[VISION_QKV] = {3 * d->dim, d->dim},
		[VISION_OUT] = {d->dim, d->dim},
		[VISION_NORM2] = {d->dim, 0},
		[VISION_UP] = {d->ffn, d->dim},
		[VISION_DOWN] = {d->dim, d->ffn}};

	for (int k = 0; k < VISION_LAYERS; k++) {
		const char *const *names = n->layer[k];
		const int parts = names[1] ? VISION_STACK : 1;

		for (int i = 0; i < parts; i++) {
			char *name = vfm_strfmt("%s%s.%lld.%s", prefix, n->block, (long long)at, names[i]);

			want_vision_layer(v, &b->layer[k], i, name, shape[k][0] / parts, shape[k][1]);
			free(name);
		}
	}
}

static int want_tower(struct vfm_clip_vision *v, const char *prefix, const struct vision_names *n, struct vfm_err *err)
{
	const struct vision_dims *d = &v->d;
	const bool wan = n == &names_wan; /* its embeddings have dimensions of 1 in front */
	const int64_t one[] = {1, 1, d->dim}, rows[] = {1, d->rows, d->dim};
	struct vision_layer last = {{0}};
	char *norm = vfm_strfmt("%s%s", prefix, n->norm), *last_norm = vfm_strfmt("%s%s", prefix, n->last_norm),
	     what[96];

	v->block = vfm_calloc((size_t)d->layers, sizeof(*v->block));
	v->patch_from =
		vfm_weights_want(v->weights, 4, (int64_t[]){d->dim, 3, d->patch, d->patch}, "%s%s", prefix, n->patch);
	v->class_from = vfm_weights_want(v->weights, wan ? 3 : 1, one + (wan ? 0 : 2), "%s%s", prefix, n->class);
	v->position_from = vfm_weights_want(v->weights, wan ? 3 : 2, rows + (wan ? 0 : 1), "%s%s", prefix, n->position);
	want_vision_layer(v, &v->norm, 0, norm, d->dim, 0);
	want_vision_layer(v, &last, 0, last_norm, d->dim, 0);
	free(norm);
	free(last_norm);
	for (int64_t i = 0; i < d->layers; i++)
		want_vision_block(v, &v->block[i], prefix, n, i);
	for (int i = 0; n->others[i]; i++)
		vfm_weights_ignore(v->weights, n->others[i]);
	snprintf(what, sizeof(what), "a vision tower of CLIP with %lld blocks of width %lld", (long long)d->layers,
		(long long)d->dim);
	return vfm_weights_check(v->weights, what, err);
}

/* ---- files ---- */

static int open_processor(struct vfm_clip_vision *v, const char *path, struct vfm_err *err)
{
	static const char *const places[] = {
		"preprocessor_config.json", "../image_processor/preprocessor_config.json", NULL};
	char *found = vfm_first_in(path, places);
	int rc;

	if (!found)
		return vfm_fail(err, VFM_EUSAGE,
			"%s: no preprocessor_config.json there or in image_processor/ next to it", path);
	rc = vision_picture_read(&v->picture, v->d.image, found, err);
	free(found);
	return rc;
}

/* Opens a folder of transformers. */
static int open_transformers(struct vfm_clip_vision *v, const char *path, struct vfm_err *err)
{
	const json_t *config = vfm_weights_config(v->weights);
	const char *prefix = "vision_model.";
	struct stat st;
	char *folder;
	int rc;

	if (!config)
		return vfm_fail(err, VFM_EUSAGE,
			"%s: not a vision tower of CLIP: it has no config.json of transformers, and no tensor "
			"visual.cls_embedding as Wan's release",
			path);
	TRY(vision_dims_read(&v->d, config, path, err));
	TRY(check_vision_dims(&v->d, path, err));
	if (vfm_weights_has(v->weights, names_transformers.class)) /* transformers 5 */
		prefix = "";
	TRY(want_tower(v, prefix, &names_transformers, err));
	folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? vfm_strdup(path) : vfm_dir_of(path);
	rc = open_processor(v, folder, err);
	free(folder);
	return rc;
}

int vision_open_files(struct vfm_clip_vision *v, const char *path, struct vfm_err *err)
{
	static const char *const names[] = {"image_encoder", WAN_CLIP, NULL};
	char *within = vfm_weights_within(path, names);
	int rc;

	TRY_OUT(vfm_weights_open(&v->weights, within, err));
	if (!vfm_weights_has(v->weights, "visual.cls_embedding")) {
		rc = open_transformers(v, within, err);
		goto out;
	}
	dims_of_wan(&v->d, v->weights);
	TRY_OUT(check_vision_dims(&v->d, within, err));
	v->picture = vision_picture_of_wan((int)v->d.image);
	rc = want_tower(v, "visual.", &names_wan, err);
out:
	free(within);
	return rc;
}
