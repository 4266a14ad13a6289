/* clip - cuts each clip out to its own file. */
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "io/file.h"
#include "io/input.h"
#include "io/json.h"
#include "io/opt.h"
#include "ahead.h"
#include "curate.h"
#include "data/record/bucket.h"
#include "data/record/sample_key.h"
#include "media/av/video_out.h"
#include "media/shots/cut.h"

/* Clips of a source that are cut in one pass: with several jobs fewer, so that these share a long film. */
enum { BATCH_ALONE = 64, BATCH_PER_JOB = 8 };

#define MANY_PIXELS (4096 * 2304) /* more than 4K */

struct clip_work {
	const char *dir;
	struct vfm_cut_opts cut;
	double timeout_s;
	/* instead of cut's: the size, and the number of frames and their rate, of the record's bucket
	 * (data/record/bucket.h)
	 */
	bool bucket_size, bucket_frames;
	_Atomic int64_t *n_fewer; /* clips that have fewer frames than --frames N */
	struct curate_ahead ahead;
	pthread_mutex_t lock;
	json_t *prefixes; /* {PREFIX: true} of the names of files that earlier stages wrote */
};

static void move_key(json_t *from, json_t *to, const char *key)
{
	json_t *v = json_object_get(from, key);

	if (!v)
		return;
	json_object_set(to, key, v);
	json_object_del(from, key);
}

/* Moves the keys of the source file to "origin"; the record then describes the new file.  The pixels of a copy are
 * those of the source. */
static void set_origin(json_t *rec, bool copied)
{
	static const char *const keys[] = {"start_frame", "end_frame", "start_s", "end_s", "start_pts", "width",
		"height", "fps", "codec", "bytes", "sha256"};
	static const char *const gone[] = {"sar", "mirrored", "vfr", "bad_times", "resized", "frames_claimed"};
	static const char *const pixels[] = {"pix_fmt", "interlaced", "color_transfer", "color_primaries"};
	json_t *origin = json_object();

	json_object_set(origin, "src", json_object_get(rec, "src"));
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		move_key(rec, origin, keys[i]);
	for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
		json_object_del(rec, gone[i]);
	for (size_t i = 0; i < sizeof(pixels) / sizeof(pixels[0]) && !copied; i++)
		json_object_del(rec, pixels[i]);
	json_object_set_new(rec, "origin", origin);
}

/* Says once that the files are large. */
static void note_large_clips(const struct vfm_cut_result *r)
{
	static _Atomic bool is_said;

	if ((int64_t)r->width * r->height > MANY_PIXELS && !atomic_exchange(&is_said, true))
		vfm_info("clips of %dx%d are written; --height 1080 makes them smaller", r->width, r->height);
}

static void set_result(
	json_t *rec, const struct clip_work *c, const struct vfm_cut_result *r, const char *path, bool image)
{
	note_large_clips(r);
	set_origin(rec, r->copied);
	json_object_set_new(rec, "src", json_string(path));
	json_object_set_new(rec, "container", json_string(image ? "png_pipe" : vfm_video_out_container(c->cut.codec)));
	json_object_set_new(rec, "codec", json_string(r->codec));
	if (r->copied)
		json_object_set_new(rec, "copied", json_true());
	json_object_set_new(rec, "width", json_integer(r->width));
	json_object_set_new(rec, "height", json_integer(r->height));
	json_object_set_new(rec, "rotation", json_integer(0));
	json_object_set_new(rec, "has_audio", json_boolean(r->has_audio));
	json_object_set_new(rec, "frames", json_integer(r->frames));
	if (image)
		return;
	if (c->cut.max_frames > 0 && !c->bucket_frames && r->frames < c->cut.max_frames)
		++*c->n_fewer;
	json_object_set_new(rec, "fps", json_sprintf("%d/%d", r->fps_num, r->fps_den));
	json_object_set_new(rec, "duration_s", vfm_json_real(round(r->duration_s * 1e6) / 1e6));
	if (r->vfr)
		json_object_set_new(rec, "vfr", json_true());
}

