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
#include "media/av/av.h"
#include "media/av/pixels.h"
#include "media/av/sdr.h"
#include "media/av/thumb.h"

#define N_CONTEXTS  4
#define MAX_SIDE    32768
#define THUMB_LEAST 128 /* sides of luma below which boxes of whole pixels are too uneven */

struct context {
	struct SwsContext *sws;
	int sw, sh, dw, dh;
	enum AVPixelFormat sf, df;
	int range, space;
	int out_space; /* of Y'CbCr of limited range; else 0: full range, and the space of the source */
};

struct vfm_pixels {
	struct context ctx[N_CONTEXTS];
	int next;
	AVFrame *crop;
	uint8_t *buf; /* output of swscale: padded rows, before rotation */
	size_t buf_size;
	struct vfm_sdr *sdr;
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

/* Returns the format without a range; sets *full_range to 1 if the format implies full range. */
static enum AVPixelFormat plain_format(enum AVPixelFormat f, int *full_range)
{
	static const enum AVPixelFormat plain[][2] = {
		{AV_PIX_FMT_YUVJ420P, AV_PIX_FMT_YUV420P},
		{AV_PIX_FMT_YUVJ422P, AV_PIX_FMT_YUV422P},
		{AV_PIX_FMT_YUVJ444P, AV_PIX_FMT_YUV444P},
		{AV_PIX_FMT_YUVJ440P, AV_PIX_FMT_YUV440P},
		{AV_PIX_FMT_YUVJ411P, AV_PIX_FMT_YUV411P},
	};

	for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
		if (plain[i][0] == f) {
			*full_range = 1;
			return plain[i][1];
		}
	return f;
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
			c->sf == want->sf && c->df == want->df && c->range == want->range && c->space == want->space &&
			c->out_space == want->out_space)
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
			sws_getCoefficients(want->out_space ? want->out_space : want->space), !want->out_space, 0,
			1 << 16, 1 << 16);
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

static int scale_frame(struct vfm_pixels *p, const struct context *want, uint8_t *const planes[4], const int strides[4],
	struct vfm_err *err)
{
	struct SwsContext *sws = context_for(p, want);

	if (sws &&
		sws_scale(sws, (const uint8_t *const *)p->crop->data, p->crop->linesize, 0, want->sh, planes,
			strides) >= 0)
		return 0;
	return vfm_fail(err, vfm_av_code(AVERROR(ENOMEM), VFM_EINPUT), "cannot convert %s of %dx%d",
		av_get_pix_fmt_name(want->sf), want->sw, want->sh);
}

/* Scales to 16 bits a channel, and converts these to SDR. */
static int scale_to_sdr(struct vfm_pixels *p, const struct vfm_pixels_job *job, struct context *want, uint8_t *dst,
	size_t stride, struct vfm_err *err)
{
	AVFrame *rgb = av_frame_alloc();
	int rc;

	if (!rgb)
		return vfm_fail(err, VFM_EENV, "out of memory");
	rgb->format = want->df = AV_PIX_FMT_GBRP16;
	rgb->width = want->dw;
	rgb->height = want->dh;
	if (av_frame_get_buffer(rgb, 0) < 0) {
		rc = vfm_fail(err, vfm_av_code(AVERROR(ENOMEM), VFM_EINPUT), "out of memory: a picture of %dx%d",
			want->dw, want->dh);
		goto out;
	}
	TRY_OUT(scale_frame(p, want, rgb->data, rgb->linesize, err));
	TRY_OUT(vfm_sdr_run(&p->sdr, job->frame, rgb, job->luma, dst, stride, err));
out:
	av_frame_free(&rgb);
	return rc;
}

/* The planes of a picture in p->buf: packed pixels of `bytes`, or Y'CbCr 4:2:0 if `bytes` is 0. */
struct planes {
	uint8_t *data[4];
	int strides[4];
};

static int need_planes(struct vfm_pixels *p, int w, int h, int bytes, struct planes *out, struct vfm_err *err)
{
	int stride = (w * (bytes ? bytes : 1) + 63) / 64 * 64 + 64, rows = h + 1;
	size_t plane = (size_t)stride * (size_t)rows;

	TRY(need_buf(p, bytes ? plane : 3 * plane, err));
	*out = (struct planes){{p->buf}, {stride}};
	for (int i = 1; i < 3 && !bytes; i++) {
		out->data[i] = p->buf + (size_t)i * plane;
		out->strides[i] = stride;
	}
	return 0;
}

