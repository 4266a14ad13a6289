/* shots.c - see shots.h. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "media/shots.h"

struct reading {
	struct vfm_shots *s;
	size_t cap_t, cap_p, cap_e;
	bool bad_times, bad_pts;
	struct vfm_scene *scene;
	uint8_t rgb[VFM_SIG_W * VFM_SIG_H * 3];
};

static int score_frame(struct reading *r, struct vfm_video *v, const struct vfm_frame *f, struct vfm_err *err)
{
	struct vfm_shots *s = r->s;
	int64_t n = s->frames++;

	vfm_grow(&s->time_s, &r->cap_t, (size_t)n + 2, sizeof(s->time_s[0]));
	vfm_grow(&s->pts, &r->cap_p, (size_t)n + 1, sizeof(s->pts[0]));
	vfm_grow(&s->damaged, &r->cap_e, (size_t)n + 2, sizeof(s->damaged[0]));
	s->time_s[n] = f->time_s;
	s->pts[n] = f->pts;
	s->damaged[n + 1] = (n ? s->damaged[n] : 0) + f->damaged;
	if (f->pts == INT64_MIN || (n && f->pts <= s->pts[n - 1]))
		r->bad_pts = true;
	if (n && (!(f->time_s > s->time_s[n - 1]) || f->time_s - s->time_s[n - 1] > 60))
		r->bad_times = true;
	if (!r->scene)
		return 0;
	TRY(vfm_video_rgb(v, VFM_SIG_W, VFM_SIG_H, VFM_FIT_STRETCH, r->rgb, err));
	vfm_scene_push(r->scene, r->rgb);
	return 0;
}

static void find_shots(struct reading *r, const struct vfm_shots_opts *o)
{
	struct vfm_shots *s = r->s;
	struct vfm_clip_rule rule = {
		.min = (int64_t)ceil(o->min_s * s->fps - 1e-6),
		.max = (int64_t)fmax(1, floor(o->max_s * s->fps + 1e-6)),
	};
	const struct vfm_cut *cuts = NULL;
	int64_t n_cuts = 0;

	if (o->max_s <= 0)
		rule.max = 0;
	if (o->stride)
		rule.stride = rule.max ? rule.max : s->frames;
	if (rule.min < 1)
		rule.min = 1;
	s->damaged[0] = 0;
	for (int64_t i = 0; r->bad_times && i < s->frames; i++)
		s->time_s[i] = (double)i / s->fps;
	s->time_s[s->frames] = s->time_s[s->frames - 1] + 1 / s->fps;
	if (r->bad_pts) {
		free(s->pts);
		s->pts = NULL;
	}
	if (r->scene)
		cuts = vfm_scene_cuts(r->scene, o->threshold, !o->hard_only, &n_cuts);
	s->n = vfm_clips_of(s->frames, cuts, n_cuts, &rule, &s->spans);
}

int vfm_shots_file(struct vfm_shots *s, const char *path, const struct vfm_shots_opts *o, struct vfm_err *err)
{
	struct reading r = {.s = s};
	struct vfm_video_opts video = o->video;
	const struct vfm_video_info *info;
	struct vfm_video *v;
	struct vfm_frame f;
	int rc;

	*s = (struct vfm_shots){0};
	video.draft = true;
	TRY(vfm_video_open(&v, path, &video, err));
	info = vfm_video_info(v);
	s->fps = o->fps > 0 ? o->fps : info->fps_num ? (double)info->fps_num / info->fps_den : 25;
	r.scene = o->stride ? NULL : vfm_scene_new();
	while ((rc = vfm_video_next(v, &f, err)) == 1) {
		rc = score_frame(&r, v, &f, err);
		if (rc < 0)
			break;
	}
	if (rc == 0 && s->frames == 0)
		rc = vfm_fail(err, VFM_EINPUT, "'%s': no frame can be decoded", path);
	if (rc == 0)
		find_shots(&r, o);
	else
		vfm_shots_release(s);
	vfm_scene_free(r.scene);
	vfm_video_close(v);
	return rc;
}

void vfm_shots_release(struct vfm_shots *s)
{
	free(s->spans);
	free(s->time_s);
	free(s->pts);
	free(s->damaged);
	*s = (struct vfm_shots){0};
}
