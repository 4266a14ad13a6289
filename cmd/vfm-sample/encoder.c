/* The encoders of vfm-sample: tokenizer, text and image encoder, and the sizes that follow from them. */
#include <stdlib.h>
#include <string.h>

#include "encoder/vae/wavelet.h"
#include "io/file.h"
#include "io/json.h"
#include "sample.h"

enum { DEFAULT_FRAMES = 16, DEFAULT_SIDE = 128 };

/* Compares an encoder with the encoder of the training data. */
static int check_encoder(struct sample_job *j, const struct vfm_ckpt *c, enum vfm_encoder_kind e,
	struct vfm_encoder_ids *trained, const struct vfm_encoder_id *used, struct vfm_err *err)
{
	const struct vfm_encoder_id *expected = &trained->of[e];
	enum vfm_encoder_id_relation rel = vfm_encoder_id_compare(expected, used);
	static const char *const options[VFM_ENCODER_KINDS] = {[VFM_ENCODER_TOKENIZER] = "--vae",
		[VFM_ENCODER_TEXT] = "--text-encoder",
		[VFM_ENCODER_IMAGE] = "--image-encoder"};
	char was[VFM_ENCODER_ID_LABEL], is[VFM_ENCODER_ID_LABEL];
	json_t *entries;

	vfm_encoder_id_label_pair(expected, used, was, is);
	if (rel == VFM_ENCODER_ID_UNKNOWN && j->x->job.world->rank == 0)
		vfm_warn("%s does not name the %s of its data; '%s' is used", c->path, vfm_encoder_kinds[e].name, is);
	if (rel != VFM_ENCODER_ID_DIFFERENT)
		return 0;
	if (!j->o->net.force)
		return vfm_fail(err, VFM_EUSAGE,
			"%s was trained on data of the %s '%s', but '%s' would be used: name the former with %s, "
			"or give --force",
			c->path, vfm_encoder_kinds[e].name, was, is, options[e]);
	if (j->x->job.world->rank == 0)
		vfm_warn("%s was trained on data of the %s '%s'; '%s' is used", c->path, vfm_encoder_kinds[e].name, was,
			is);
	entries = json_array();
	json_array_append_new(entries, vfm_forced_entry("vfm-sample", e, c->path, expected, used));
	vfm_forced_add(&j->forced, entries);
	json_decref(entries);
	return 0;
}

/* Which encoders this request uses: .npy output needs no decoder unless it encodes a picture, the null text needs no
 * text encoder. */
static void find_needs(const struct sample_job *j, bool *decodes, bool *encodes)
{
	*decodes = j->o->image;
	*encodes = false;
	for (size_t i = 0; i < j->items.n; i++) {
		*decodes = *decodes || !vfm_name_ends(j->items.v[i].path, ".npy");
		*encodes = *encodes || *j->items.v[i].caption ||
			(*j->items.v[i].negative && vfm_sampler_is_guided(&j->o->sampler));
	}
	*encodes = *encodes && (j->net.c.model.cross_attention || j->net.c.model.pooled_text);
}

/* Compares the rows of the image encoder with those that the model reads. */
static int check_image_rows(const struct sample_job *j, struct vfm_err *err)
{
	const struct vfm_encoder_id *image = &j->encoders.image.id;
	const struct vfm_model_spec *m = &j->net.c.model;

	if (image->rows == m->image_len && image->dim == m->image_dim)
		return 0;
	return vfm_fail(err, VFM_EUSAGE,
		"%s: '%s' makes image rows [%d, %d] of %s, but model.image_len and model.image_dim are %lld and %lld",
		vfm_encoder_image_option(&j->o->encoder), image->name, image->rows, image->dim,
		j->o->last_image ? "--image and --last-image" : "--image", (long long)m->image_len,
		(long long)m->image_dim);
}

