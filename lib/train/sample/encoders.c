/* encoders.c - chooses tokenizer, text and image encoder, and the sizes of the videos that follow from them. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "encoder/vae/wavelet.h"
#include "io/file.h"
#include "io/json.h"
#include "spec/layout/patch.h"
#include "train/sample/sampling_impl.h"

enum { DEFAULT_FRAMES = 16, DEFAULT_SIDE = 128, MAX_TOKENS = 1 << 24 /* of a video */ };

bool sampling_makes_rows(const struct vfm_sampling *s)
{
	return vfm_encoder_image_option(&s->o->encoder);
}

/* Compares an encoder with the encoder of the training data.  Adds it to `unnamed` if that is not known. */
static int check_encoder(struct vfm_sampling *s, enum vfm_encoder_kind e, const struct vfm_encoder_id *used,
	struct vfm_buf *unnamed, struct vfm_err *err)
{
	const struct vfm_encoder_id *expected = &s->trained.of[e];
	enum vfm_encoder_id_relation rel = vfm_encoder_id_compare(expected, used);
	static const char *const options[VFM_ENCODER_KINDS] = {[VFM_ENCODER_TOKENIZER] = "--vae",
		[VFM_ENCODER_TEXT] = "--text-encoder",
		[VFM_ENCODER_IMAGE] = "--image-encoder",
		[VFM_ENCODER_TEXT2] = "--text2-exec"};
	char was[VFM_ENCODER_ID_LABEL], is[VFM_ENCODER_ID_LABEL];
	json_t *entries;

	vfm_encoder_id_label_pair(expected, used, was, is);
	if (rel == VFM_ENCODER_ID_UNKNOWN)
		vfm_buf_addf(unnamed, "%s%s '%s'", unnamed->len ? ", " : "", vfm_encoder_kinds[e].name, is);
	if (rel != VFM_ENCODER_ID_DIFFERENT)
		return 0;
	if (!s->o->force)
		return vfm_fail(err, VFM_EUSAGE,
			"%s was trained on data of the %s '%s', but '%s' would be used: name the former with %s%s",
			s->trained_by, vfm_encoder_kinds[e].name, was, is, options[e],
			s->o->in_training ? "" : ", or give --force");
	if (s->job->world->rank == 0)
		vfm_warn("%s was trained on data of the %s '%s'; '%s' is used", s->trained_by,
			vfm_encoder_kinds[e].name, was, is);
	entries = json_array();
	json_array_append_new(entries, vfm_forced_entry("vfm-sample", e, s->trained_by, expected, used));
	vfm_forced_add(&s->forced, entries);
	json_decref(entries);
	return 0;
}

/* Which encoders the items use: .npy output needs no decoder unless a picture is encoded, the null text no text
 * encoder. */
struct needs {
	bool decodes, encodes_pictures, texts, second_texts;
	int pictures; /* of an item at most: 1 or 2 */
};

static struct needs find_needs(const struct vfm_sampling *s)
{
	struct needs needs = {.pictures = 1};
	struct vfm_sampler sampler;

	for (size_t i = 0; i < s->n; i++) {
		const struct vfm_sample_item *it = &s->v[i];
		bool caption, negative;

		sampler = sampling_sampler(s, it);
		needs.encodes_pictures = needs.encodes_pictures || it->p.image;
		needs.pictures = it->p.last_image ? 2 : needs.pictures;
		needs.decodes = needs.decodes || it->p.image || !vfm_name_ends(it->path, ".npy");
		caption = !it->in.ready && *it->p.caption;
		negative = !it->in.ready && *it->p.negative && vfm_sampler_is_guided(&sampler);
		needs.texts = needs.texts || caption || negative;
		needs.second_texts = needs.second_texts || (caption && !sampling_names_text2(it)) || negative;
	}
	needs.texts = needs.texts && vfm_model_reads_text(&s->c->model);
	needs.second_texts = needs.second_texts && s->c->model.text2_dim;
	return needs;
}

/* Sets the encoder of second texts: the command, or the built-in one if it made those of the training data, or none. */
static void choose_text2(const struct vfm_sampling *s, struct vfm_encoder_opts *o, char spec[32])
{
	snprintf(spec, 32, "bytes:%lld", (long long)s->c->model.text2_dim);
	if (!find_needs(s).second_texts)
		o->text2_exec = NULL;
	else if (!o->text2_exec && !strcmp(s->trained.text2.name, spec))
		o->text2 = spec;
}