json_t *curate_cut_json(const char *file, const struct vfm_cut_result *r)
{
	const char *slash = strrchr(file, '/');

	return json_pack("{s:s,s:i,s:i,s:i,s:i,s:I,s:f,s:b,s:s}", "file", slash ? slash + 1 : file, "width", r->width,
		"height", r->height, "fps_num", r->fps_num, "fps_den", r->fps_den, "frames", (json_int_t)r->frames,
		"duration_s", r->duration_s, "vfr", r->vfr, "codec", r->codec);
}

/* Notes the run of a file that an earlier stage wrote, ".ahead-RUN-…".  Returns the name, or NULL if it is no such file:
 * records may come from anywhere. */
static const char *note_file_ahead(struct clip_work *c, const json_t *ahead)
{
	const char *file = json_string_value(json_object_get(ahead, "file"));
	const char *end = file && !strncmp(file, ".ahead-", 7) ? strchr(file + 7, '-') : NULL;
	char *prefix;

	if (!end || strchr(file, '/'))
		return NULL;
	prefix = vfm_strfmt("%.*s", (int)(end + 1 - file), file);
	pthread_mutex_lock(&c->lock);
	json_object_set_new(c->prefixes, prefix, json_true());
	pthread_mutex_unlock(&c->lock);
	free(prefix);
	return file;
}

/* Gives the file of a clip that an earlier stage wrote its name.  Returns whether there is one. */
static bool take_written(struct clip_work *c, json_t *ahead, const char *out, struct vfm_cut_result *r)
{
	const char *file = note_file_ahead(c, ahead), *codec;
	json_int_t frames;
	char *path;
	bool taken;
	int vfr;

	*r = (struct vfm_cut_result){0};
	if (!file ||
		json_unpack(ahead, "{s:i,s:i,s:i,s:i,s:I,s:F,s:b,s:s}", "width", &r->width, "height", &r->height,
			"fps_num", &r->fps_num, "fps_den", &r->fps_den, "frames", &frames, "duration_s", &r->duration_s,
			"vfr", &vfr, "codec", &codec) != 0)
		return false;
	path = vfm_strfmt("%s/%s", c->dir, file);
	taken = rename(path, out) == 0;
	free(path);
	r->frames = frames;
	r->vfr = vfr;
	snprintf(r->codec, sizeof(r->codec), "%s", codec);
	return taken;
}

/* Notes a record that the stage refuses: its file is removed at the end. */
static void note_refused(const json_t *rec, void *ctx)
{
	note_file_ahead(ctx, json_object_get(json_object_get(rec, VFM_AHEAD_KEY), "clip"));
}

/* Removes the files that no record has taken.  The stages that write them have ended. */
static void remove_written(const struct clip_work *c)
{
	DIR *dir = json_object_size(c->prefixes) ? opendir(c->dir) : NULL;
	const char *prefix;
	json_t *v;

	for (struct dirent *e; dir && (e = readdir(dir));)
		json_object_foreach(c->prefixes, prefix, v) if (!strncmp(e->d_name, prefix, strlen(prefix)))
			unlinkat(dirfd(dir), e->d_name, 0);
	if (dir)
		closedir(dir);
}

static int copy_image_bytes(const struct vfm_input *in, struct vfm_atomic *out, const char *src,
	const struct vfm_limit *limit, struct vfm_err *err)
{
	enum { CHUNK = 1 << 16 };
	char *buf = vfm_malloc(CHUNK);
	uint64_t done = 0;
	int rc = 0;

	while (rc == 0 && done < in->size) {
		size_t n = in->size - done < CHUNK ? (size_t)(in->size - done) : CHUNK;

		rc = vfm_full_pread(in->fd, buf, n, in->at + done, src, err);
		if (rc == 0 && fwrite(buf, 1, n, out->f) != n)
			rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", out->path);
		done += n;
		if (rc == 0)
			rc = vfm_limit_check(limit, src, err);
	}
	free(buf);
	return rc;
}