/* Compares what the encoders make with what the model reads. */
static int check_widths(const struct sample_job *j, struct vfm_err *err)
{
	const struct vfm_encoder_id *video = &j->encoders.video.id, *text = &j->encoders.text.id;
	const struct vfm_model_spec *m = &j->net.c.model;

	if (vfm_geometry_is_known(&video->geometry) && video->geometry.channels != m->channels)
		return vfm_fail(err, VFM_EUSAGE, "the decoder '%s' has %d channels, the model %lld", video->name,
			video->geometry.channels, (long long)m->channels);
	if (text->dim && text->dim != m->text_dim)
		return vfm_fail(err, VFM_EUSAGE, "the text encoder '%s' has rows of width %d, the model reads %lld",
			text->name, text->dim, (long long)m->text_dim);
	return j->encoders.image.ops ? check_image_rows(j, err) : 0;
}

/* The built-in tokenizer with the model's channels. */
static const char *default_tokenizer(const struct sample_job *j, char spec[32])
{
	snprintf(spec, 32, "wavelet:%lld", (long long)j->net.c.model.channels);
	return spec;
}

/* With a GPU the text encoder leaves the memory to the network. */
int open_sample_encoders(struct sample_job *j, struct vfm_err *err)
{
	struct vfm_encoder_opts o = j->o->encoder;
	char tokenizer[32], text[32];
	bool decodes, encodes;

	find_needs(j, &decodes, &encodes);
	snprintf(text, sizeof(text), "bytes:%lld", (long long)j->net.c.model.text_dim);
	if (decodes && !o.exec && !o.vae && !o.tokenizer)
		o.tokenizer = default_tokenizer(j, tokenizer);
	if (!encodes)
		o.text_encoder = o.text_exec = NULL;
	else if (!o.text_encoder && !o.text_exec)
		o.text = text;
	if (!j->net.leader)
		o.vae = o.text_encoder = o.image_encoder = o.exec = o.text_exec = o.image_exec = NULL;
	o.encodes = j->o->image;
	o.pictures = j->o->last_image ? 2 : 1;
	o.text_stream = true;
	o.device = j->x->opts->device;
	o.local_rank = o.children.first_gpu = j->x->job.launch.local_rank;
	TRY(vfm_encoder_open(&j->encoders, &o, err));
	TRY(vfm_encoder_make_workers(&j->encoders, 1, err));
	return check_widths(j, err);
}

/* Sets the identities of the encoders on all ranks; the leaders must agree with rank 0.  Collective. */
static int share_encoder_ids(struct sample_job *j, struct vfm_encoder_ids *used, struct vfm_err *err)
{
	const struct vfm_encoder_ids own = vfm_encoder_set_ids(&j->encoders);
	json_t *o = vfm_encoder_ids_json(&own);
	char *text = json_dumps(o, JSON_COMPACT);
	int rc = vfm_job_broadcast(&j->x->job, &text, err);

	json_decref(o);
	if (rc < 0) {
		free(text);
		return rc;
	}
	o = json_loads(text, 0, NULL);
	free(text);
	rc = vfm_encoder_ids_from_json(used, o, "the encoders of rank 0", err);
	json_decref(o);
	if (rc >= 0 && j->net.leader)
		rc = vfm_encoder_ids_check(&own, "this rank", used, "rank 0", err);
	return vfm_job_agree(&j->x->job, rc, err);
}

/* Sets the geometry of latents that are not decoded: that of the training data, or that of the built-in tokenizer. */
static int choose_geometry(struct sample_job *j, const struct vfm_ckpt *c, const struct vfm_encoder_id *trained,
	const struct vfm_encoder_id *used, struct vfm_err *err)
{
	struct vfm_wavelet builtin;
	struct vfm_encoder_id own;
	char label[VFM_ENCODER_ID_LABEL], spec[32];

	j->geometry = trained->geometry;
	if (vfm_geometry_is_known(&j->geometry)) {
		if (j->geometry.channels == j->net.c.model.channels)
			return 0;
		vfm_encoder_id_label(trained, label);
		return vfm_fail(err, VFM_EUSAGE, "%s: the tokenizer '%s' of its data has %d channels, the model %lld",
			c->path, label, j->geometry.channels, (long long)j->net.c.model.channels);
	}
	own = *used;
	if (!*own.name) {
		TRY(vfm_wavelet_parse(&builtin, default_tokenizer(j, spec), err));
		own = vfm_wavelet_id(&builtin);
	}
	j->geometry = own.geometry;
	vfm_encoder_id_label(&own, label);
	if (j->x->job.world->rank == 0 && vfm_encoder_id_compare(trained, &own) != VFM_ENCODER_ID_SAME)
		vfm_warn("%s does not record the sizes of its latents; those of '%s' are used", c->path, label);
	return 0;
}

