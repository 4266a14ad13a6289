/* pixels.c - a decoded frame -> packed RGB or luma, upright, with square pixels. */
#include <libavutil/imgutils.h>
#include <libavutil/mem.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/av.h"

#define N_CONTEXTS 4
#define MAX_SIDE   32768

struct context {
	struct SwsContext *sws;
	int sw, sh, dw, dh;
	enum AVPixelFormat sf, df;
	int range, space;
};

struct vfm_pixels {
	struct context ctx[N_CONTEXTS];
	int next;
	AVFrame *crop;
	uint8_t *buf; /* output of swscale: padded rows, before rotation */
	size_t buf_size;
};

/* ---- orientation ---- */

static int sign_of(int32_t x)
{
	return x < 0 ? -1 : 1;
}

struct vfm_orient vfm_orient_of(const int32_t *m)
{
	/* FFmpeg's matrix maps x' = m0 x + m3 y, y' = m1 x + m4 y.  We need its inverse, which for quarter turns is
	 * its transpose. */
	if (!m || (!m[0] && !m[1] && !m[3] && !m[4]))
		return (struct vfm_orient){1, 0, 0, 1};
	if (llabs((long long)m[0]) >= llabs((long long)m[1]))
		return (struct vfm_orient){sign_of(m[0]), 0, 0, sign_of(m[4])};
	return (struct vfm_orient){0, sign_of(m[1]), sign_of(m[3]), 0};
}

int vfm_orient_degrees(struct vfm_orient o, bool *mirrored)
{
	*mirrored = o.a * o.d - o.b * o.c < 0;
	if (o.a)
		return o.d > 0 ? 0 : 180;
	return o.c < 0 ? 90 : 270;
}

/* ---- scaling ---- */

static enum AVPixelFormat plain_format(enum AVPixelFormat f, int *full_range)
{
	switch (f) {
	case AV_PIX_FMT_YUVJ420P:
		*full_range = 1;
		return AV_PIX_FMT_YUV420P;
	case AV_PIX_FMT_YUVJ422P:
		*full_range = 1;
		return AV_PIX_FMT_YUV422P;
	case AV_PIX_FMT_YUVJ444P:
		*full_range = 1;
		return AV_PIX_FMT_YUV444P;
	case AV_PIX_FMT_YUVJ440P:
		*full_range = 1;
		return AV_PIX_FMT_YUV440P;
	case AV_PIX_FMT_YUVJ411P:
		*full_range = 1;
		return AV_PIX_FMT_YUV411P;
	default:
		return f;
	}
}

/* Video without a label: BT.709 in high definition, else BT.601, as in players. */
static int colour_space(const AVFrame *f)
{
	switch (f->colorspace) {
	case AVCOL_SPC_BT709:
		return SWS_CS_ITU709;
	case AVCOL_SPC_BT470BG:
	case AVCOL_SPC_SMPTE170M:
		return SWS_CS_ITU601;
	case AVCOL_SPC_SMPTE240M:
		return SWS_CS_SMPTE240M;
	case AVCOL_SPC_FCC:
		return SWS_CS_FCC;
	case AVCOL_SPC_BT2020_NCL:
	case AVCOL_SPC_BT2020_CL:
		return SWS_CS_BT2020;
	default:
		/* JPEG and other full-range stills are BT.601 by their standard. */
		if (f->color_range == AVCOL_RANGE_JPEG)
			return SWS_CS_ITU601;
		return f->width >= 1280 || f->height > 576 ? SWS_CS_ITU709 : SWS_CS_ITU601;
	}
}

static struct SwsContext *context_for(struct vfm_pixels *p, const struct context *want)
{
	struct context *c;
	int flags = want->dw < want->sw || want->dh < want->sh ? SWS_AREA : SWS_BILINEAR;

	for (int i = 0; i < N_CONTEXTS; i++) {
		c = &p->ctx[i];
		if (c->sws && c->sw == want->sw && c->sh == want->sh && c->dw == want->dw && c->dh == want->dh &&
			c->sf == want->sf && c->df == want->df && c->range == want->range && c->space == want->space)
			return c->sws;
	}
	c = &p->ctx[p->next++ % N_CONTEXTS];
	sws_freeContext(c->sws);
	*c = *want;
	/* Without these flags, the fast paths are one or two levels too dark. */
	if (want->df != AV_PIX_FMT_GRAY8)
		flags |= SWS_FULL_CHR_H_INT | SWS_ACCURATE_RND;
	c->sws = sws_getContext(want->sw, want->sh, want->sf, want->dw, want->dh, want->df, flags, NULL, NULL, NULL);
	if (c->sws)
		sws_setColorspaceDetails(c->sws, sws_getCoefficients(want->space), want->range,
			sws_getCoefficients(want->space), 1, 0, 1 << 16, 1 << 16);
	return c->sws;
}

/* Crops the frame, before rotation, to the aspect ratio of the output. */
static int crop_to_shape(struct vfm_pixels *p, const struct vfm_pixels_job *job, struct vfm_err *err)
{
	double keep_w = 1, keep_h = 1, shape = (double)job->width / job->height * job->shown_h / job->shown_w;
	int cut_x, cut_y;

	av_frame_unref(p->crop);
	if (av_frame_ref(p->crop, job->frame) < 0)
		return vfm_fail(err, VFM_EENV, "out of memory");
	if (!job->cover)
		return 0;
	if (shape < 1)
		keep_w = shape;
	else
		keep_h = 1 / shape;
	if (!job->orient.a) {
		double t = keep_w;

		keep_w = keep_h;
		keep_h = t;
	}
	cut_x = job->frame->width - (int)fmax(1, lrint(keep_w * job->frame->width));
	cut_y = job->frame->height - (int)fmax(1, lrint(keep_h * job->frame->height));
	p->crop->crop_left = (size_t)cut_x / 2;
	p->crop->crop_right = (size_t)(cut_x - cut_x / 2);
	p->crop->crop_top = (size_t)cut_y / 2;
	p->crop->crop_bottom = (size_t)(cut_y - cut_y / 2);
	if (av_frame_apply_cropping(p->crop, AV_FRAME_CROP_UNALIGNED) < 0)
		return vfm_fail(err, VFM_EINPUT, "cannot crop a frame of %dx%d", job->frame->width, job->frame->height);
	return 0;
}