/* Copies an image without decoding it. */
static int copy_image(
	json_t *rec, const struct clip_work *c, const char *id, const struct vfm_limit *limit, struct vfm_err *err)
{
	const char *src = vfm_rec_str(rec, "src", ""), *dot = strrchr(src, '.');
	struct vfm_atomic out;
	struct vfm_input in;
	char *path;
	int rc;

	TRY(vfm_input_open(&in, src, err));
	path = vfm_strfmt("%s/%s%s", c->dir, id, dot && strlen(dot) < 8 && !strchr(dot, '/') ? dot : "");
	TRY_OUT(vfm_atomic_open(&out, path, err));
	rc = copy_image_bytes(&in, &out, src, limit, err);
	if (rc == 0)
		rc = vfm_atomic_commit(&out, err);
	else
		vfm_atomic_abort(&out);
	if (rc == 0) {
		json_t *origin = json_pack("{s:s}", "src", src);

		json_object_set_new(rec, "origin", origin);
		json_object_set_new(rec, "src", json_string(path));
	}
out:
	close(in.fd);
	free(path);
	return rc;
}

/* Tells the cut what the record knows of the times of its frames. */
static void set_cut_times(struct vfm_cut_opts *cut, const json_t *rec)
{
	double start_s, end_s;

	if (sscanf(vfm_rec_str(rec, "fps", ""), "%d/%d", &cut->fps_num, &cut->fps_den) != 2)
		cut->fps_num = cut->fps_den = 0;
	cut->vfr = json_is_true(json_object_get(rec, "vfr"));
	cut->bad_times = json_is_true(json_object_get(rec, "bad_times"));
	if (vfm_rec_num(rec, "start_s", &start_s) && vfm_rec_num(rec, "end_s", &end_s))
		cut->length_s = end_s - start_s;
}

/* Takes size and frames from the record's bucket, as far as they are asked for. */
static int apply_clip_bucket(
	struct vfm_cut_opts *cut, const json_t *rec, const struct clip_work *c, bool image, struct vfm_err *err)
{
	struct vfm_bucket b;
	char name[VFM_BUCKET_NAME];

	if (!c->bucket_size && !c->bucket_frames)
		return 0;
	TRY(vfm_bucket_read(&b, rec, err));
	if (c->bucket_size && !image && (b.width % 2 || b.height % 2))
		return vfm_fail(
			err, VFM_EINPUT, "bucket %s: a video needs even width and height", vfm_bucket_name(&b, name));
	if (c->bucket_size) {
		cut->width = b.width;
		cut->height = b.height;
		cut->enlarge = true; /* within bucket --max-upscale */
	}
	if (c->bucket_frames) {
		cut->max_frames = b.frames;
		TRY(image ? 0 : vfm_bucket_rate(&b, &cut->new_fps, err));
	}
	return 0;
}

/* VFM_EINPUT: the clip has fewer frames than its bucket; its file is removed. */
static int check_bucket_frames(const json_t *rec, const struct vfm_cut_clip *clip, struct vfm_err *err)
{
	struct vfm_bucket b;
	int rc;

	TRY(vfm_bucket_read(&b, rec, err));
	rc = vfm_bucket_check_frames(&b, clip->result.frames, err);
	if (rc < 0)
		unlink(clip->out);
	return rc;
}

static char *clip_path(const struct clip_work *c, const char *id, bool image)
{
	return vfm_strfmt("%s/%s.%s", c->dir, id, image ? "png" : vfm_video_out_extension(c->cut.codec));
}