static bool has_alpha(const AVPixFmtDescriptor *desc, const AVFrame *f)
{
	return desc->flags & AV_PIX_FMT_FLAG_ALPHA || f->format == AV_PIX_FMT_PAL8;
}

enum vfm_layout vfm_pixels_layout(const AVFrame *frame, bool sdr)
{
	int space = colour_space(frame);

	if (sdr && vfm_sdr_is_due(frame))
		return VFM_LAYOUT_BT709;
	return space == SWS_CS_ITU709 || space == SWS_CS_SMPTE240M || space == SWS_CS_BT2020 ? VFM_LAYOUT_BT709
											     : VFM_LAYOUT_BT601;
}

/* Converts an RGB picture of the job's size to its layout. */
static int rgb_to_layout(struct vfm_pixels *p, const struct vfm_pixels_job *job, uint8_t *rgb, struct vfm_err *err)
{
	size_t pixels = (size_t)job->width * (size_t)job->height;
	int space = job->layout == VFM_LAYOUT_BT709 ? SWS_CS_ITU709 : SWS_CS_ITU601;
	struct context want = {.sw = job->width,
		.sh = job->height,
		.dw = job->width,
		.dh = job->height,
		.sf = AV_PIX_FMT_RGB24,
		.df = AV_PIX_FMT_YUV420P,
		.range = 1,
		.space = space,
		.out_space = space};
	uint8_t *to[4] = {job->dst, job->dst + pixels, job->dst + pixels / 4 * 5};
	int strides[4] = {job->width, job->width / 2, job->width / 2};
	struct SwsContext *sws = context_for(p, &want);
	const uint8_t *from[4] = {rgb};

	if (sws && sws_scale(sws, from, (int[4]){3 * job->width}, 0, job->height, to, strides) >= 0)
		return 0;
	return vfm_fail(err, vfm_av_code(AVERROR(ENOMEM), VFM_EINPUT), "cannot convert a picture of %dx%d", job->width,
		job->height);
}

/* As rgb_to_layout for frames that must be RGB in between: transparent ones, and those that become SDR. */
static int run_by_rgb(struct vfm_pixels *p, const struct vfm_pixels_job *job, struct vfm_err *err)
{
	size_t bytes = vfm_layout_bytes(VFM_LAYOUT_RGB, job->width, job->height);
	struct vfm_pixels_job rgb = *job;
	int rc;

	rgb.layout = VFM_LAYOUT_RGB;
	rgb.dst = vfm_big_alloc(bytes, "frame", err);
	if (!rgb.dst)
		return VFM_EENV;
	rc = vfm_pixels_run(p, &rgb, err);
	if (rc == 0)
		rc = rgb_to_layout(p, job, rgb.dst, err);
	vfm_big_free(rgb.dst, bytes);
	return rc;
}

/* Turns the planes of Y'CbCr upright, into the picture of the job. */
static void orient_planes(const struct vfm_pixels_job *job, const struct planes *from, int sw, int sh)
{
	struct vfm_pixels_job plane = *job;

	for (int i = 0; i < 3; i++) {
		orient_pixels(&plane, from->data[i], (size_t)from->strides[i], i ? sw / 2 : sw, i ? sh / 2 : sh, 1);
		plane.dst += (size_t)plane.width * (size_t)plane.height;
		plane.width = job->width / 2;
		plane.height = job->height / 2;
	}
}

static struct context start_context(const struct vfm_pixels_job *job)
{
	return (struct context){.dw = job->orient.a ? job->width : job->height,
		.dh = job->orient.a ? job->height : job->width,
		.range = job->frame->color_range == AVCOL_RANGE_JPEG,
		.space = colour_space(job->frame)};
}

static int run_layout(struct vfm_pixels *p, const struct vfm_pixels_job *job, struct vfm_err *err)
{
	struct context want = start_context(job);
	struct planes planes;

	if (job->width % 2 || job->height % 2)
		return vfm_fail(err, VFM_EUSAGE, "Y'CbCr pictures need even sizes, got %dx%d", job->width, job->height);
	want.df = AV_PIX_FMT_YUV420P;
	want.out_space = job->layout == VFM_LAYOUT_BT709 ? SWS_CS_ITU709 : SWS_CS_ITU601;
	want.sw = p->crop->width;
	want.sh = p->crop->height;
	want.sf = plain_format(job->frame->format, &want.range);
	TRY(need_planes(p, want.dw, want.dh, 0, &planes, err));
	TRY(scale_frame(p, &want, planes.data, planes.strides, err));
	orient_planes(job, &planes, want.dw, want.dh);
	return 0;
}

