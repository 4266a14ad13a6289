/* split - one record per file -> one record per clip, and per range of frames that belongs to no clip. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/par.h"
#include "encoder/exec/payload.h"
#include "io/json.h"
#include "io/opt.h"
#include "ahead.h"
#include "curate.h"
#include "data/record/reasons.h"
#include "encoder/exec/shot_model.h"
#include "exec_stage.h"
#include "media/shots/shots.h"

struct split {
	struct vfm_shots_opts shots;
	double timeout_s;
	bool no_captions;
	struct exec_stage model; /* with --exec */
	struct curate_ahead ahead;
	_Atomic int64_t damaged, damaged_us; /* frames of clips that are kept, and their microseconds */
};

static void set_seconds(json_t *rec, const char *key, double s)
{
	json_object_set_new(rec, key, vfm_json_real(round(s * 1e6) / 1e6));
}

static void set_confidence(json_t *rec, const char *key, double confidence)
{
	if (confidence >= 0)
		json_object_set_new(rec, key, vfm_json_real(round(confidence * 1e3) / 1e3));
}

/* Removes the captions of the whole video. */
static void remove_captions(json_t *rec)
{
	json_object_del(rec, "caption");
	json_object_del(rec, "caption_maker");
	json_object_del(rec, "windows");
}

/* Drops the record of a span that is not for use. */
static void drop_span(json_t *clip, const struct vfm_span *c, double min_s)
{
	static const char *const names[] = {
		[VFM_CUT_HARD] = "cut", [VFM_CUT_DISSOLVE] = "dissolve", [VFM_CUT_FADE] = "fade"};
	char least[VFM_REAL_TEXT];

	if (c->kind == VFM_SPAN_SHORT) {
		vfm_stage_drop(clip, "split", "shorter than %s s", vfm_real_text(least, min_s));
	} else if (c->kind == VFM_SPAN_TRANSITION) {
		json_object_set_new(clip, "transition", json_string(names[c->transition]));
		vfm_stage_drop(clip, "split", "in a transition");
	}
}

json_t *curate_span_keys(const struct vfm_shots *s, int64_t i, double min_s)
{
	const struct vfm_span *c = &s->spans[i];
	json_t *keys = json_object();

	json_object_set_new(keys, "start_frame", json_integer(c->start));
	json_object_set_new(keys, "end_frame", json_integer(c->end));
	set_seconds(keys, "start_s", s->time_s[c->start]);
	set_seconds(keys, "end_s", s->time_s[c->end]);
	if (s->pts)
		json_object_set_new(keys, "start_pts", json_integer(s->pts[c->start]));
	json_object_set_new(keys, "frames", json_integer(c->end - c->start));
	set_seconds(keys, "duration_s", vfm_shots_length_s(s, c));
	set_confidence(keys, "start_confidence", c->start_confidence);
	set_confidence(keys, "end_confidence", c->end_confidence);
	json_object_set_new(keys, "damaged_frames", json_integer(s->damaged[c->end] - s->damaged[c->start]));
	drop_span(keys, c, min_s);
	return keys;
}

/* Adds up the damaged frames of a clip that is kept. */
static void count_damaged(struct split *sp, const json_t *keys)
{
	double damaged = 0, frames = 0, duration_s = 0;

	if (json_object_get(keys, "drop") || !vfm_rec_num(keys, "damaged_frames", &damaged) || damaged <= 0 ||
		!vfm_rec_num(keys, "frames", &frames) || !vfm_rec_num(keys, "duration_s", &duration_s))
		return;
	sp->damaged += (int64_t)damaged;
	sp->damaged_us += llrint(1e6 * duration_s * damaged / fmax(frames, 1));
}

/* Emits a record for each span of a video. */
static void emit_spans(struct split *sp, struct vfm_stage_out *out, const json_t *rec, const json_t *spans)
{
	const char *parent = vfm_rec_str(rec, "id", "");
	json_int_t transitions = 0;
	json_t *keys, *clip;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)spans, i, keys) transitions +=
		json_object_get(keys, "transition") != NULL;
	json_array_foreach((json_t *)(uintptr_t)spans, i, keys)
	{
		clip = json_deep_copy(rec);
		json_object_set_new(clip, "id",
			json_sprintf("%s-%lld", parent,
				(long long)json_integer_value(json_object_get(keys, "start_frame"))));
		json_object_set_new(clip, "parent", json_string(parent));
		json_object_set_new(clip, "siblings", json_integer((json_int_t)json_array_size(spans) - transitions));
		json_object_set_new(clip, "transitions", json_integer(transitions));
		json_object_update(clip, keys);
		count_damaged(sp, keys);
		vfm_stage_emit(out, clip);
	}
}