/* Prepares a clip.  Returns 1, or 0 if the record is finished. */
static int prepare_clip(json_t *rec, struct clip_work *c, json_t *ahead, struct vfm_cut_clip *clip, struct vfm_err *err)
{
	struct vfm_limit limit = vfm_limit_start(c->timeout_s);
	const char *id = vfm_rec_str(rec, "id", NULL);
	struct vfm_rec_media m;

	note_file_ahead(c, ahead);
	TRY(vfm_rec_media(rec, &m, err));
	TRY(vfm_sample_key_check(id, err));
	*clip = (struct vfm_cut_clip){.o = c->cut};
	TRY(apply_clip_bucket(&clip->o, rec, c, m.is_image, err));
	if (m.is_image && !clip->o.width && !clip->o.height)
		return copy_image(rec, c, id, &limit, err);
	clip->out = clip_path(c, id, m.is_image);
	if (take_written(c, ahead, clip->out, &clip->result)) {
		set_result(rec, c, &clip->result, clip->out, false);
		free((char *)clip->out);
		return 0;
	}
	clip->o.timeout_s = c->timeout_s;
	clip->o.start = m.start_frame;
	clip->o.end = m.end_frame;
	clip->o.start_pts = m.start_pts;
	set_cut_times(&clip->o, rec);
	if (json_integer_value(json_object_get(rec, "decode_errors")) > 0)
		clip->o.copy = false; /* packets and frames may differ */
	if (m.is_image) {
		clip->o.even = false;
		clip->o.codec = NULL;
		clip->o.end = -1;
		clip->o.new_fps = 0;
	}
	return 1;
}

/* Scores and hashes the file of a clip for later stages. */
static void analyze_written(struct clip_work *c, json_t *rec, const char *path)
{
	struct vfm_score_opts o = {.video = {.threads = c->cut.threads, .limit = vfm_limit_start(c->timeout_s)},
		.end = -1,
		.start_pts = INT64_MIN,
		.about = json_integer_value(json_object_get(rec, "frames"))};
	struct vfm_err err;

	if (curate_ahead_is_wanted(&c->ahead))
		curate_ahead_analyze(&c->ahead, rec, path, &o, NULL, &err); /* else the later stage says why */
}

/* Cuts the clips of a source. */
static void cut_records(struct vfm_stage_item *items, int n, void *ctx, int worker)
{
	struct vfm_cut_clip *clips = vfm_calloc((size_t)n, sizeof(*clips));
	int *item_of = vfm_calloc((size_t)n, sizeof(*item_of)), n_clips = 0;
	struct clip_work *c = ctx;

	(void)worker;
	for (int i = 0; i < n; i++) {
		json_t *ahead = vfm_ahead_take(items[i].rec, "clip");

		items[i].rc = prepare_clip(items[i].rec, c, ahead, &clips[n_clips], &items[i].err);
		if (items[i].rc == 1)
			item_of[n_clips++] = i;
		json_decref(ahead);
	}
	if (n_clips)
		vfm_cut_clips(vfm_rec_str(items[item_of[0]].rec, "src", ""), clips, n_clips);
	for (int k = 0; k < n_clips; k++) {
		struct vfm_stage_item *item = &items[item_of[k]];
		bool image = !strcmp(vfm_rec_str(item->rec, "kind", "video"), "image");

		item->rc = clips[k].rc;
		item->err = clips[k].err;
		if (item->rc < 0 && clips[k].result.too_small) {
			vfm_stage_drop(item->rec, "clip", "smaller than %dx%d (--enlarge)", clips[k].o.width,
				clips[k].o.height);
			item->rc = 0;
			free((char *)clips[k].out);
			continue;
		}
		if (item->rc == 0 && c->bucket_frames)
			item->rc = check_bucket_frames(item->rec, &clips[k], &item->err);
		if (item->rc == 0) {
			set_result(item->rec, c, &clips[k].result, clips[k].out, image);
			analyze_written(c, item->rec, clips[k].out);
		}
		free((char *)clips[k].out);
	}
	free(item_of);
	free(clips);
}

static int parse_size(const char *text, int64_t *w, int64_t *h, struct vfm_err *err)
{
	int n = 0;

	if (sscanf(text, "%5lldx%5lld%n", (long long *)w, (long long *)h, &n) != 2 || text[n])
		return vfm_fail(err, VFM_EUSAGE, "--size: expected WIDTHxHEIGHT, got '%s'", text);
	return 0;
}

int curate_check_codec(const char *codec, struct vfm_err *err)
{
	static const char *const codecs[] = {"h264", "hevc", "av1", "vp9", "mpeg4", "ffv1"};

	for (size_t i = 0; i < sizeof(codecs) / sizeof(codecs[0]); i++)
		if (!strcmp(codecs[i], vfm_video_out_codec(codec)))
			return 0;
	return vfm_fail(err, VFM_EUSAGE, "--codec: expected h264, hevc, av1, vp9, mpeg4 or ffv1, got '%s'", codec);
}

