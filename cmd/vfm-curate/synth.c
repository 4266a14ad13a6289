/* synth - makes small captioned videos of moving shapes, and their records. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"
#include "io/opt.h"
#include "curate.h"
#include "media/av/probe.h"
#include "media/av/video_out.h"
#include "media/draw/synth.h"

struct synth {
	const char *dir;
	int64_t n, seed, frames, fps, next;
	struct vfm_synth_opts scene;
};

/* Lists of words to draw from. */
struct word_lists {
	const char *list[VFM_SYNTH_WORDS];
};

static const char *const list_names[VFM_SYNTH_WORDS] = {"shapes", "colors", "directions"};

static int next_number(void *source, json_t **rec, struct vfm_err *err)
{
	struct synth *s = source;
	char *path;

	(void)err;
	if (s->next >= s->n)
		return 0;
	path = vfm_strfmt("%s/%06" PRId64 ".mp4", s->dir, s->next);
	*rec = json_pack("{s:i,s:s,s:I}", "v", 1, "src", path, "number", (json_int_t)s->next);
	free(path);
	s->next++;
	if (!*rec)
		return vfm_fail(err, VFM_EUSAGE, "-d: the name '%s' is not UTF-8", s->dir);
	return 1;
}

static int write_clip(const struct synth *s, const struct vfm_synth *scene, const char *path, struct vfm_err *err)
{
	struct vfm_video_out_opts opts = {.width = scene->width,
		.height = scene->height,
		.fps_num = (int)s->fps,
		.fps_den = 1,
		.crf = 10,
		.threads = 1};
	uint8_t *rgb = vfm_malloc((size_t)scene->width * (size_t)scene->height * 3);
	struct vfm_video_out *out;
	int rc = vfm_video_out_open(&out, path, &opts, err);

	for (int f = 0; rc >= 0 && f < scene->frames; f++) {
		vfm_synth_frame(scene, f, rgb);
		rc = vfm_video_out_write(out, rgb, err);
		if (rc < 0)
			vfm_video_out_abort(out);
	}
	if (rc >= 0)
		rc = vfm_video_out_close(out, err);
	free(rgb);
	return rc;
}

static int synth_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	const struct synth *s = ctx;
	struct vfm_video_opts opts = {.threads = 1};
	char *path = vfm_strdup(vfm_rec_str(rec, "src", ""));
	char hex[VFM_SHA256_HEX];
	struct vfm_synth scene;
	struct vfm_probe facts;
	int rc;

	(void)out, (void)worker;
	TRY_OUT(vfm_synth_init(&scene, &s->scene, (uint64_t)json_integer_value(json_object_get(rec, "number")), err));
	TRY_OUT(write_clip(s, &scene, path, err));
	TRY_OUT(vfm_sha256_file(path, NULL, hex, err));
	TRY_OUT(vfm_probe_file(&facts, path, &opts, false, err));
	hex[16] = 0;
	json_object_del(rec, "number");
	json_object_set_new(rec, "id", json_string(hex));
	curate_set_facts(rec, &facts);
	json_object_set_new(rec, "caption", json_string(scene.caption));
	json_object_set_new(rec, "synth",
		json_pack("{s:s,s:s,s:s}", "shape", scene.shape, "color", scene.color, "direction", scene.direction));
out:
	free(path);
	return rc;
}

static int parse_words(struct synth *s, const struct word_lists *w, struct vfm_err *err)
{
	for (int i = 0; i < VFM_SYNTH_WORDS; i++)
		if (w->list[i] && vfm_synth_parse(&s->scene.words[i], (enum vfm_synth_word)i, w->list[i], err) < 0)
			return vfm_err_context(err, "--%s", list_names[i]);
	return 0;
}

/* Returns a description of what changes the videos, to be freed. */
static char *describe_options(const struct synth *s, const struct word_lists *w)
{
	struct vfm_buf b = {0};

	vfm_buf_addf(&b, "seed %" PRId64 " size %dx%d frames %" PRId64 " fps %" PRId64, s->seed, s->scene.width,
		s->scene.height, s->frames, s->fps);
	for (int i = 0; i < VFM_SYNTH_WORDS; i++)
		if (w->list[i])
			vfm_buf_addf(&b, " %s %s", list_names[i], w->list[i]);
	return b.data;
}

static int check_synth_opts(struct synth *s, const char *size, struct vfm_err *err)
{
	struct vfm_synth probe;

	if (!s->n)
		return vfm_fail(err, VFM_EUSAGE, "--count N is missing: the number of videos");
	if (size)
		TRY(curate_parse_size(size, 2, 2, &s->scene.width, &s->scene.height, err));
	s->scene.frames = (int)s->frames;
	s->scene.seed = (uint64_t)s->seed;
	TRY(vfm_synth_init(&probe, &s->scene, 0, err));
	return vfm_mkdir_p(s->dir, err);
}

int curate_synth(int argc, char **argv, struct vfm_err *err)
{
	struct synth s = {.scene = {.width = 96, .height = 96}, .frames = 16, .fps = 8};
	struct word_lists words = {0};
	static const char *const outputs[] = {"src", NULL};
	struct vfm_stage stage = {.name = "synth",
		.fn = synth_record,
		.ctx = &s,
		.next = next_number,
		.source = &s,
		.key = "src",
		.outputs = outputs};
	char *options;
	const char *size = NULL;
	struct vfm_opt opts[] = {
		{VFM_OPT_INT, 0, "count", "N", "make N videos", &s.n, 1, 1e8},
		{VFM_OPT_STR, 'd', "dir", "DIR", "write them into DIR as 000000.mp4, 000001.mp4, ...", &s.dir,
			.required = true},
		{VFM_OPT_INT, 0, "seed", "N", "another seed, other videos (default 0)", &s.seed, 0, HUGE_VAL},
		{VFM_OPT_STR, 0, "size", "WxH", "pixels (default 96x96)", &size},
		{VFM_OPT_INT, 0, "frames", "N", "frames of a video (default 16)", &s.frames, 2, 10000},
		{VFM_OPT_INT, 0, "fps", "N", "frames a second (default 8)", &s.fps, 1, 240},
		{VFM_OPT_STR, 0, "shapes", "LIST", "shapes (default square,circle,triangle)",
			&words.list[VFM_SYNTH_SHAPE]},
		{VFM_OPT_STR, 0, "colors", "LIST", "colours (default red,green,blue,yellow); also: cyan, magenta",
			&words.list[VFM_SYNTH_COLOR]},
		{VFM_OPT_STR, 0, "directions", "LIST", "directions (default left,right,up,down)",
			&words.list[VFM_SYNTH_DIRECTION]},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate synth",
		.synopsis = "--count N -d DIR [OPTION ...]",
		.summary = "make small captioned videos of moving shapes",
		.opts = opts,
		.no_operands = true,
	};
	int n_operands = 0, rc = vfm_opt_parse(&cmd, argc, argv, &n_operands, err);

	if (rc != 0)
		return rc;
	TRY(parse_words(&s, &words, err));
	TRY(check_synth_opts(&s, size, err));
	stage.options = options = describe_options(&s, &words);
	rc = vfm_stage_run(&stage, NULL, err);
	free(options);
	return rc;
}
