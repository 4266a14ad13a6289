/* clip_vision_config.c - config.json and preprocessor_config.json of transformers.
 *
 * A key of the image processor is followed, or refused by name unless it is null.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "encoder/image/clip_vision_impl.h"
#include "io/json.h"

enum { VISION_DIM_MAX = 1 << 20, VISION_LAYERS_MAX = 1000, PILLOW_BICUBIC = 3 };
#define PREPROCESSOR_MAX ((size_t)1 << 20)

/* ---- the model ---- */

static int read_activation(struct vision_dims *d, const json_t *c, const char *where, struct vfm_err *err)
{
	const char *act = "quick_gelu";

	TRY(vfm_json_str(c, where, "hidden_act", false, &act, err));
	d->quick = !strcmp(act, "quick_gelu");
	if (!d->quick && strcmp(act, "gelu") != 0)
		return vfm_fail(
			err, VFM_EUSAGE, "%s.hidden_act: '%s' is not supported, only gelu and quick_gelu", where, act);
	return 0;
}

/* With the defaults of CLIPVisionConfig. */
static int read_vision_config(struct vision_dims *d, const json_t *c, const char *where, struct vfm_err *err)
{
	double eps = 1e-5;
	int64_t channels = 3;

	*d = (struct vision_dims){.image = 224, .patch = 32, .dim = 768, .heads = 12, .ffn = 3072, .layers = 12};
	TRY(vfm_json_i64(c, where, "image_size", false, 1, VISION_SIDE_MAX, &d->image, err));
	TRY(vfm_json_i64(c, where, "patch_size", false, 1, d->image, &d->patch, err));
	TRY(vfm_json_i64(c, where, "hidden_size", false, 1, VISION_DIM_MAX, &d->dim, err));
	TRY(vfm_json_i64(c, where, "num_attention_heads", false, 1, VISION_DIM_MAX, &d->heads, err));
	TRY(vfm_json_i64(c, where, "intermediate_size", false, 1, VISION_DIM_MAX, &d->ffn, err));
	TRY(vfm_json_i64(c, where, "num_hidden_layers", false, 1, VISION_LAYERS_MAX, &d->layers, err));
	TRY(vfm_json_i64(c, where, "num_channels", false, 1, VISION_DIM_MAX, &channels, err));
	if (channels != 3)
		return vfm_fail(
			err, VFM_EUSAGE, "%s.num_channels: expected 3, RGB, got %lld", where, (long long)channels);
	TRY(read_activation(d, c, where, err));
	TRY(vfm_json_f64(c, where, "layer_norm_eps", false, &eps, err));
	if (!(eps >= 0 && eps < 1))
		return vfm_fail(
			err, VFM_EUSAGE, "%s.layer_norm_eps: expected a number from 0 to 1, got %g", where, eps);
	d->eps = (float)eps;
	return 0;
}

int vision_dims_read(struct vision_dims *d, const json_t *config, const char *path, struct vfm_err *err)
{
	char *where = vfm_strfmt("%s: config.json", path), *inner = vfm_strfmt("%s.vision_config", where);
	const json_t *vision = json_object_get(config, "vision_config");
	const char *type = NULL;
	int rc;

	TRY_OUT(vfm_json_str(config, where, "model_type", true, &type, err));
	if (!strcmp(type, "clip_vision_model"))
		rc = read_vision_config(d, config, where, err);
	else if (strcmp(type, "clip") != 0)
		rc = vfm_fail(err, VFM_EUSAGE,
			"%s.model_type: '%s' is not the vision tower of CLIP (clip_vision_model, clip); Wan's is in "
			"image_encoder/ or models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth",
			where, type);
	else if (!json_is_object(vision))
		rc = vfm_fail(err, VFM_EUSAGE, "%s: expected an object", inner);
	else
		rc = read_vision_config(d, vision, inner, err);
out:
	free(where);
	free(inner);
	return rc;
}

/* ---- the image processor ---- */

static const struct vision_picture openai_picture = {
	.rescale = 1 / 255.0,
	.mean = {0.48145466f, 0.4578275f, 0.40821073f},
	.std = {0.26862954f, 0.26130258f, 0.27577711f},
};