/* size, frames: NULL if they were not given. */
static int check_clip_opts(
	struct clip_work *c, const char *size, const char *frames, int64_t w, int64_t h, struct vfm_err *err)
{
	TRY(curate_parse_frames(frames, &c->cut.max_frames, &c->bucket_frames, err));
	c->bucket_size = size && !strcmp(size, "bucket");
	if (c->bucket_size && (w || h))
		return vfm_fail(err, VFM_EUSAGE, "--size bucket: not with --width and --height");
	if (size && !c->bucket_size)
		TRY(parse_size(size, &w, &h, err));
	if (w < 0 || h < 0 || w > 16384 || h > 16384 || w % 2 || h % 2 || (size && !c->bucket_size && (!w || !h)))
		return vfm_fail(err, VFM_EUSAGE, "--size, --width, --height: expected even numbers up to 16384");
	TRY(curate_check_codec(c->cut.codec, err));
	if (c->cut.copy &&
		(w || h || c->bucket_size || c->cut.new_fps > 0 || frames || c->cut.audio ||
			!strcmp(c->cut.codec, "ffv1")))
		return vfm_fail(err, VFM_EUSAGE,
			"--copy: not with --size, --width, --height, --fps, --frames, --audio keep or --codec ffv1");
	c->cut.width = (int)w;
	c->cut.height = (int)h;
	return vfm_mkdir_p(c->dir, err);
}

/* The options that change the clips (data/record/stage.h). */
static char *clip_options(const struct clip_work *c)
{
	const struct vfm_cut_opts *o = &c->cut;
	char fps[VFM_REAL_TEXT];

	return vfm_strfmt("codec %s crf %d size %dx%d fps %s frames %lld%s%s%s%s%s%s%s", o->codec, o->crf, o->width,
		o->height, vfm_real_text(fps, o->new_fps), (long long)o->max_frames, o->audio ? " audio" : "",
		o->copy ? " copy" : "", o->video.keep_hdr ? " hdr" : "",
		o->video.deinterlace == VFM_DEINTERLACE_OFF           ? " interlaced"
			: o->video.deinterlace == VFM_DEINTERLACE_ALL ? " deinterlace"
								      : "",
		o->enlarge ? " enlarge" : "", c->bucket_size ? " size-of-bucket" : "",
		c->bucket_frames ? " frames-of-bucket" : "");
}