static int run_packed(
	struct vfm_pixels *p, const struct vfm_pixels_job *job, bool to_sdr, bool alpha, struct vfm_err *err)
{
	int bytes = job->luma ? 1 : alpha ? 4 : 3;
	struct context want = start_context(job);
	struct planes planes;

	want.df = job->luma ? AV_PIX_FMT_GRAY8 : alpha ? AV_PIX_FMT_RGBA : AV_PIX_FMT_RGB24;
	want.sw = p->crop->width;
	want.sh = p->crop->height;
	want.sf = plain_format(job->frame->format, &want.range);
	TRY(need_planes(p, want.dw, want.dh, bytes, &planes, err));
	if (to_sdr)
		TRY(scale_to_sdr(p, job, &want, p->buf, (size_t)planes.strides[0], err));
	else
		TRY(scale_frame(p, &want, planes.data, planes.strides, err));
	if (alpha) {
		for (int y = 0; y < want.dh; y++)
			on_white(p->buf + (size_t)y * (size_t)planes.strides[0], want.dw);
		bytes = 3;
	}
	orient_pixels(job, p->buf, (size_t)planes.strides[0], want.dw, want.dh, bytes);
	return 0;
}

int vfm_pixels_run(struct vfm_pixels *p, const struct vfm_pixels_job *job, struct vfm_err *err)
{
	const AVPixFmtDescriptor *desc = av_pix_fmt_desc_get(job->frame->format);
	bool to_sdr = job->sdr && vfm_sdr_is_due(job->frame);
	bool alpha = desc && has_alpha(desc, job->frame) && !job->luma && !to_sdr;
	int rc;

	if (job->width < 1 || job->height < 1 || job->width > MAX_SIDE || job->height > MAX_SIDE)
		return vfm_fail(err, VFM_EUSAGE, "cannot scale to %dx%d", job->width, job->height);
	if (!desc)
		return vfm_fail(err, VFM_EINPUT, "unknown pixel format");
	if (!job->luma && job->layout != VFM_LAYOUT_RGB && (to_sdr || alpha))
		return run_by_rgb(p, job, err);
	TRY(crop_to_shape(p, job, err));
	rc = !job->luma && job->layout != VFM_LAYOUT_RGB ? run_layout(p, job, err)
							 : run_packed(p, job, to_sdr, alpha, err);
	av_frame_unref(p->crop);
	return rc;
}

/* Returns whether component 0 has a plane of its own, of 8 bits or of 16 in the order of this machine. */
static bool has_luma_plane(const AVPixFmtDescriptor *d)
{
	const AVComponentDescriptor *c = &d->comp[0];

	if (d->flags &
		(AV_PIX_FMT_FLAG_RGB | AV_PIX_FMT_FLAG_PAL | AV_PIX_FMT_FLAG_BITSTREAM | AV_PIX_FMT_FLAG_BE |
			AV_PIX_FMT_FLAG_HWACCEL | AV_PIX_FMT_FLAG_FLOAT))
		return false;
	for (int i = 1; i < d->nb_components; i++)
		if (d->comp[i].plane == c->plane)
			return false;
	return c->offset == 0 && (c->depth == 8 ? c->step == 1 : c->depth > 8 && c->depth <= 16 && c->step == 2);
}

static void copy_row(const uint8_t *src, uint8_t *dst, int width, const AVComponentDescriptor *c)
{
	const uint16_t *wide = (const uint16_t *)(const void *)src;
	int shift = c->shift + c->depth - 8;

	if (c->depth == 8) {
		memcpy(dst, src, (size_t)width);
		return;
	}
#pragma omp simd
	for (int x = 0; x < width; x++)
		dst[x] = (uint8_t)(wide[x] >> shift);
}

int vfm_pixels_rows(
	struct vfm_pixels *p, const AVFrame *frame, const int *rows, int n, uint8_t *dst, struct vfm_err *err)
{
	const AVPixFmtDescriptor *desc = av_pix_fmt_desc_get(frame->format);
	int w = frame->width;
	struct vfm_pixels_job job = {.frame = frame,
		.orient = {1, 0, 0, 1},
		.shown_w = w,
		.shown_h = frame->height,
		.width = w,
		.height = frame->height,
		.luma = true};
	uint8_t *all;
	int rc;