struct vision_picture vision_picture_of_wan(int side)
{
	struct vision_picture p = openai_picture;

	p.side = side;
	return p;
}

/* Checks that the processor is CLIP's. */
static int check_processor(const json_t *o, const char *where, struct vfm_err *err)
{
	static const char *const keys[] = {"image_processor_type", "feature_extractor_type"};
	static const char *const names[] = {
		"CLIPImageProcessor", "CLIPImageProcessorFast", "CLIPImageProcessorPil", "CLIPFeatureExtractor", NULL};

	for (int i = 0; i < 2; i++) {
		const char *type = names[0];
		int k = 0;

		TRY(vfm_json_str(o, where, keys[i], false, &type, err));
		while (names[k] && strcmp(names[k], type) != 0)
			k++;
		if (!names[k])
			return vfm_fail(err, VFM_EUSAGE, "%s.%s: '%s' is not the image processor of CLIP", where,
				keys[i], type);
	}
	return 0;
}

/* Refuses a value of a switch, unless it is null. */
static int check_switch(const json_t *o, const char *where, const char *key, bool want, struct vfm_err *err)
{
	const json_t *v = json_object_get(o, key);

	if (!v || json_is_null(v) || (json_is_boolean(v) && json_is_true(v) == want))
		return 0;
	return vfm_fail(err, VFM_EUSAGE, "%s.%s: only %s is supported", where, key, want ? "true" : "false");
}

/* Reads N, {"shortest_edge": N} or {"height": N, "width": N}.  Sets *shortest (0: not that) or size, which keep their
 * values if the key is missing. */
static int read_picture_size(
	const json_t *o, const char *where, const char *key, int *shortest, int size[2], struct vfm_err *err)
{
	static const char *const edge[] = {"shortest_edge", NULL}, *const sides[] = {"height", "width", NULL};
	const json_t *v = json_object_get(o, key);
	char *at;
	int rc = 0;

	if (!json_is_object(v)) {
		int n = shortest && *shortest ? *shortest : size[0];

		TRY(vfm_json_i32(o, where, key, false, 1, VISION_SIDE_MAX, &n, err));
		if (shortest)
			*shortest = n;
		else
			size[0] = size[1] = n;
		return 0;
	}
	at = vfm_strfmt("%s.%s", where, key);
	if (shortest && json_object_get(v, edge[0])) {
		TRY_OUT(vfm_json_only_keys(v, at, edge, err));
		TRY_OUT(vfm_json_i32(v, at, edge[0], true, 1, VISION_SIDE_MAX, shortest, err));
	} else {
		TRY_OUT(vfm_json_only_keys(v, at, sides, err));
		TRY_OUT(vfm_json_i32(v, at, "height", true, 1, VISION_SIDE_MAX, &size[0], err));
		TRY_OUT(vfm_json_i32(v, at, "width", true, 1, VISION_SIDE_MAX, &size[1], err));
		if (shortest)
			*shortest = 0;
	}
out:
	free(at);
	return rc;
}

/* The result must be a square of the size of the model. */
static int read_sizes(struct vision_picture *p, int64_t image, const json_t *o, const char *where, struct vfm_err *err)
{
	int size[2] = {0}, crop[2] = {224, 224};
	const json_t *crop_key = json_object_get(o, "do_center_crop");
	const bool crops = !json_is_false(crop_key);
	const int *made;

	if (crop_key && !json_is_boolean(crop_key) && !json_is_null(crop_key))
		return vfm_fail(err, VFM_EUSAGE, "%s.do_center_crop: expected true or false", where);
	p->shortest = 224;
	TRY(read_picture_size(o, where, "size", &p->shortest, size, err));
	TRY(read_picture_size(o, where, "crop_size", NULL, crop, err));
	if (!crops && p->shortest)
		return vfm_fail(err, VFM_EUSAGE,
			"%s.do_center_crop: false, and size has a shortest_edge: the pictures would not be square",
			where);
	made = crops ? crop : size;
	if (made[0] != image || made[1] != image)
		return vfm_fail(err, VFM_EUSAGE, "%s.%s: %d x %d, but image_size of the model is %lld", where,
			crops ? "crop_size" : "size", made[1], made[0], (long long)image);
	if (p->shortest ? p->shortest < image : size[0] != image || size[1] != image)
		return vfm_fail(err, VFM_EUSAGE,
			"%s.size: expected a shortest_edge of at least %lld, as crop_size, or that height and width",
			where, (long long)image);
	p->side = (int)image;
	return 0;
}