static int parse_clip_options(struct clip_work *c, struct vfm_stage *stage, int argc, char **argv, struct vfm_err *err)
{
	const char *size = NULL, *frames = NULL;
	int64_t crf = 18, width = 0, height = 0;
	int audio = 0, sdr = 0;
	struct vfm_opt opts[] = {
		{VFM_OPT_TEXT, 'd', "dir", "DIR", "write the clips into DIR", &c->dir, .required = true},
		VFM_TIMEOUT_OPT("give up on a clip after so long (default 3600)", &c->timeout_s),
		{VFM_OPT_GROUP, 0, NULL, NULL, "Size, rate and length:", NULL},
		{VFM_OPT_STR, 0, "size", "WxH|bucket", "scale to cover W x H, or its bucket, and crop the middle",
			&size},
		{VFM_OPT_INT, 0, "width", "W", "scale to this width, keep the shape", &width},
		{VFM_OPT_INT, 0, "height", "H", "scale to this height, keep the shape", &height},
		{VFM_OPT_FLAG, 0, "enlarge", NULL, "enlarge smaller sources", &c->cut.enlarge},
		{VFM_OPT_NUM, 0, "fps", "X", "take X frames a second (default: every frame)", &c->cut.new_fps, 0, 240},
		{VFM_OPT_STR, 0, "frames", "N|bucket", "write at most N frames of a clip, or those of its bucket",
			&frames},
		{VFM_OPT_GROUP, 0, NULL, NULL, "Coding:", NULL},
		{VFM_OPT_STR, 0, "codec", "NAME", "h264, hevc, av1, vp9, mpeg4 or ffv1 (default h264)", &c->cut.codec},
		{VFM_OPT_INT, 0, "crf", "N", "quality, 0 best to 51 (default 18)", &crf, 0, 51},
		{VFM_OPT_FLAG, 0, "copy", NULL, "copy the packets of clips that begin at a key frame", &c->cut.copy},
		{VFM_OPT_NAME, 0, "audio", "drop|keep", "drop (default) or keep the sound", &audio},
		{VFM_OPT_NAME, 0, "hwaccel", "none|auto|cuda|vaapi", "decode on a device (default none)",
			&c->cut.video.hwaccel},
		{VFM_OPT_GROUP, 0, NULL, NULL, "Conversions:", NULL},
		{VFM_OPT_NAME, 0, "sdr", "auto|off", "convert HDR and BT.2020 to BT.709 (default auto)", &sdr},
		{VFM_OPT_NAME, 0, "deinterlace", "auto|off|all", "auto (default): frames flagged as interlaced",
			&c->cut.video.deinterlace},
		VFM_STAGE_OPTS(&stage->opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate clip",
		.synopsis = "-d DIR [OPTION ...] [FILE ...]",
		.summary = "write each clip to a file of its own",
		.opts = opts,
	};
	int rc = curate_parse(&cmd, stage, argc, argv, err);

	if (rc != 0)
		return rc;
	c->cut.crf = (int)crf;
	c->cut.audio = audio;
	c->cut.video.keep_hdr = sdr;
	TRY(check_clip_opts(c, size, frames, width, height, err));
	c->cut.threads = c->cut.video.threads = stage->opts.jobs > 1 ? 1 : vfm_par_threads();
	return 0;
}

#define CLIP_DEFAULTS                                                                                                  \
	{                                                                                                              \
		.cut = {.codec = "h264", .even = true}, .timeout_s = 3600                                              \
	}

bool curate_clip_opts(int argc, char **argv, struct vfm_cut_opts *o, const char **dir)
{
	struct clip_work c = CLIP_DEFAULTS;
	struct vfm_stage stage = {0};
	struct vfm_err err;

	if (parse_clip_options(&c, &stage, argc, argv, &err) != 0 || stage.n_files || c.bucket_size ||
		c.bucket_frames || c.cut.copy || c.cut.audio || c.cut.video.keep_hdr || c.cut.video.hwaccel ||
		c.cut.video.deinterlace != VFM_DEINTERLACE_AUTO)
		return false;
	*o = c.cut;
	o->timeout_s = c.timeout_s;
	*dir = c.dir;
	return true;
}

int curate_clip(int argc, char **argv, struct vfm_err *err)
{
	struct clip_work c = CLIP_DEFAULTS;
	static const char *const outputs[] = {"src", NULL};
	struct vfm_stage stage = {.name = "clip",
		.version =
			5, /* 4: x264 looked for cuts; 3: enlarged small sources, and converted Y'CbCr to RGB and back; 2: has_audio was that
				 of the source; 1: HLG sources gave other colours */
		.batch = cut_records,
		.batch_key = "src",
		.ctx = &c,
		.unique_ids = true,
		.on_refused = note_refused,
		.outputs = outputs};
	_Atomic int64_t n_fewer = 0;
	char *options;
	int rc = parse_clip_options(&c, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	stage.max_batch = stage.opts.jobs > 1 ? BATCH_PER_JOB : BATCH_ALONE;
	stage.options = options = clip_options(&c);
	c.ahead = (struct curate_ahead)CURATE_AHEAD("clip", stage.opts.jobs);
	c.n_fewer = &n_fewer;
	pthread_mutex_init(&c.lock, NULL);
	c.prefixes = json_object();
	rc = vfm_stage_run(&stage, NULL, err);
	remove_written(&c);
	json_decref(c.prefixes);
	if (n_fewer)
		vfm_info("%lld clips have fewer than %lld frames (--frames): those that their shots have",
			(long long)n_fewer, (long long)c.cut.max_frames);
	curate_ahead_release(&c.ahead);
	free(options);
	return rc;
}
