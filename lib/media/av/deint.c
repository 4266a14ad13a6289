/* deint.c - runs bwdif or yadif of FFmpeg, and starts the filters anew when the format changes. */
#include <libavutil/frame.h>
#include <stdlib.h>

#include "base/mem.h"
#include "media/av/deint.h"
#include "media/av/graph.h"

#define N_HELD  4 /* frames that wait to be received: at most one of the chain before and one that passes */
#define N_TIMES 8 /* more than the chain delays frames */

struct vfm_deint {
	bool all, ended;
	struct vfm_graph *graph; /* NULL before the first interlaced frame */
	int width, height, format;
	AVFrame *before; /* the last frame that passed without the chain */
	AVFrame *held[N_HELD];
	int n_held;
	/* The chain doubles timestamps and does not support missing ones, so the timestamps of its frames are kept
	 * here. */
	int64_t pts[N_TIMES];
	unsigned n_in, n_out;
	bool skip; /* the next frame of the chain was received before */
};

static AVFrame *new_frame(void)
{
	AVFrame *f = av_frame_alloc();

	if (!f)
		vfm_out_of_memory();
	return f;
}

struct vfm_deint *vfm_deint_new(bool all)
{
	struct vfm_deint *d = vfm_calloc(1, sizeof(*d));

	d->all = all;
	d->before = new_frame();
	for (int i = 0; i < N_HELD; i++)
		d->held[i] = new_frame();
	return d;
}

static void drop_deint_graph(struct vfm_deint *d)
{
	vfm_graph_free(d->graph);
	d->graph = NULL;
	d->n_in = d->n_out = 0;
	d->skip = false;
}

void vfm_deint_reset(struct vfm_deint *d)
{
	drop_deint_graph(d);
	av_frame_unref(d->before);
	for (int i = 0; i < N_HELD; i++)
		av_frame_unref(d->held[i]);
	d->n_held = 0;
	d->ended = false;
}

void vfm_deint_free(struct vfm_deint *d)
{
	if (!d)
		return;
	vfm_deint_reset(d);
	av_frame_free(&d->before);
	for (int i = 0; i < N_HELD; i++)
		av_frame_free(&d->held[i]);
	free(d);
}

static int enter_graph(struct vfm_deint *d, AVFrame *f, struct vfm_err *err)
{
	int64_t pts = f->pts;
	int rc;

	d->pts[d->n_in % N_TIMES] = pts;
	f->pts = d->n_in++;
	rc = vfm_graph_send(d->graph, f, err);
	f->pts = pts;
	return rc;
}

/* Receives a frame of the chain with its own timestamp. */
static int leave_graph(struct vfm_deint *d, AVFrame *f, struct vfm_err *err)
{
	int rc;

	while (d->graph && (rc = vfm_graph_receive(d->graph, f, err)) != 0) {
		if (rc < 0)
			return rc;
		f->pts = d->pts[d->n_out++ % N_TIMES];
		if (!d->skip)
			return 1;
		d->skip = false;
		av_frame_unref(f);
	}
	return 0;
}

static int hold_rest(struct vfm_deint *d, struct vfm_err *err)
{
	int rc;

	TRY(vfm_graph_send(d->graph, NULL, err));
	while (d->n_held < N_HELD && (rc = leave_graph(d, d->held[d->n_held], err)) == 1)
		d->n_held++;
	drop_deint_graph(d);
	return 0;
}

static int start_graph(struct vfm_deint *d, const AVFrame *f, struct vfm_err *err)
{
	char chain[64], missing[32];
	const char *name = vfm_graph_has("bwdif", missing) ? "bwdif" : "yadif";

	if (!vfm_graph_has(name, missing))
		return vfm_fail(err, VFM_EINPUT,
			"an interlaced video needs FFmpeg's filter %s, which this build lacks (clip: --deinterlace "
			"off)",
			missing);
	snprintf(chain, sizeof(chain), "%s=mode=send_frame:deint=%s", name, d->all ? "all" : "interlaced");
	TRY(vfm_graph_video(&d->graph, f, (AVRational){1, 25}, chain, err));
	d->width = f->width;
	d->height = f->height;
	d->format = f->format;
	if (!d->before->buf[0] || d->before->width != f->width || d->before->height != f->height ||
		d->before->format != f->format)
		return 0;
	d->skip = true;
	return enter_graph(d, d->before, err);
}

int vfm_deint_send(struct vfm_deint *d, AVFrame *f, struct vfm_err *err)
{
	int rc = 0;

	if (!f) {
		if (!d->ended && d->graph)
			rc = hold_rest(d, err);
		d->ended = true;
		return rc;
	}
	if (d->graph && (f->width != d->width || f->height != d->height || f->format != d->format))
		TRY(hold_rest(d, err));
	if (!d->graph && (d->all || f->interlaced_frame))
		TRY(start_graph(d, f, err));
	av_frame_unref(d->before);
	if (d->graph) {
		rc = enter_graph(d, f, err);
		av_frame_unref(f);
		return rc;
	}
	if (av_frame_ref(d->before, f) < 0)
		return vfm_fail(err, VFM_EENV, "out of memory");
	av_frame_move_ref(d->held[d->n_held++], f);
	return 0;
}

int vfm_deint_receive(struct vfm_deint *d, AVFrame *f, struct vfm_err *err)
{
	AVFrame *first = d->held[0];

	if (!d->n_held)
		return leave_graph(d, f, err);
	av_frame_move_ref(f, first);
	d->n_held--;
	for (int i = 0; i < d->n_held; i++)
		d->held[i] = d->held[i + 1];
	d->held[d->n_held] = first;
	return 1;
}