/* Reads three numbers; keeps those of *x if the key is missing. */
static int read_colours(
	const json_t *o, const char *where, const char *key, bool positive, float x[3], struct vfm_err *err)
{
	const json_t *a = json_object_get(o, key);

	if (!a || json_is_null(a))
		return 0;
	if (!json_is_array(a) || json_array_size(a) != 3)
		return vfm_fail(err, VFM_EUSAGE, "%s.%s: expected 3 numbers", where, key);
	for (size_t i = 0; i < 3; i++) {
		const json_t *v = json_array_get(a, i);

		x[i] = (float)json_number_value(v);
		if (!json_is_number(v) || !isfinite(x[i]) || (positive && !(x[i] > 0)))
			return vfm_fail(err, VFM_EUSAGE, "%s.%s[%zu]: expected a %snumber", where, key, i,
				positive ? "positive " : "");
	}
	return 0;
}

/* Refuses the keys that this reader does not use, unless they are null. */
static int check_processor_keys(const json_t *o, const char *where, struct vfm_err *err)
{
	static const char *const keys[] = {"crop_size", "data_format", "default_to_square", "do_center_crop",
		"do_convert_rgb", "do_normalize", "do_pad", "do_rescale", "do_resize", "feature_extractor_type",
		"image_mean", "image_processor_type", "image_std", "processor_class", "resample", "rescale_factor",
		"size", "use_square_size", NULL};
	json_t *set = json_object();
	const char *key;
	json_t *v;
	int rc;

	json_object_foreach((json_t *)o, key, v) if (!json_is_null(v)) json_object_set(set, key, v);
	rc = vfm_json_only_keys(set, where, keys, err);
	json_decref(set);
	return rc;
}

static int read_processor(
	struct vision_picture *p, int64_t image, const json_t *o, const char *where, struct vfm_err *err)
{
	static const struct {
		const char *key;
		bool want;
	} switches[] = {{"do_resize", true}, {"do_rescale", true}, {"do_normalize", true}, {"do_pad", false},
		{"default_to_square", false}, {"use_square_size", false}};
	int resample = PILLOW_BICUBIC;

	*p = openai_picture;
	p->pillow = true;
	if (!json_is_object(o))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", where);
	TRY(check_processor(o, where, err));
	TRY(check_processor_keys(o, where, err));
	for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++)
		TRY(check_switch(o, where, switches[i].key, switches[i].want, err));
	TRY(vfm_json_i32(o, where, "resample", false, 0, INT32_MAX, &resample, err));
	if (resample != PILLOW_BICUBIC)
		return vfm_fail(err, VFM_EUSAGE, "%s.resample: only 3, bicubic, is supported, got %d", where, resample);
	TRY(vfm_json_f64(o, where, "rescale_factor", false, &p->rescale, err));
	if (!(p->rescale > 0 && isfinite(p->rescale)))
		return vfm_fail(err, VFM_EUSAGE, "%s.rescale_factor: expected a positive number", where);
	TRY(read_colours(o, where, "image_mean", false, p->mean, err));
	TRY(read_colours(o, where, "image_std", true, p->std, err));
	return read_sizes(p, image, o, where, err);
}

int vision_picture_read(struct vision_picture *p, int64_t image, const char *path, struct vfm_err *err)
{
	json_t *o = vfm_json_load_regular(path, PREPROCESSOR_MAX, err);
	int rc = o ? read_processor(p, image, o, path, err) : err ? err->code : VFM_EUSAGE;

	json_decref(o);
	return rc;
}