/* Returns whether an encoder makes second texts. */
static bool makes_text2(const struct vfm_sampling *s)
{
	struct vfm_encoder_opts o = s->o->encoder;
	char spec[32];

	choose_text2(s, &o, spec);
	return vfm_encoder_text2_option(&o);
}

int64_t sampling_cut_text2(struct vfm_sampling *s, int64_t rows)
{
	const int64_t most = vfm_model_text2_cut(&s->c->model);

	if (!most || rows <= most)
		return rows;
	if (!s->logged_cut2)
		vfm_info("a prompt has %lld rows of a second text; of each prompt the first %lld are read "
			 "(model.text2_len)",
			(long long)rows, (long long)most);
	s->logged_cut2 = true;
	return most;
}

/* Compares the rows of the image encoder with those that the model reads. */
static int check_image_rows(const struct vfm_sampling *s, int pictures, struct vfm_err *err)
{
	const struct vfm_encoder_id *image = &s->encoders.image.id;
	const struct vfm_model_spec *m = &s->c->model;

	if (image->rows == m->image_len && image->dim == m->image_dim)
		return 0;
	return vfm_fail(err, VFM_EUSAGE,
		"%s: '%s' makes image rows [%d, %d] of %s, but model.image_len and model.image_dim are %lld and %lld",
		vfm_encoder_image_option(&s->o->encoder), image->name, image->rows, image->dim,
		pictures > 1 ? "two pictures" : "a picture", (long long)m->image_len, (long long)m->image_dim);
}

/* Compares what the encoders make with what the model reads. */
static int check_widths(const struct vfm_sampling *s, int pictures, struct vfm_err *err)
{
	const struct vfm_encoder_id *video = &s->encoders.video.id, *text = &s->encoders.text.id,
				    *text2 = &s->encoders.text2.id;
	const struct vfm_model_spec *m = &s->c->model;

	if (vfm_geometry_is_known(&video->geometry) && video->geometry.channels != m->channels)
		return vfm_fail(err, VFM_EUSAGE, "the decoder '%s' has %d channels, the model %lld", video->name,
			video->geometry.channels, (long long)m->channels);
	if (text->dim && text->dim != m->text_dim)
		return vfm_fail(err, VFM_EUSAGE, "the text encoder '%s' has rows of width %d, the model reads %lld",
			text->name, text->dim, (long long)m->text_dim);
	if (text2->dim && text2->dim != m->text2_dim)
		return vfm_fail(err, VFM_EUSAGE,
			"the second text encoder '%s' has rows of width %d, the model reads %lld", text2->name,
			text2->dim, (long long)m->text2_dim);
	return s->encoders.image.ops ? check_image_rows(s, pictures, err) : 0;
}

/* The built-in tokenizer with the model's channels. */
static const char *default_tokenizer(const struct vfm_sampling *s, char spec[32])
{
	snprintf(spec, 32, "wavelet:%lld", (long long)s->c->model.channels);
	return spec;
}

int sampling_open_encoders(struct vfm_sampling *s, struct vfm_err *err)
{
	struct vfm_encoder_opts o = s->o->encoder;
	const struct needs needs = find_needs(s);
	char tokenizer[32], text[32], text2[32];

	snprintf(text, sizeof(text), "bytes:%lld", (long long)s->c->model.text_dim);
	if (needs.decodes && !o.exec && !o.vae && !o.tokenizer)
		o.tokenizer = default_tokenizer(s, tokenizer);
	if (!needs.texts)
		o.text_encoder = o.text_exec = NULL;
	else if (!o.text_encoder && !o.text_exec)
		o.text = text;
	choose_text2(s, &o, text2);
	if (!s->leader)
		o.vae = o.text_encoder = o.image_encoder = o.exec = o.text_exec = o.text2_exec = o.image_exec = NULL;
	o.encodes = needs.encodes_pictures;
	o.pictures = needs.pictures;
	o.text_stream = o.one_model = true;
	o.device = s->device;
	o.local_rank = o.children.first_gpu = s->job->launch.local_rank;
	TRY(vfm_encoder_open(&s->encoders, &o, err));
	TRY(vfm_encoder_make_workers(&s->encoders, 1, err));
	return check_widths(s, needs.pictures, err);
}

