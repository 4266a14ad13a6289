/* text_lines VIDEO PLAIN - the lines of VIDEO that the model of lib/media/score/text.h is applied to, one JSON object a
 * line: {"overlay":0.2,"f":[...]}.  `overlay` is the share of the pixels in the box of the line that differ from PLAIN,
 * the same frames without an overlay.  For bench/text-calibrate. */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "media/av/video_in.h"
#include "media/score/score.h"
#include "media/score/text.h"

enum { GROUP = 8, DIFFERENT = 10 /* levels, of the mean of a group */ };

struct pair {
	struct vfm_video *v[2];
	uint8_t *luma[2];
	int *sum[2]; /* of the frames of the group */
	int n, w, h;
};

static void print_line(void *ctx, const struct vfm_text_line *l)
{
	const struct pair *p = ctx;
	int different = 0, all = 0;

	for (int y = l->top; y < l->bottom + 1; y++)
		for (int x = l->left; x < l->right + 1; x++, all++)
			different += abs(p->sum[0][y * p->w + x] - p->sum[1][y * p->w + x]) > DIFFERENT * p->n;
	printf("{\"overlay\":%.4f,\"f\":[", (double)different / all);
	for (int k = 0; k < VFM_TEXT_FEATURES; k++)
		printf("%s%.5g", k ? "," : "", l->f[k]);
	printf("]}\n");
}

/* Takes the frame that both videos decoded last. */
static int take_pair(struct pair *p, struct vfm_text *t, struct vfm_err *err)
{
	if (p->n == GROUP)
		p->n = 0;
	for (int k = 0; k < 2; k++) {
		int rc = vfm_video_luma(p->v[k], p->w, p->h, VFM_FIT_STRETCH, p->luma[k], err);

		if (rc < 0)
			return rc;
		for (int i = 0; i < p->w * p->h; i++)
			p->sum[k][i] = (p->n ? p->sum[k][i] : 0) + p->luma[k][i];
	}
	p->n++;
	vfm_text_add(t, p->luma[0]);
	return 0;
}

/* Reads the frames that `score` may examine. */
static int read_pair(struct pair *p, const char *const *paths, struct vfm_err *err)
{
	const struct vfm_video_info *info;
	struct vfm_text *t;
	struct vfm_frame f;
	int64_t step;
	int rc = 0;

	for (int k = 0; k < 2 && rc == 0; k++)
		rc = vfm_video_open(&p->v[k], paths[k], NULL, err);
	if (rc < 0)
		return rc;
	info = vfm_video_info(p->v[0]);
	step = vfm_score_step(info);
	vfm_score_size(info, &p->w, &p->h);
	for (int k = 0; k < 2; k++) {
		p->luma[k] = vfm_malloc((size_t)p->w * (size_t)p->h);
		p->sum[k] = vfm_malloc((size_t)p->w * (size_t)p->h * sizeof(int));
	}
	t = vfm_text_new(p->w, p->h);
	vfm_text_watch(t, print_line, p);
	for (int64_t i = 0; rc >= 0; i++) {
		if ((rc = vfm_video_next(p->v[0], &f, err)) != 1 || (rc = vfm_video_next(p->v[1], &f, err)) != 1)
			break;
		if (i % step == 0)
			rc = take_pair(p, t, err);
	}
	vfm_text_end(t);
	vfm_text_free(t);
	return rc;
}

int main(int argc, char **argv)
{
	struct pair p = {0};
	struct vfm_err err = {0};
	int rc;

	if (argc != 3)
		return 2;
	rc = read_pair(&p, (const char *const *)argv + 1, &err);
	if (rc < 0)
		fprintf(stderr, "%s\n", err.msg);
	for (int k = 0; k < 2; k++) {
		vfm_video_close(p.v[k]);
		free(p.luma[k]);
		free(p.sum[k]);
	}
	return rc < 0;
}
