#include "data/encode.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "data/binding.h"
#include "data/caption.h"
#include "data/npy.h"
#include "data/sample_key.h"
#include "data/stage.h"
#include "media/video_in.h"

#define TIMEOUT_S  3600
#define MAX_LATENT ((size_t)1 << 30) /* maximum float32 bytes per record */

/* ---- pictures ---- */

struct enc {
	const struct vfm_encode *e;
	struct vfm_limit limit;
	const char *src;
	struct vfm_video *video;
	struct vfm_geometry geometry;
	int width, height, h, w; /* of the pictures; of the latents */
	int group;               /* pictures of a latent frame */
	uint8_t *rgb;            /* [group, height, width, 3] */
	float *latent;           /* [T, C, h, w] */
	size_t latent_cap;
	int64_t frames, latent_frames;
	double period; /* of the record's rate, if the timestamps are bad; 0: they tell the times of frames */
};

static double record_rate(const json_t *rec)
{
	int num = 0, den = 1;

	if (sscanf(vfm_rec_str(rec, "fps", ""), "%d/%d", &num, &den) < 1 || num <= 0 || den <= 0)
		return 0;
	return (double)num / den;
}

static int flush_group(struct enc *c, int n, struct vfm_err *err)
{
	size_t frame = (size_t)c->e->tokenizer.channels * (size_t)c->h * (size_t)c->w;
	size_t want = (size_t)(c->latent_frames + 1) * frame;

	if (want > MAX_LATENT / sizeof(float) || c->latent_frames == UINT16_MAX)
		return vfm_fail(err, VFM_EINPUT,
			"too long to be one sample (over %lld frames of %dx%d): split it, or say --frames",
			(long long)c->frames, c->width, c->height);
	vfm_grow(&c->latent, &c->latent_cap, want, sizeof(float));
	TRY(vfm_tokenizer_encode(
		&c->e->tokenizer, c->rgb, n, c->height, c->width, c->latent + (size_t)c->latent_frames * frame, err));
	c->latent_frames++;
	return 0;
}

/* Uses the last decoded frame as the next picture. */
static int take_picture(struct enc *c, struct vfm_err *err)
{
	size_t bytes = (size_t)c->height * (size_t)c->width * 3;
	int at = (int)(c->frames % c->group);

	TRY(vfm_limit_check(&c->limit, c->src, err));
	TRY(vfm_video_rgb(c->video, c->width, c->height, VFM_FIT_COVER, c->rgb + (size_t)at * bytes, err));
	c->frames++;
	return at == c->group - 1 ? flush_group(c, c->group, err) : 0;
}

static int take_all(struct enc *c, const struct vfm_rec_media *m, struct vfm_err *err)
{
	const int64_t most = m->is_image ? 1 : c->e->frames;
	struct vfm_frame f;
	double t0 = 0;
	bool first = true;
	int rc;

	while ((rc = vfm_video_next(c->video, &f, err)) == 1) {
		if (m->end_frame >= 0 && f.index >= m->end_frame)
			break;
		if (c->period > 0)
			f.time_s = (double)f.index * c->period;
		if (first)
			t0 = f.time_s;
		first = false;
		if (c->e->fps <= 0 || m->is_image) {
			TRY(take_picture(c, err));
		} else { /* each picture is the first frame at or after its time */
			while ((!most || c->frames < most) && (double)c->frames / c->e->fps <= f.time_s - t0 + 1e-6)
				TRY(take_picture(c, err));
		}
		if (most && c->frames >= most)
			break;
	}
	if (rc < 0)
		return rc;
	if (c->frames == 0)
		return vfm_fail(err, VFM_EINPUT, "'%s' has no frame from %lld on", m->src, (long long)m->start_frame);
	if (rc == 0)
		TRY(vfm_video_check_end(c->video, m->end_frame, err));
	return c->frames % c->group ? flush_group(c, (int)(c->frames % c->group), err) : 0;
}

static int choose_size(struct enc *c, const char *src, struct vfm_err *err)
{
	const struct vfm_video_info *info = vfm_video_info(c->video);
	int32_t unit[2];

	vfm_geometry_multiple(&c->geometry, c->e->patch, unit);
	c->width = c->e->width ? c->e->width : info->width / unit[1] * unit[1];
	c->height = c->e->height ? c->e->height : info->height / unit[0] * unit[0];
	if (c->width < unit[1] || c->height < unit[0])
		return vfm_fail(err, VFM_EINPUT, "'%s' is %dx%d: smaller than %dx%d", src, info->width, info->height,
			unit[1], unit[0]);
	c->h = c->height / c->geometry.stride[1];
	c->w = c->width / c->geometry.stride[2];
	c->rgb = vfm_big_alloc((size_t)c->height * (size_t)c->width * 3 * (size_t)c->group, "the pictures", err);
	return c->rgb ? 0 : VFM_EENV;
}

/* Checks the elements and writes the file; *sha256 binds it to its record. */
static int save_array(
	const char *path, struct vfm_npy *n, const uint16_t *half, char sha256[VFM_SHA256_HEX], struct vfm_err *err)
{
	n->type = VFM_NPY_F16;
	n->data_bytes = vfm_npy_count(n) * sizeof(*half);
	TRY(vfm_npy_check_finite(n, half, path, err));
	return vfm_npy_save(path, n, half, sha256, err);
}