/* Compares the encoders that this request uses with those of the training data.  Local. */
static int choose_encoders(
	struct sample_job *j, const struct vfm_ckpt *c, const struct vfm_encoder_ids *used, struct vfm_err *err)
{
	bool decodes, encodes;
	struct vfm_encoder_ids m;

	TRY(vfm_encoder_ids_from_json(&m, json_object_get(c->state, "encoders"), "state.encoders", err) < 0
			? vfm_err_context(err, "%s", c->path)
			: 0);
	vfm_forced_add(&j->forced, json_object_get(c->state, "forced"));
	find_needs(j, &decodes, &encodes);
	j->encoder_ids.tokenizer = decodes ? used->tokenizer : m.tokenizer;
	j->encoder_ids.image = m.image;
	j->geometry = used->tokenizer.geometry;
	if (decodes)
		TRY(check_encoder(j, c, VFM_ENCODER_TOKENIZER, &m, &used->tokenizer, err));
	else
		TRY(choose_geometry(j, c, &m.tokenizer, &used->tokenizer, err));
	if (vfm_encoder_image_option(&j->o->encoder)) {
		j->encoder_ids.image = used->image;
		TRY(check_encoder(j, c, VFM_ENCODER_IMAGE, &m, &used->image, err));
	}
	if (!encodes)
		return 0;
	j->encoder_ids.text = used->text;
	return check_encoder(j, c, VFM_ENCODER_TEXT, &m, &used->text, err);
}

/* The default number of frames: the largest up to 16 that tokenizer and patch take. */
static int64_t choose_frames(const struct vfm_geometry *g, int32_t patch_t)
{
	int64_t n = vfm_geometry_fit_patch(g, DEFAULT_FRAMES, patch_t);

	return n > 0 ? n : g->first;
}

static int choose_side(int unit)
{
	return unit > DEFAULT_SIDE ? unit : DEFAULT_SIDE / unit * unit;
}

/* Sets the sizes of video and latent.  Tokenizer and patch decide which are possible. */
static int choose_video(struct sample_job *j, struct vfm_err *err)
{
	int32_t patch[3], unit[2];

	vfm_model_patch(&j->net.c.model, patch);
	vfm_geometry_multiple(&j->geometry, patch, unit);
	j->frames = j->o->frames != SAMPLE_NOT_GIVEN ? j->o->frames : choose_frames(&j->geometry, patch[0]);
	j->height = j->o->width ? j->o->height : choose_side(unit[0]);
	j->width = j->o->width ? j->o->width : choose_side(unit[1]);
	if (j->width % unit[1] || j->height % unit[0])
		return vfm_fail(err, VFM_EUSAGE,
			"--size: %dx%d: tokenizer and patch need a width that is a multiple of %d and a height that is "
			"a multiple of %d",
			j->width, j->height, unit[1], unit[0]);
	return vfm_geometry_latent(&j->geometry, j->frames, j->height, j->width, j->dims, err) < 0
		? vfm_err_context(err, "--frames")
		: 0;
}

int choose_sample_encoders(struct sample_job *j, struct vfm_err *err)
{
	struct vfm_encoder_ids used;
	int rc;

	TRY(share_encoder_ids(j, &used, err));
	rc = choose_encoders(j, j->net.of[0].ckpt, &used, err);
	return vfm_job_agree(&j->x->job, rc < 0 ? rc : choose_video(j, err), err);
}