static void on_white(uint8_t *row, int n)
{
	/* RGBA -> RGB in place. */
	for (int i = 0; i < n; i++) {
		int alpha = row[4 * i + 3];

		for (int k = 0; k < 3; k++)
			row[3 * i + k] = (uint8_t)((row[4 * i + k] * alpha + 255 * (255 - alpha) + 127) / 255);
	}
}

static void orient_pixels(
	const struct vfm_pixels_job *job, const uint8_t *src, size_t stride, int sw, int sh, int bytes)
{
	struct vfm_orient o = job->orient;
	long x0 = o.a < 0 || o.b < 0 ? sw - 1 : 0, y0 = o.c < 0 || o.d < 0 ? sh - 1 : 0;

	for (int y = 0; y < job->height; y++) {
		uint8_t *dst = job->dst + (size_t)y * (size_t)job->width * (size_t)bytes;

		if (o.a == 1) {
			memcpy(dst, src + (size_t)(y0 + (long)o.d * y) * stride, (size_t)(job->width * bytes));
			continue;
		}
		for (int x = 0; x < job->width; x++) {
			long sx = x0 + (long)o.a * x + (long)o.b * y, sy = y0 + (long)o.c * x + (long)o.d * y;
			const uint8_t *s = src + (size_t)sy * stride + (size_t)sx * (size_t)bytes;

			for (int k = 0; k < bytes; k++)
				*dst++ = s[k];
		}
	}
}

static int need_buf(struct vfm_pixels *p, size_t size, struct vfm_err *err)
{
	if (size <= p->buf_size)
		return 0;
	av_free(p->buf);
	p->buf_size = 0;
	p->buf = av_malloc(size);
	if (!p->buf)
		return vfm_fail(err, VFM_EENV, "out of memory: %zu bytes for a picture", size);
	p->buf_size = size;
	return 0;
}

int vfm_pixels_run(struct vfm_pixels *p, const struct vfm_pixels_job *job, struct vfm_err *err)
{
	const AVPixFmtDescriptor *desc = av_pix_fmt_desc_get(job->frame->format);
	bool alpha =
		desc && (desc->flags & AV_PIX_FMT_FLAG_ALPHA || job->frame->format == AV_PIX_FMT_PAL8) && !job->luma;
	int bytes = job->luma ? 1 : alpha ? 4 : 3;
	struct context want = {
		.dw = job->orient.a ? job->width : job->height,
		.dh = job->orient.a ? job->height : job->width,
		.df = job->luma ? AV_PIX_FMT_GRAY8
			: alpha ? AV_PIX_FMT_RGBA
				: AV_PIX_FMT_RGB24,
		.range = job->frame->color_range == AVCOL_RANGE_JPEG,
		.space = colour_space(job->frame),
	};
	struct SwsContext *sws;
	uint8_t *planes[4] = {0};
	int strides[4] = {0};

	if (job->width < 1 || job->height < 1 || job->width > MAX_SIDE || job->height > MAX_SIDE)
		return vfm_fail(err, VFM_EUSAGE, "cannot scale to %dx%d", job->width, job->height);
	if (!desc)
		return vfm_fail(err, VFM_EINPUT, "unknown pixel format");
	TRY(crop_to_shape(p, job, err));
	want.sw = p->crop->width;
	want.sh = p->crop->height;
	want.sf = plain_format(job->frame->format, &want.range);
	strides[0] = (want.dw * bytes + 63) / 64 * 64 + 64;
	TRY(need_buf(p, (size_t)strides[0] * (size_t)(want.dh + 1), err));
	sws = context_for(p, &want);
	if (!sws)
		return vfm_fail(err, vfm_av_code(AVERROR(ENOMEM), VFM_EINPUT), "cannot convert %s of %dx%d", desc->name,
			want.sw, want.sh);
	planes[0] = p->buf;
	if (sws_scale(sws, (const uint8_t *const *)p->crop->data, p->crop->linesize, 0, want.sh, planes, strides) < 0)
		return vfm_fail(err, vfm_av_code(AVERROR(ENOMEM), VFM_EINPUT), "cannot convert %s of %dx%d", desc->name,
			want.sw, want.sh);
	if (alpha) {
		for (int y = 0; y < want.dh; y++)
			on_white(p->buf + (size_t)y * (size_t)strides[0], want.dw);
		bytes = 3;
	}
	orient_pixels(job, p->buf, (size_t)strides[0], want.dw, want.dh, bytes);
	av_frame_unref(p->crop);
	return 0;
}

struct vfm_pixels *vfm_pixels_new(void)
{
	struct vfm_pixels *p = vfm_calloc(1, sizeof(*p));

	p->crop = av_frame_alloc();
	if (!p->crop)
		vfm_out_of_memory();
	return p;
}

void vfm_pixels_free(struct vfm_pixels *p)
{
	if (!p)
		return;
	for (int i = 0; i < N_CONTEXTS; i++)
		sws_freeContext(p->ctx[i].sws);
	av_frame_free(&p->crop);
	av_free(p->buf);
	free(p);
}