int sampling_open_decoder(struct vfm_sampling *s, struct vfm_err *err)
{
	struct vfm_encoder_opts o = s->o->encoder;
	char tokenizer[32];

	if (!s->leader || !find_needs(s).decodes)
		return 0;
	if (!o.exec && !o.vae && !o.tokenizer)
		o.tokenizer = default_tokenizer(s, tokenizer);
	o.text_encoder = o.image_encoder = o.text_exec = o.text2_exec = o.image_exec = NULL;
	o.one_model = true;
	o.device = s->device;
	o.local_rank = o.children.first_gpu = s->job->launch.local_rank;
	TRY(vfm_encoder_open(&s->encoders, &o, err));
	return vfm_encoder_make_workers(&s->encoders, 1, err);
}

/* Sets the identities of the encoders on all ranks; the leaders must agree with rank 0.  Collective. */
static int share_encoder_ids(struct vfm_sampling *s, struct vfm_encoder_ids *used, struct vfm_err *err)
{
	const struct vfm_encoder_ids own = vfm_encoder_set_ids(&s->encoders);
	json_t *o = vfm_encoder_ids_json(&own);
	char *text = json_dumps(o, JSON_COMPACT);
	int rc = vfm_job_broadcast(s->job, &text, err);

	json_decref(o);
	if (rc < 0) {
		free(text);
		return rc;
	}
	o = json_loads(text, 0, NULL);
	free(text);
	rc = vfm_encoder_ids_from_json(used, o, "the encoders of rank 0", err);
	json_decref(o);
	if (rc >= 0 && s->leader)
		rc = vfm_encoder_ids_check(&own, "this rank", used, "rank 0", err);
	return vfm_job_agree(s->job, rc, err);
}

/* Sets the geometry of latents that are not decoded: that of the training data, or that of the built-in tokenizer. */
static int choose_geometry(struct vfm_sampling *s, const struct vfm_encoder_id *used, struct vfm_err *err)
{
	const struct vfm_encoder_id *trained = &s->trained.tokenizer;
	struct vfm_wavelet builtin;
	struct vfm_encoder_id own;
	char label[VFM_ENCODER_ID_LABEL], spec[32];

	s->geometry = trained->geometry;
	if (vfm_geometry_is_known(&s->geometry)) {
		if (s->geometry.channels == s->c->model.channels)
			return 0;
		vfm_encoder_id_label(trained, label);
		return vfm_fail(err, VFM_EUSAGE, "%s: the tokenizer '%s' of its data has %d channels, the model %lld",
			s->trained_by, label, s->geometry.channels, (long long)s->c->model.channels);
	}
	own = *used;
	if (!*own.name) {
		TRY(vfm_wavelet_parse(&builtin, default_tokenizer(s, spec), err));
		own = vfm_wavelet_id(&builtin);
	}
	s->geometry = own.geometry;
	vfm_encoder_id_label(&own, label);
	if (s->job->world->rank == 0 && vfm_encoder_id_compare(trained, &own) != VFM_ENCODER_ID_SAME)
		vfm_warn("%s does not record the sizes of its latents; those of '%s' are used", s->trained_by, label);
	return 0;
}

static int compare_encoders_used(
	struct vfm_sampling *s, const struct vfm_encoder_ids *used, struct vfm_buf *unnamed, struct vfm_err *err)
{
	const struct needs needs = find_needs(s);

	s->encoder_ids.tokenizer = needs.decodes ? used->tokenizer : s->trained.tokenizer;
	s->encoder_ids.image = s->trained.image;
	s->encoder_ids.text2 = s->trained.text2;
	s->geometry = used->tokenizer.geometry;
	if (needs.decodes)
		TRY(check_encoder(s, VFM_ENCODER_TOKENIZER, &used->tokenizer, unnamed, err));
	else
		TRY(choose_geometry(s, &used->tokenizer, err));
	if (sampling_makes_rows(s)) {
		s->encoder_ids.image = used->image;
		TRY(check_encoder(s, VFM_ENCODER_IMAGE, &used->image, unnamed, err));
	}
	if (makes_text2(s)) {
		s->encoder_ids.text2 = used->text2;
		TRY(check_encoder(s, VFM_ENCODER_TEXT2, &used->text2, unnamed, err));
	} else if (needs.second_texts && s->job->world->rank == 0) {
		vfm_warn("%s reads second texts, which prompts lack without --text2-exec or a file (text2.path)",
			s->trained_by);
	}
	if (!needs.texts)
		return 0;
	s->encoder_ids.text = used->text;
	return check_encoder(s, VFM_ENCODER_TEXT, &used->text, unnamed, err);
}

