/* score - scores of a clip: motion, luma, sharpness and others. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/opt.h"
#include "base/par.h"
#include "curate.h"
#include "data/stage.h"
#include "media/score.h"

static json_t *rounded_json(double x)
{
	return vfm_json_real(round(x * 1e4) / 1e4);
}

static json_t *score_json(const struct vfm_score *s)
{
	json_t *o = json_object(), *bars = json_array();

	json_object_set_new(o, "motion", rounded_json(s->motion));
	json_object_set_new(o, "luma", rounded_json(s->luma));
	json_object_set_new(o, "contrast", rounded_json(s->contrast));
	json_object_set_new(o, "sharpness", rounded_json(s->sharpness));
	json_object_set_new(o, "colorfulness", rounded_json(s->colorfulness));
	json_object_set_new(o, "static_ratio", rounded_json(s->static_ratio));
	json_object_set_new(o, "black_ratio", rounded_json(s->black_ratio));
	for (int i = 0; i < 4; i++)
		json_array_append_new(bars, rounded_json(s->letterbox[i]));
	json_object_set_new(o, "letterbox", bars);
	json_object_set_new(o, "flicker", rounded_json(s->flicker));
	json_object_set_new(o, "text_ratio", rounded_json(s->text_ratio));
	return o;
}

struct score {
	struct vfm_video_opts video;
	double timeout_s;
};

static int score_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	const struct score *s = ctx;
	struct vfm_score_opts opts = {.video = s->video};
	struct vfm_score score;
	struct vfm_rec_media m;
	json_t *old, *now;

	(void)out, (void)worker;
	opts.video.limit = vfm_limit_start(s->timeout_s);
	TRY(vfm_rec_media(rec, &m, err));
	opts.start = m.start_frame;
	opts.end = m.end_frame;
	opts.start_pts = m.start_pts;
	opts.about = json_integer_value(json_object_get(rec, "frames"));
	TRY(vfm_score_file(&score, m.src, &opts, err));
	now = score_json(&score);
	old = json_object_get(rec, "score");
	if (json_is_object(old)) { /* keeps scores that other programs have set */
		json_object_update(old, now);
		json_decref(now);
	} else {
		json_object_set_new(rec, "score", now);
	}
	return 0;
}

int curate_score(int argc, char **argv, struct vfm_err *err)
{
	struct score s = {.timeout_s = 3600};
	struct vfm_stage stage = {.name = "score", .fn = score_record, .ctx = &s};
	struct vfm_opt opts[] = {
		{VFM_OPT_NUM, 0, "timeout", "SECONDS", "give up on a clip after so long (default 3600)", &s.timeout_s},
		VFM_STAGE_OPTS(&stage.opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate score",
		.synopsis = "[--timeout SECONDS] " VFM_STAGE_SYNOPSIS " [FILE ...]",
		.summary = "score clips: motion, luma, contrast, sharpness, colour, black, letterbox, flicker, text",
		.opts = opts,
	};
	int rc = vfm_opt_parse(&cmd, argc, argv, &stage.n_files, err);

	if (rc == VFM_OPT_DONE)
		return rc;
	if (rc == 0)
		rc = vfm_timeout_check(s.timeout_s, err);
	if (rc == 0) {
		stage.files = argv + 1;
		s.video.threads = stage.opts.jobs > 1 ? 1 : vfm_par_threads();
		rc = vfm_stage_run(&stage, NULL, err);
	}
	return rc;
}
