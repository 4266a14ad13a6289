/* graph.c - builds buffer source, filters and sink of a chain, and passes frames through it. */
#include <inttypes.h>
#include <libavfilter/avfilter.h>
#include <libavfilter/buffersink.h>
#include <libavfilter/buffersrc.h>
#include <libavutil/channel_layout.h>
#include <libavutil/mem.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/av/av.h"
#include "media/av/graph.h"

struct vfm_graph {
	AVFilterGraph *graph;
	AVFilterContext *in, *out;
};

bool vfm_graph_has(const char *filters, char missing[32])
{
	while (*filters) {
		size_t n = strcspn(filters, ",");

		snprintf(missing, 32, "%.*s", (int)n, filters);
		if (!avfilter_get_by_name(missing))
			return false;
		filters += n + (filters[n] == ',');
	}
	return true;
}

static int graph_failed(int rc, const char *what, struct vfm_err *err)
{
	char buf[128];

	return vfm_fail(err, vfm_av_code(rc, VFM_EINPUT), "%s: %s", what, vfm_av_strerror(rc, buf));
}

/* Connects source, chain and sink. */
static int connect_chain(struct vfm_graph *g, const char *chain)
{
	AVFilterInOut *from = avfilter_inout_alloc(), *to = avfilter_inout_alloc();
	int rc = AVERROR(ENOMEM);

	if (from && to) {
		*from = (AVFilterInOut){av_strdup("in"), g->in, 0, NULL};
		*to = (AVFilterInOut){av_strdup("out"), g->out, 0, NULL};
		rc = avfilter_graph_parse_ptr(g->graph, chain, &to, &from, NULL);
	}
	avfilter_inout_free(&from);
	avfilter_inout_free(&to);
	return rc < 0 ? rc : avfilter_graph_config(g->graph, NULL);
}

static int build_graph(struct vfm_graph **out, const char *source, const char *args, const char *sink,
	const char *chain, struct vfm_err *err)
{
	struct vfm_graph *g = vfm_calloc(1, sizeof(*g));
	int rc = AVERROR(ENOMEM);

	vfm_av_init();
	vfm_av_forget_line();
	g->graph = avfilter_graph_alloc();
	if (g->graph) {
		g->graph->nb_threads = 1;
		rc = avfilter_graph_create_filter(&g->in, avfilter_get_by_name(source), "in", args, NULL, g->graph);
	}
	if (rc >= 0)
		rc = avfilter_graph_create_filter(&g->out, avfilter_get_by_name(sink), "out", NULL, NULL, g->graph);
	if (rc >= 0)
		rc = connect_chain(g, chain);
	if (rc < 0) {
		rc = graph_failed(rc, "cannot filter", err);
		if (*vfm_av_last_line())
			rc = vfm_fail(err, rc, "cannot filter: %s", vfm_av_last_line());
		vfm_graph_free(g);
		return rc;
	}
	*out = g;
	return 0;
}

int vfm_graph_video(
	struct vfm_graph **g, const AVFrame *like, AVRational time_base, const char *chain, struct vfm_err *err)
{
	char args[160];

	snprintf(args, sizeof(args), "video_size=%dx%d:pix_fmt=%d:time_base=%d/%d:pixel_aspect=1/1", like->width,
		like->height, like->format, time_base.num, time_base.den);
	return build_graph(g, "buffer", args, "buffersink", chain, err);
}

int vfm_graph_audio(
	struct vfm_graph **g, const AVFrame *like, AVRational time_base, const char *chain, struct vfm_err *err)
{
	char args[256], layout[64];
	AVChannelLayout channels = {0};

	if (like->ch_layout.order == AV_CHANNEL_ORDER_UNSPEC)
		av_channel_layout_default(&channels, like->ch_layout.nb_channels);
	else if (av_channel_layout_copy(&channels, &like->ch_layout) < 0)
		return vfm_fail(err, VFM_EENV, "out of memory");
	if (av_channel_layout_describe(&channels, layout, sizeof(layout)) < 0)
		layout[0] = 0;
	av_channel_layout_uninit(&channels);
	snprintf(args, sizeof(args), "sample_rate=%d:sample_fmt=%d:channel_layout=%s:time_base=%d/%d",
		like->sample_rate, like->format, layout, time_base.num, time_base.den);
	return build_graph(g, "abuffer", args, "abuffersink", chain, err);
}

void vfm_graph_free(struct vfm_graph *g)
{
	if (!g)
		return;
	avfilter_graph_free(&g->graph);
	free(g);
}

AVRational vfm_graph_time_base(const struct vfm_graph *g)
{
	return av_buffersink_get_time_base(g->out);
}

int vfm_graph_send(struct vfm_graph *g, AVFrame *f, struct vfm_err *err)
{
	int rc = av_buffersrc_add_frame_flags(g->in, f, f ? AV_BUFFERSRC_FLAG_KEEP_REF : 0);

	return rc < 0 ? graph_failed(rc, "cannot filter a frame", err) : 0;
}

int vfm_graph_receive(struct vfm_graph *g, AVFrame *f, struct vfm_err *err)
{
	int rc = av_buffersink_get_frame(g->out, f);

	if (rc == AVERROR(EAGAIN) || rc == AVERROR_EOF)
		return 0;
	return rc < 0 ? graph_failed(rc, "cannot filter a frame", err) : 1;
}