/* Finds the shots of the file of a record, with the child's help if there is one. */
static int read_shots(const struct split *sp, const struct vfm_shots_opts *o, const char *id, const char *src,
	int worker, struct vfm_shots *shots, struct vfm_err *err)
{
	struct vfm_shots_opts opts = *o;
	struct vfm_shot_detector detector;
	struct vfm_shot_model *model;
	int rc;

	if (!sp->model.command)
		return vfm_shots_file(shots, src, &opts, err);
	TRY(vfm_shot_model_new(&model, vfm_exec_slot(sp->model.exec, worker), vfm_exec_hello(sp->model.exec), id, err));
	detector = vfm_shot_model_detector(model, opts.threshold);
	opts.detector = &detector;
	rc = vfm_shots_file(shots, src, &opts, err);
	vfm_shot_model_free(model);
	return rc;
}

/* Returns whether a record has the rate and times that were measured. */
static bool has_facts(const json_t *rec, const struct vfm_probe *p)
{
	json_t *facts = json_object();
	bool same;

	curate_set_facts(facts, p);
	same = json_equal(json_object_get(rec, "fps"), json_object_get(facts, "fps")) &&
		json_is_true(json_object_get(rec, "vfr")) == p->vfr &&
		json_is_true(json_object_get(rec, "bad_times")) == p->bad_times;
	json_decref(facts);
	return same;
}

/* Makes the keys of each span, and the results of its clip for later stages; the caller owns *spans. */
static int find_spans(
	struct split *sp, const json_t *rec, const char *src, int worker, json_t **spans, struct vfm_err *err)
{
	struct vfm_pass_opts o = {.shots = sp->shots, .video = sp->shots.video};
	const char *id = vfm_rec_str(rec, "id", NULL);
	struct vfm_pass pass;

	o.video.limit = o.shots.video.limit = vfm_limit_start(sp->timeout_s);
	if (!sp->model.command && curate_ahead_is_wanted(&sp->ahead)) {
		curate_ahead_pass_opts(&sp->ahead, id, &o);
		o.facts = o.cut != NULL;
		TRY(vfm_pass_file(&pass, src, &o, err));
		if (o.cut && !has_facts(rec, &pass.probe)) /* clip goes by the record */
			vfm_pass_discard_clips(&pass);
		*spans = curate_ahead_spans(&pass, o.shots.min_s);
		vfm_pass_release(&pass);
		if (json_array_size(*spans))
			return 0;
		json_decref(*spans); /* no shots: what follows says why */
	}
	pass = (struct vfm_pass){0};
	TRY(read_shots(sp, &o.shots, id, src, worker, &pass.shots, err));
	*spans = curate_ahead_spans(&pass, o.shots.min_s);
	vfm_pass_release(&pass);
	return 0;
}

static int split_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	struct split *sp = ctx;
	json_t *spans = vfm_ahead_take(rec, "split");
	struct vfm_rec_media m;
	int rc = 0;

	TRY_OUT(vfm_rec_media(rec, &m, err));
	if (m.is_image)
		goto out;
	if (json_object_get(rec, "start_frame") || json_object_get(rec, "parent"))
		TRY_OUT(vfm_fail(err, VFM_EINPUT, "the record is already a clip"));
	if (!vfm_rec_str(rec, "id", NULL))
		TRY_OUT(vfm_fail(err, VFM_EINPUT, "the record has no id"));
	if (!spans)
		TRY_OUT(find_spans(sp, rec, m.src, worker, &spans, err));
	if (sp->no_captions)
		remove_captions(rec);
	emit_spans(sp, out, rec, spans);
out:
	json_decref(spans);
	return rc;
}

/* The options that change the clips (data/record/stage.h). */
static char *split_options(const struct split *sp, const char *detector)
{
	const struct vfm_shots_opts *o = &sp->shots;
	char min_s[VFM_REAL_TEXT], max_s[VFM_REAL_TEXT], threshold[VFM_REAL_TEXT];

	return vfm_strfmt("detector %s min-s %s max-s %s threshold %s hard-only %d%s", detector,
		vfm_real_text(min_s, o->min_s), vfm_real_text(max_s, o->max_s), vfm_real_text(threshold, o->threshold),
		o->hard_only, sp->no_captions ? " no-captions" : "");
}

enum { NOT_GIVEN = -1, CONTENT, STRIDE };

/* VFM_EUSAGE: options that contradict each other. */
static int check_split(const struct split *sp, int detector, struct vfm_err *err)
{
	const struct vfm_shots_opts *o = &sp->shots;

	if (sp->model.command && detector != NOT_GIVEN)
		return vfm_fail(err, VFM_EUSAGE, "expected one of --exec and --detector");
	if (sp->model.command && o->hard_only)
		return vfm_fail(err, VFM_EUSAGE, "--hard-only: not with --exec");
	if (!sp->model.command)
		TRY(vfm_exec_refuse_opts(&sp->model.opts, "--exec CMD", err));
	if (o->max_s > 0 && o->max_s < o->min_s)
		return vfm_fail(err, VFM_EUSAGE, "--min-s, --max-s: expected min <= max");
	if (detector == STRIDE && o->max_s == 0)
		return vfm_fail(err, VFM_EUSAGE, "--detector stride: set --max-s, the length of the clips");
	return 0;
}