	if (desc && has_luma_plane(desc)) {
		for (int i = 0; i < n; i++)
			copy_row(frame->data[0] + (ptrdiff_t)rows[i] * frame->linesize[0], dst + (size_t)i * (size_t)w,
				w, &desc->comp[0]);
		return 0;
	}
	all = vfm_big_alloc((size_t)w * (size_t)frame->height, "luma of a frame", err);
	if (!all)
		return VFM_EENV;
	job.dst = all;
	rc = vfm_pixels_run(p, &job, err);
	for (int i = 0; i < n && rc >= 0; i++)
		memcpy(dst + (size_t)i * (size_t)w, all + (size_t)rows[i] * (size_t)w, (size_t)w);
	vfm_big_free(all, (size_t)w * (size_t)frame->height);
	return rc;
}

/* ---- thumbs ---- */

/* The planes of Y, Cb and Cr if each component has a plane of its own and scaling down is all that it needs. */
static bool find_planes(const AVFrame *f, const AVPixFmtDescriptor *d, struct vfm_plane planes[3])
{
	if (!has_luma_plane(d) || d->nb_components != 3 || !(d->flags & AV_PIX_FMT_FLAG_PLANAR))
		return false;
	for (int i = 0; i < 3; i++) {
		const AVComponentDescriptor *c = &d->comp[i];
		int sx = i ? d->log2_chroma_w : 0, sy = i ? d->log2_chroma_h : 0;

		planes[i] = (struct vfm_plane){.data = f->data[c->plane],
			.stride = f->linesize[c->plane],
			.width = AV_CEIL_RSHIFT(f->width, sx),
			.height = AV_CEIL_RSHIFT(f->height, sy),
			.depth = c->depth};
		if (c->plane != i || c->shift || c->offset || c->step != (c->depth == 8 ? 1 : 2) ||
			planes[i].width < THUMB_LEAST >> (i > 0) || planes[i].height < THUMB_LEAST >> (i > 0))
			return false;
	}
	return true;
}

/* From a 256th of a level to levels of full range. */
static uint8_t full_level(int x, bool luma, bool full)
{
	int y = full   ? (x + 128) >> 8
		: luma ? ((x - 16 * 256) * 298 + 32768) >> 16
		       : 128 + (((x - 128 * 256) * 291 + 32768) >> 16);

	return (uint8_t)(y < 0 ? 0 : y > 255 ? 255 : y);
}

static int shrink_planes(struct vfm_pixels *p, const struct vfm_pixels_job *job, const struct vfm_plane planes[3],
	struct vfm_thumb *t, struct vfm_err *err)
{
	uint8_t *dst[] = {t->y, t->cb, t->cr};
	uint16_t small[VFM_THUMB_W * VFM_THUMB_H];
	uint8_t levels[VFM_THUMB_W * VFM_THUMB_H];
	int full = job->frame->color_range == AVCOL_RANGE_JPEG;

	plain_format(job->frame->format, &full);
	TRY(need_buf(p, (size_t)planes[0].width * sizeof(uint16_t), err));
	for (int i = 0; i < 3; i++) {
		struct vfm_pixels_job part = *job;
		int w, h;

		part.width = i ? VFM_THUMB_W / 2 : VFM_THUMB_W;
		part.height = i ? VFM_THUMB_H / 2 : VFM_THUMB_H;
		part.dst = dst[i];
		w = job->orient.a ? part.width : part.height;
		h = job->orient.a ? part.height : part.width;
		vfm_plane_shrink(&planes[i], w, h, (uint16_t *)(void *)p->buf, small);
		for (int k = 0; k < w * h; k++)
			levels[k] = full_level(small[k], i == 0, full);
		orient_pixels(&part, levels, (size_t)w, w, h, 1);
	}
	return 0;
}

int vfm_pixels_thumb(struct vfm_pixels *p, const struct vfm_pixels_job *job, struct vfm_thumb *t, struct vfm_err *err)
{
	const AVPixFmtDescriptor *desc = av_pix_fmt_desc_get(job->frame->format);
	uint8_t rgb[VFM_THUMB_W * VFM_THUMB_H * 3];
	struct vfm_pixels_job whole = *job;
	struct vfm_plane planes[3];

	if (desc && !vfm_sdr_is_due(job->frame) && find_planes(job->frame, desc, planes))
		return shrink_planes(p, job, planes, t, err);
	whole.width = VFM_THUMB_W;
	whole.height = VFM_THUMB_H;
	whole.cover = whole.luma = false;
	whole.dst = rgb;
	TRY(vfm_pixels_run(p, &whole, err));
	vfm_thumb_of_rgb(t, rgb);
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
	vfm_sdr_free(p->sdr);
	free(p);
}
