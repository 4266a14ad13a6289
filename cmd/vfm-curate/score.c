/* score - scores of a clip: motion, luma, sharpness and others. */
#include <malloc.h>
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "encoder/exec/payload.h"
#include "io/json.h"
#include "io/opt.h"
#include "ahead.h"
#include "curate.h"
#include "exec_stage.h"
#include "media/score/score.h"

#define LETTERBOX "letterbox" /* the score that is no number */

/* A score that the clip does not allow is null. */
static json_t *rounded_json(double x)
{
	if (isnan(x))
		return json_null();
	return vfm_json_real(round(x * 1e4) / 1e4);
}

json_t *curate_score_json(const struct vfm_score *s)
{
	json_t *o = json_object(), *bars = json_array();

#define SET_SCORE(name) json_object_set_new(o, #name, rounded_json(s->name));
	VFM_SCORE_LIST(SET_SCORE)
#undef SET_SCORE
	for (int i = 0; i < 4; i++)
		json_array_append_new(bars, rounded_json(s->letterbox[i]));
	json_object_set_new(o, LETTERBOX, bars);
	return o;
}

struct score {
	struct vfm_video_opts video;
	struct curate_ahead ahead;
	struct exec_stage model; /* with --exec */
};

/* Adds scores to those of a record; takes the reference. */
static void add_scores(json_t *rec, json_t *scores)
{
	json_t *old = json_object_get(rec, "score");

	if (!json_is_object(old)) {
		json_object_set_new(rec, "score", scores);
		return;
	}
	json_object_update(old, scores);
	json_decref(scores);
}

static int score_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	struct score *s = ctx;
	struct vfm_score_opts opts = {.video = s->video};
	json_t *ahead = vfm_ahead_take(rec, "score");
	struct vfm_score score;
	struct vfm_rec_media m;

	(void)out, (void)worker;
	if (ahead) {
		add_scores(rec, ahead);
		return 0;
	}
	opts.video.limit = vfm_limit_start(s->model.timeout_s);
	TRY(vfm_rec_media(rec, &m, err));
	opts.start = m.start_frame;
	opts.end = m.end_frame;
	opts.start_pts = m.start_pts;
	opts.about = json_integer_value(json_object_get(rec, "frames"));
	if (!curate_ahead_is_wanted(&s->ahead) || curate_ahead_analyze(&s->ahead, rec, m.src, &opts, &score, err) < 0)
		TRY(vfm_score_file(&score, m.src, &opts, err));
	add_scores(rec, curate_score_json(&score));
	return 0;
}

/* Scores of a child: numbers under names that `filter --min NAME=X` can address. */
static int check_scores(const json_t *scores, struct vfm_err *err)
{
	const char *key;
	json_t *v;

	if (!json_is_object(scores) || json_object_size(scores) == 0)
		return vfm_fail(err, VFM_EINPUT, "the answer has no score of the form {\"NAME\":NUMBER}");
	json_object_foreach((json_t *)(uintptr_t)scores, key, v)
	{
		if (!vfm_is_plain_name(key, 64) || strpbrk(key, ".:/+-"))
			return vfm_fail(
				err, VFM_EINPUT, "score: expected names of letters, digits and _, got '%.64s'", key);
		if (!json_is_number(v))
			return vfm_fail(err, VFM_EINPUT, "score.%s: expected a number", key);
		if (!strcmp(key, LETTERBOX))
			return vfm_fail(err, VFM_EINPUT, "score.%s: this name is that of a built-in value", key);
	}
	return 0;
}

static int score_outside(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	const struct score *s = ctx;
	struct vfm_exec_slot *slot = vfm_exec_slot(s->model.exec, worker);
	json_t *request = vfm_outside_show(slot, &s->model.view, rec, err), *answer, *scores;
	int rc;

	(void)out;
	if (!request)
		return err->code;
	TRY(vfm_exec_call(slot, request, &answer, err));
	scores = json_object_get(answer, "score");
	rc = check_scores(scores, err);
	if (rc >= 0)
		add_scores(rec, json_incref(scores));
	json_decref(answer);
	return rc;
}

static int parse_score_options(struct score *s, struct vfm_stage *stage, int argc, char **argv, struct vfm_err *err)
{
	struct vfm_opt opts[] = {
		VFM_TIMEOUT_OPT("give up on a clip after so long (default 3600)", &s->model.timeout_s),
		EXEC_STAGE_OPTS(&s->model),
		VFM_EXEC_OPTS(&s->model.opts),
		VFM_STAGE_OPTS(&stage->opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate score",
		.synopsis = "[OPTION ...] [FILE ...]\n--exec CMD [OPTION ...] [FILE ...]",
		.summary = "score clips: motion, shake, light, colour, blur, blocking, repeated frames, bars, text",
		.opts = opts,
		.stage = &exec_stage_traits,
	};

	return curate_parse(&cmd, stage, argc, argv, err);
}

#define SCORE_DEFAULTS                                                                                                 \
	{                                                                                                              \
		.model = {.opts = VFM_EXEC_DEFAULTS, .timeout_s = 3600 }                                               \
	}

bool curate_score_is_plain(int argc, char **argv)
{
	struct score s = SCORE_DEFAULTS;
	struct vfm_stage stage = {0};
	struct vfm_err err;

	return parse_score_options(&s, &stage, argc, argv, &err) == 0 && !s.model.command && !stage.n_files;
}

int curate_score(int argc, char **argv, struct vfm_err *err)
{
	struct score s = SCORE_DEFAULTS;
	struct vfm_stage stage = {.name = "score",
		.version = 5, /* 4: depended on the size; images had scores of time */
		.fn = score_record,
		.ctx = &s};
	int rc = parse_score_options(&s, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	if (s.model.command) {
		stage.fn = score_outside;
		return exec_stage_run(&s.model, &stage, "score", NULL, err);
	}
	if (s.model.frames || s.model.fps > 0)
		return vfm_fail(err, VFM_EUSAGE, "--frames, --fps: only with --exec");
	TRY(vfm_exec_refuse_opts(&s.model.opts, "--exec CMD", err));
	s.video.threads = stage.opts.jobs > 1 ? 1 : vfm_par_threads();
	/* Each record allocates and frees some MiB.  If the allocator returns them to the kernel each time, a small
	 * picture takes a third longer. */
	mallopt(M_MMAP_THRESHOLD, 8 << 20);
	mallopt(M_TRIM_THRESHOLD, 64 << 20);
	s.ahead = (struct curate_ahead)CURATE_AHEAD("score", stage.opts.jobs);
	rc = vfm_stage_run(&stage, NULL, err);
	curate_ahead_release(&s.ahead);
	return rc;
}
