/* sdr.c - builds a chain of zscale and tonemap filters for the properties of a frame. */
#include <libavutil/mastering_display_metadata.h>
#include <libavutil/pixdesc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/av/graph.h"
#include "media/av/sdr.h"

#define REFERENCE_WHITE 203 /* cd/m2, ITU-R BT.2408 */
#define NOMINAL_PEAK    1000

struct vfm_sdr {
	struct vfm_graph *graph;
	AVFrame *out;
	int width, height, trc, peak;
	bool luma;
};

static bool is_hdr(const AVFrame *f)
{
	return f->color_trc == AVCOL_TRC_SMPTE2084 || f->color_trc == AVCOL_TRC_ARIB_STD_B67;
}

bool vfm_sdr_is_due(const AVFrame *f)
{
	return is_hdr(f) || f->color_primaries == AVCOL_PRI_BT2020;
}

/* The brightest light of the video in cd/m2. */
static int peak_light_of(const AVFrame *f)
{
	const AVFrameSideData *light = av_frame_get_side_data(f, AV_FRAME_DATA_CONTENT_LIGHT_LEVEL);
	const AVFrameSideData *display = av_frame_get_side_data(f, AV_FRAME_DATA_MASTERING_DISPLAY_METADATA);
	double peak = 0;

	if (f->color_trc == AVCOL_TRC_ARIB_STD_B67)
		return NOMINAL_PEAK;
	if (light && light->size >= sizeof(AVContentLightMetadata))
		peak = ((const AVContentLightMetadata *)(const void *)light->data)->MaxCLL;
	if (peak < 1 && display && display->size >= sizeof(AVMasteringDisplayMetadata)) {
		const AVMasteringDisplayMetadata *m = (const void *)display->data;

		if (m->has_luminance && m->max_luminance.den)
			peak = av_q2d(m->max_luminance);
	}
	if (!(peak >= 1))
		peak = NOMINAL_PEAK;
	return (int)lrint(fmin(fmax(peak, REFERENCE_WHITE), 10000));
}

static int make_chain(struct vfm_sdr *s, const AVFrame *rgb, struct vfm_err *err)
{
	bool hdr = is_hdr(rgb), hlg = rgb->color_trc == AVCOL_TRC_ARIB_STD_B67;
	char chain[320], curve[64] = "", missing[32];

	if (!vfm_graph_has(hdr ? "zscale,tonemap" : "zscale", missing))
		return vfm_fail(err, VFM_EINPUT,
			"colours of %s need FFmpeg's filter %s, which this build lacks (clip: --sdr off)",
			hdr ? "high dynamic range" : "BT.2020", missing);
	if (hdr)
		snprintf(curve, sizeof(curve), "tonemap=tonemap=mobius:desat=0:peak=%.4f,",
			(double)s->peak / REFERENCE_WHITE);
	/* With its approximation of transfer functions, zscale applies the system gamma of HLG to each channel, instead
	 * of to the luminance (ITU-R BT.2100, table 5). */
	snprintf(chain, sizeof(chain),
		"zscale=t=linear:npl=%d%s,format=gbrpf32le,zscale=p=bt709,%szscale=t=bt709:m=%s:r=full,format=%s",
		REFERENCE_WHITE, hlg ? ":agamma=0" : "", curve, s->luma ? "bt709" : "gbr",
		s->luma ? "yuv444p" : "gbrp");
	return vfm_graph_video(&s->graph, rgb, (AVRational){1, 25}, chain, err);
}

/* Makes the chain for frames like `rgb`, unless the last one serves. */
static int need_chain(struct vfm_sdr *s, const AVFrame *rgb, int peak, bool luma, struct vfm_err *err)
{
	if (s->graph && s->width == rgb->width && s->height == rgb->height && s->trc == (int)rgb->color_trc &&
		s->peak == peak && s->luma == luma)
		return 0;
	vfm_graph_free(s->graph);
	s->graph = NULL;
	s->width = rgb->width;
	s->height = rgb->height;
	s->trc = (int)rgb->color_trc;
	s->peak = peak;
	s->luma = luma;
	return make_chain(s, rgb, err);
}

/* The labels of a frame; HDR without primaries is BT.2020. */
static void set_labels(AVFrame *rgb, const AVFrame *source)
{
	rgb->colorspace = AVCOL_SPC_RGB;
	rgb->color_range = AVCOL_RANGE_JPEG;
	rgb->color_trc = source->color_trc == AVCOL_TRC_UNSPECIFIED ? AVCOL_TRC_BT709 : source->color_trc;
	rgb->color_primaries =
		source->color_primaries == AVCOL_PRI_UNSPECIFIED ? AVCOL_PRI_BT2020 : source->color_primaries;
}

static void copy_pixels(const AVFrame *f, bool luma, uint8_t *dst, size_t stride)
{
	for (int y = 0; y < f->height; y++, dst += stride) {
		const uint8_t *g = f->data[0] + (ptrdiff_t)y * f->linesize[0];
		const uint8_t *b = f->data[1] + (ptrdiff_t)y * f->linesize[1];
		const uint8_t *r = f->data[2] + (ptrdiff_t)y * f->linesize[2];

		if (luma) {
			memcpy(dst, g, (size_t)f->width);
			continue;
		}
		for (int x = 0; x < f->width; x++) {
			dst[3 * x] = r[x];
			dst[3 * x + 1] = g[x];
			dst[3 * x + 2] = b[x];
		}
	}
}

void vfm_sdr_free(struct vfm_sdr *s)
{
	if (!s)
		return;
	vfm_graph_free(s->graph);
	av_frame_free(&s->out);
	free(s);
}

int vfm_sdr_run(struct vfm_sdr **sdr, const AVFrame *source, AVFrame *rgb, bool luma, uint8_t *dst, size_t stride,
	struct vfm_err *err)
{
	struct vfm_sdr *s = *sdr;
	int rc;

	if (!s) {
		*sdr = s = vfm_calloc(1, sizeof(*s));
		s->out = av_frame_alloc();
		if (!s->out)
			vfm_out_of_memory();
	}
	set_labels(rgb, source);
	TRY(need_chain(s, rgb, peak_light_of(source), luma, err));
	TRY(vfm_graph_send(s->graph, rgb, err));
	rc = vfm_graph_receive(s->graph, s->out, err);
	if (rc == 0)
		rc = vfm_fail(err, VFM_EINPUT, "cannot convert the colours of a frame");
	TRY(rc);
	copy_pixels(s->out, luma, dst, stride);
	av_frame_unref(s->out);
	return 0;
}