/* [T, C, h, w] float -> [C, T, h, w] half, written. */
static int save_latent(const struct enc *c, const char *path, char sha256[VFM_SHA256_HEX], struct vfm_err *err)
{
	const size_t n = (size_t)c->h * (size_t)c->w, ch = (size_t)c->e->tokenizer.channels,
		     t = (size_t)c->latent_frames;
	struct vfm_npy npy = {.ndim = 4, .shape = {(int64_t)ch, (int64_t)t, c->h, c->w}};
	uint16_t *half = vfm_big_alloc(ch * t * n * 2, "the latents", err);
	int rc;

	if (!half)
		return VFM_EENV;
	for (size_t k = 0; k < ch; k++)
		for (size_t i = 0; i < t; i++)
			vfm_f16s_from_f32(half + (k * t + i) * n, c->latent + (i * ch + k) * n, n);
	rc = save_array(path, &npy, half, sha256, err);
	vfm_big_free(half, ch * t * n * 2);
	return rc;
}

static void set_latent(json_t *rec, const struct enc *c, const char *path, const char *sha256, bool image)
{
	double fps = image ? 0 : c->e->fps > 0 ? c->e->fps : record_rate(rec);
	struct vfm_maker maker = vfm_tokenizer_maker(&c->e->tokenizer);

	json_object_set_new(rec, "latent",
		json_pack("{s:s,s:s,s:[i,I,i,i],s:s,s:I,s:i,s:i,s:o,s:o}", "path", path, "sha256", sha256, "shape",
			c->e->tokenizer.channels, (json_int_t)c->latent_frames, c->h, c->w, "dtype", "float16",
			"frames", (json_int_t)c->frames, "width", c->width, "height", c->height, "fps",
			fps > 0 ? json_real(round(fps * 1000) / 1000) : json_null(), "maker", vfm_maker_json(&maker)));
}

int vfm_encode_media(json_t *rec, const struct vfm_encode *e, struct vfm_err *err)
{
	struct vfm_video_opts opts = {
		.threads = e->threads, .limit = vfm_limit_start(e->timeout_s > 0 ? e->timeout_s : TIMEOUT_S)};
	struct enc c = {.e = e, .limit = opts.limit};
	const char *id = vfm_rec_str(rec, "id", NULL);
	double rate = record_rate(rec);
	char sha256[VFM_SHA256_HEX];
	struct vfm_rec_media m;
	char *path = NULL;
	int rc;

	TRY(vfm_sample_key_check(id, err));
	TRY(vfm_rec_media(rec, &m, err));
	c.src = m.src;
	c.geometry = vfm_tokenizer_maker(&e->tokenizer).geometry;
	c.group = c.geometry.stride[0];
	c.period = json_is_true(json_object_get(rec, "bad_times")) && rate > 0 ? 1 / rate : 0;
	TRY_OUT(vfm_video_open(&c.video, m.src, &opts, err));
	TRY_OUT(choose_size(&c, m.src, err));
	if (m.start_frame > 0)
		TRY_OUT(vfm_video_seek(c.video, m.start_frame, m.start_pts, err));
	TRY_OUT(take_all(&c, &m, err));
	path = vfm_strfmt("%s/%s.latent.npy", e->dir, id);
	TRY_OUT(save_latent(&c, path, sha256, err));
	set_latent(rec, &c, path, sha256, m.is_image);
out:
	vfm_video_close(c.video);
	if (c.rgb)
		vfm_big_free(c.rgb, (size_t)c.height * (size_t)c.width * 3 * (size_t)c.group);
	free(c.latent);
	free(path);
	return rc;
}

/* ---- text ---- */

/* Embeds one caption of vfm_captions_of into the file `path`; *entry describes it, and the caller owns it. */
static int write_text(
	json_t **entry, const json_t *caption, const char *path, struct vfm_textbytes *embedder, struct vfm_err *err)
{
	const char *words = caption ? json_string_value(caption) : "";
	struct vfm_npy npy = {.ndim = 2, .shape = {vfm_textbytes_rows(words), vfm_textbytes_dim(embedder)}};
	size_t n = vfm_npy_count(&npy);
	char sha256[VFM_SHA256_HEX], caption_sha256[VFM_SHA256_HEX];
	float *rows = vfm_malloc(n * sizeof(*rows)); /* at most 512 x 8192 */
	uint16_t *half = vfm_malloc(n * sizeof(*half));
	int rc;

	vfm_textbytes_embed(embedder, words, rows);
	vfm_f16s_from_f32(half, rows, n);
	rc = save_array(path, &npy, half, sha256, err);
	vfm_caption_sha256(caption, caption_sha256);
	if (rc >= 0)
		*entry = json_pack("{s:s,s:s,s:s,s:[I,I],s:s}", "path", path, "sha256", sha256, "caption_sha256",
			caption_sha256, "shape", (json_int_t)npy.shape[0], (json_int_t)npy.shape[1], "dtype",
			"float16");
	free(rows);
	free(half);
	return rc;
}

int vfm_encode_text(json_t *rec, struct vfm_textbytes *embedder, const char *dir, struct vfm_err *err)
{
	const char *id = vfm_rec_str(rec, "id", NULL);
	struct vfm_maker maker = vfm_textbytes_maker(embedder);
	json_t *text, *entry = NULL, *several = NULL;
	char part[VFM_TEXT_PART];
	struct vfm_captions c;

	TRY(vfm_sample_key_check(id, err));
	TRY(vfm_captions_of(&c, rec, err));
	if (*c.list[0].name)
		several = json_object();
	for (int i = 0; i < c.n; i++) {
		char *path = vfm_strfmt("%s/%s.%s", dir, id, vfm_text_part(part, c.list[i].name));
		int rc = write_text(&entry, c.list[i].value, path, embedder, err);

		free(path);
		if (rc < 0) {
			json_decref(several);
			return rc;
		}
		if (several)
			json_object_set_new(several, c.list[i].name, entry);
	}
	text = several ? json_pack("{s:o}", "captions", several) : entry;
	json_object_set_new(text, "maker", vfm_maker_json(&maker));
	json_object_set_new(rec, "text", text);
	return 0;
}