#define SPLIT_DEFAULTS                                                                                                 \
	{                                                                                                              \
		.shots = {.min_s = 1, .max_s = 30, .threshold = VFM_SCENE_THRESHOLD}, .timeout_s = 3600, .model = {    \
			.opts = VFM_EXEC_DEFAULTS,                                                                     \
			.timeout_s = 3600,                                                                             \
			.shows_windows = true                                                                          \
		}                                                                                                      \
	}

/* Sets *detector to the number of the option, or NOT_GIVEN. */
static int parse_split_options(
	struct split *sp, struct vfm_stage *stage, int *detector, int argc, char **argv, struct vfm_err *err)
{
	struct vfm_opt opts[] = {
		{VFM_OPT_NAME, 0, "detector", "content|stride", "content (default): cuts, dissolves, fades", detector},
		{VFM_OPT_NUM, 0, "min-s", "SECONDS", "drop clips shorter than this (default 1)", &sp->shots.min_s, 0,
			HUGE_VAL},
		{VFM_OPT_NUM, 0, "max-s", "SECONDS", "cut clips longer than this; the stride (default 30, 0 = any)",
			&sp->shots.max_s, 0, HUGE_VAL},
		{VFM_OPT_NUM, 0, "threshold", "X", "minimum confidence of a cut, 0 to 1; lower cuts more (default 0.5)",
			&sp->shots.threshold, VFM_ABOVE_0, VFM_BELOW_1},
		{VFM_OPT_FLAG, 0, "hard-only", NULL, "look for hard cuts only", &sp->shots.hard_only},
		{VFM_OPT_FLAG, 0, "no-captions", NULL, "clips do not get the caption of their video", &sp->no_captions},
		VFM_TIMEOUT_OPT("give up on a file after so long (default 3600)", &sp->timeout_s),
		{VFM_OPT_STR, 0, "exec", "CMD", "a learnt detector: -j N children that speak vfm-exec(7)",
			&sp->model.command},
		VFM_EXEC_OPTS(&sp->model.opts),
		VFM_STAGE_OPTS(&stage->opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate split",
		.synopsis = "[OPTION ...] [FILE ...]\n--exec CMD [OPTION ...] [FILE ...]",
		.summary = "find the shots of videos, one record per clip",
		.opts = opts,
		.stage = &exec_stage_traits,
	};
	int rc;

	*detector = NOT_GIVEN;
	rc = curate_parse(&cmd, stage, argc, argv, err);
	if (rc != 0)
		return rc;
	TRY(check_split(sp, *detector, err));
	sp->shots.stride = *detector == STRIDE;
	sp->shots.video.threads = sp->model.command || stage->opts.jobs > 1 ? 1 : vfm_par_threads();
	return 0;
}

bool curate_split_opts(int argc, char **argv, struct vfm_shots_opts *o)
{
	struct split sp = SPLIT_DEFAULTS;
	struct vfm_stage stage = {0};
	struct vfm_err err;
	int detector;

	if (parse_split_options(&sp, &stage, &detector, argc, argv, &err) != 0 || sp.model.command || stage.n_files)
		return false;
	*o = sp.shots;
	return true;
}

int curate_split(int argc, char **argv, struct vfm_err *err)
{
	struct split sp = SPLIT_DEFAULTS;
	struct vfm_stage stage = {.name = "split",
		.version = 6, /* 5: frames in no clip had no record, pictures of one colour were no shots, fades took
				 frames of shots, and the pixels had no loop filter */
		.fn = split_record,
		.ctx = &sp,
		.one_to_many = true};
	char *options, seconds[VFM_DURATION_TEXT];
	int detector, rc;

	rc = parse_split_options(&sp, &stage, &detector, argc, argv, err);
	if (rc != 0)
		return rc;
	sp.ahead = (struct curate_ahead)CURATE_AHEAD("split", stage.opts.jobs);
	options = split_options(&sp, sp.model.command ? "exec" : sp.shots.stride ? "stride" : "content");
	if (sp.model.command) {
		rc = exec_stage_run(&sp.model, &stage, "shots", options, err);
	} else {
		stage.options = options;
		rc = vfm_stage_run(&stage, NULL, err);
	}
	if (sp.damaged)
		vfm_info("kept clips have %lld damaged frames, %s: damaged_frames", (long long)sp.damaged,
			vfm_duration_text(seconds, (double)sp.damaged_us / 1e6));
	curate_ahead_release(&sp.ahead);
	free(options);
	return rc;
}