/* Compares the encoders that the items use with those of the training data.  Local. */
static int choose_encoders(struct vfm_sampling *s, const struct vfm_encoder_ids *used, struct vfm_err *err)
{
	struct vfm_buf unnamed = {0};
	int rc = compare_encoders_used(s, used, &unnamed, err);

	if (rc == 0 && unnamed.len && s->job->world->rank == 0)
		vfm_info(
			"%s does not name the encoders of its data: not compared with %s", s->trained_by, unnamed.data);
	vfm_buf_release(&unnamed);
	return rc;
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

/* Sets the sizes that follow from dims. */
static int describe_latent(const struct vfm_sampling *s, struct vfm_sample_item *it, const int32_t patch[3])
{
	const struct vfm_geometry *g = &s->geometry;

	it->p.frames = vfm_geometry_pictures(g, it->dims[0]);
	it->p.height = it->dims[1] * g->stride[1];
	it->p.width = it->dims[2] * g->stride[2];
	for (int a = 0; a < 3; a++)
		it->grid[a] = it->dims[a] / patch[a];
	return 0;
}

/* Adds to a message where a value comes from: a key of the prompt, or the option of this name. */
static int blame_value(
	const struct vfm_sampling *s, const struct vfm_sample_item *it, const char *key, struct vfm_err *err)
{
	if (json_object_get(json_object_get(it->rec, "prompt"), key))
		return vfm_err_context(err, "prompt %zu: %s", (size_t)(it - s->v), key);
	return vfm_err_context(err, "--%s", key);
}

/* Without a size or a number of frames, those of the training data, if the tokenizer takes them. */
static void take_trained_size(const struct vfm_sampling *s, struct vfm_prompt *p, const int32_t unit[2])
{
	if (!p->frames && vfm_geometry_latent_frames(&s->geometry, s->size[0]) > 0)
		p->frames = s->size[0];
	if (p->width || !s->size[0] || s->size[1] % unit[0] || s->size[2] % unit[1])
		return;
	p->height = (int)s->size[1];
	p->width = (int)s->size[2];
}

/* Sets the sizes of an item's video and latent.  Tokenizer and patch decide which are possible. */
static int choose_video(const struct vfm_sampling *s, struct vfm_sample_item *it, struct vfm_err *err)
{
	struct vfm_prompt *p = &it->p;
	int32_t patch[3], unit[2];
	int64_t tokens;

	vfm_model_patch(&s->c->model, patch);
	if (it->in.ready) /* a sample of a plan, with the size of its latent */
		return describe_latent(s, it, patch);
	vfm_geometry_multiple(&s->geometry, patch, unit);
	take_trained_size(s, p, unit);
	p->frames = p->frames ? p->frames : choose_frames(&s->geometry, patch[0]);
	p->height = p->width ? p->height : choose_side(unit[0]);
	p->width = p->width ? p->width : choose_side(unit[1]);
	if (p->width % unit[1] || p->height % unit[0]) {
		vfm_fail(err, VFM_EUSAGE,
			"%dx%d: tokenizer and patch need a width that is a multiple of %d and a height that is a "
			"multiple of %d",
			p->width, p->height, unit[1], unit[0]);
		return blame_value(s, it, "size", err);
	}
	if (vfm_geometry_latent(&s->geometry, p->frames, p->height, p->width, it->dims, err) < 0)
		return blame_value(s, it, "frames", err);
	tokens = vfm_patch_grid(it->dims, patch, it->grid, err);
	if (tokens < 0)
		return err->code = VFM_EUSAGE;
	if (tokens > MAX_TOKENS)
		return vfm_fail(err, VFM_EUSAGE, "a video of %lld tokens is too large; at most %d", (long long)tokens,
			MAX_TOKENS);
	return 0;
}

static int choose_videos(struct vfm_sampling *s, struct vfm_err *err)
{
	for (size_t i = 0; i < s->n; i++)
		TRY(choose_video(s, &s->v[i], err));
	return 0;
}

int sampling_choose_encoders(struct vfm_sampling *s, struct vfm_err *err)
{
	struct vfm_encoder_ids used;
	int rc;

	TRY(share_encoder_ids(s, &used, err));
	rc = choose_encoders(s, &used, err);
	return vfm_job_agree(s->job, rc < 0 ? rc : choose_videos(s, err), err);
}
