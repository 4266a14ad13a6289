/* hash - perceptual hashes of clips and images, for dedup. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "io/opt.h"
#include "ahead.h"
#include "curate.h"
#include "media/match/clip_hash.h"

struct hash {
	struct vfm_video_opts video;
	double timeout_s;
};

json_t *curate_hash_json(const struct vfm_clip_hash *h)
{
	char *text = vfm_clip_hash_text(h);
	json_t *o = json_pack("{s:s,s:i,s:i}", "clip", text, "slots", (int)h->slots, "flat_slots",
		(int)h->slots - vfm_clip_hash_informative(h));

	free(text);
	return o;
}

static int hash_record(json_t *rec, struct vfm_stage_out *out, void *ctx, int worker, struct vfm_err *err)
{
	const struct hash *s = ctx;
	struct vfm_clip_hash_opts opts = {.video = s->video};
	struct vfm_clip_hash *h;
	json_t *ahead = vfm_ahead_take(rec, "hash");
	struct vfm_rec_media m;
	int rc;

	(void)out, (void)worker;
	if (ahead) {
		json_object_set_new(rec, "hash", ahead);
		return 0;
	}
	opts.video.limit = vfm_limit_start(s->timeout_s);
	TRY(vfm_rec_media(rec, &m, err));
	opts.start = m.start_frame;
	opts.end = m.end_frame;
	opts.start_pts = m.start_pts;
	h = vfm_malloc(sizeof(*h));
	rc = vfm_clip_hash_file(h, m.src, &opts, err);
	if (rc >= 0)
		json_object_set_new(rec, "hash", curate_hash_json(h));
	free(h);
	return rc;
}

static int parse_hash_options(struct hash *s, struct vfm_stage *stage, int argc, char **argv, struct vfm_err *err)
{
	struct vfm_opt opts[] = {
		VFM_TIMEOUT_OPT("give up on a clip after so long (default 3600)", &s->timeout_s),
		VFM_STAGE_OPTS(&stage->opts),
		{0},
	};
	struct vfm_cmd cmd = {
		.name = "vfm-curate hash",
		.synopsis = "[OPTION ...] [FILE ...]",
		.summary = "compute perceptual hashes of clips, for dedup",
		.opts = opts,
	};

	return curate_parse(&cmd, stage, argc, argv, err);
}

bool curate_hash_is_plain(int argc, char **argv)
{
	struct hash s = {.timeout_s = 3600};
	struct vfm_stage stage = {0};
	struct vfm_err err;

	return parse_hash_options(&s, &stage, argc, argv, &err) == 0 && !stage.n_files;
}

int curate_hash(int argc, char **argv, struct vfm_err *err)
{
	static const char *const reads[] = {"id", "src", "kind", "start_frame", "end_frame", "start_pts", NULL},
				 *const sets[] = {"hash", NULL};
	struct hash s = {.timeout_s = 3600};
	struct vfm_stage stage = {.name = "hash",
		.version = 3, /* 2: clips without their changes; 1: images without detail, dark lines as bars; 0: a dark
				 side of the picture could count as a bar */
		.fn = hash_record,
		.ctx = &s,
		.reads = reads,
		.sets = sets};
	int rc = parse_hash_options(&s, &stage, argc, argv, err);

	if (rc != 0)
		return rc;
	s.video.threads = stage.opts.jobs > 1 ? 1 : vfm_par_threads();
	return vfm_stage_run(&stage, NULL, err);
}
