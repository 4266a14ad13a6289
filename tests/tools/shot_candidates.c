/* shot_candidates VIDEO - the candidates for cuts of a video with the numbers of their models (media/shots/scene.h),
 * one JSON object a line: {"kind":0,"from":12,"frame":12,"f":[...]}; without those that have no model.  For
 * bench/shots-calibrate. */
#include <stdio.h>

#include "media/av/video_in.h"
#include "media/shots/scene.h"

static int read_video(struct vfm_scene **s, const char *path, struct vfm_err *err)
{
	struct vfm_thumb thumb;
	const struct vfm_video_info *info;
	struct vfm_video *v;
	struct vfm_frame f;
	int rc = vfm_video_open(&v, path, &(struct vfm_video_opts){.draft = true}, err);

	if (rc < 0)
		return rc;
	info = vfm_video_info(v);
	*s = vfm_scene_new((double)info->fps_num / info->fps_den);
	while ((rc = vfm_video_next(v, &f, err)) == 1 && rc > 0) {
		rc = vfm_video_thumb(v, &thumb, err);
		if (rc < 0)
			break;
		vfm_scene_push(*s, &thumb);
	}
	vfm_video_close(v);
	return rc;
}

int main(int argc, char **argv)
{
	struct vfm_scene *s = NULL;
	const struct vfm_cut_candidate *c;
	struct vfm_err err = {0};
	int64_t n = 0;

	if (argc != 2)
		return 2;
	if (read_video(&s, argv[1], &err) < 0) {
		fprintf(stderr, "%s\n", err.msg);
		return 1;
	}
	c = vfm_scene_candidates(s, &n);
	for (int64_t i = 0; i < n; i++) {
		if (c[i].sure)
			continue;
		printf("{\"kind\":%d,\"from\":%lld,\"frame\":%lld,\"f\":[", (int)c[i].kind, (long long)c[i].from,
			(long long)c[i].frame);
		for (int k = 0; k < VFM_SCENE_FEATURES; k++)
			printf("%s%.5g", k ? "," : "", (double)c[i].f[k]);
		printf("]}\n");
	}
	vfm_scene_free(s);
	return 0;
}
