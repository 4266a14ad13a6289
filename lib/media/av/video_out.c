/* video_out.c - encoders and containers; see video_out.h. */
#include <ctype.h>
#include <errno.h>
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libswscale/swscale.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "io/file.h"
#include "media/av/audio.h"
#include "media/av/av.h"
#include "media/av/graph.h"
#include "media/av/hw.h"
#include "media/av/video_out.h"

#define MAX_SIDE  32768
#define VFR_CLOCK 60000 /* ticks per second: a multiple of common rates, and MPEG-4 Part 2 allows at most 65535 */
#define N_LENGTHS 1024  /* more than any encoder delays frames */

struct frame_length {
	int64_t pts, ticks;
};

struct vfm_video_out {
	char *path;
	struct vfm_atomic file; /* not of .png; FFmpeg opens it by its name */
	struct vfm_video_out_opts opts;
	bool png, numbered;
	int width, height; /* encoded: may be padded */
	int64_t n;
	AVFormatContext *fmt;
	AVStream *stream;
	AVCodecContext *enc;
	enum AVPixelFormat pix_fmt; /* of `frame`, in host memory */
	AVFrame *frame;
	AVFrame *uploaded; /* the frame in the memory of the device that encodes; NULL: the encoder reads `frame` */
	struct vfm_graph *colours; /* of .gif: chooses 256 colours for each frame, which become `indexed`; else NULL */
	AVFrame *indexed;
	AVPacket *packet;
	struct SwsContext *sws;
	uint8_t *padded;                        /* [height, width, 3], if the size is padded */
	struct frame_length lengths[N_LENGTHS]; /* vfr: of the last frames, by number */
	int64_t last_pts;
};

/* ---- names ---- */

static const char *muxer_of(const char *path)
{
	static const char *const names[][2] = {
		{".mp4", "mp4"},
		{".m4v", "mp4"},
		{".mov", "mov"},
		{".mkv", "matroska"},
		{".webm", "webm"},
		{".gif", "gif"},
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (vfm_name_ends(path, names[i][0]))
			return names[i][1];
	return NULL;
}

/* Finds one "%d" or "%0Nd" in a name: its place and length, and N. */
static const char *find_number(const char *path, size_t *len, int *digits)
{
	const char *s = strchr(path, '%'), *e;

	if (!s)
		return NULL;
	e = s + 1;
	*digits = 0;
	while (isdigit((unsigned char)*e) && *digits < 100)
		*digits = *digits * 10 + (*e++ - '0');
	if (*e != 'd' || *digits > 18)
		return NULL;
	*len = (size_t)(e + 1 - s);
	return s;
}

/* ---- encoders ---- */

static const AVCodec *encoder_of(const char *codec)
{
	static const char *const table[][3] = {
		{"h264", "libx264", "libopenh264"},
		{"hevc", "libx265", NULL},
		{"av1", "libsvtav1", "libaom-av1"},
		{"vp9", "libvpx-vp9", NULL},
		{"mpeg4", "mpeg4", NULL},
		{"ffv1", "ffv1", NULL},
		{"gif", "gif", NULL},
		{"png", "png", NULL},
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		const AVCodec *c = NULL;

		if (strcmp(codec, table[i][0]))
			continue;
		for (int k = 1; k < 3 && !c; k++)
			c = table[i][k] ? avcodec_find_encoder_by_name(table[i][k]) : NULL;
		if (!c && i == 0)
			c = avcodec_find_encoder_by_name("mpeg4");
		return c;
	}
	return NULL;
}

/* Encoders in hardware.  Those of NVENC read frames in host memory; others read frames of a device. */
static const struct hw_encoder {
	const char *name, *codec;
	enum vfm_hwaccel frames_on;
	int max_quality; /* of global_quality, which CRF 51 becomes; 0: has "cq" */
} hw_encoders[] = {
	{"h264_nvenc", "h264", VFM_HWACCEL_NONE, 0},
	{"hevc_nvenc", "hevc", VFM_HWACCEL_NONE, 0},
	{"av1_nvenc", "av1", VFM_HWACCEL_NONE, 0},
	{"h264_vaapi", "h264", VFM_HWACCEL_VAAPI, 51},
	{"hevc_vaapi", "hevc", VFM_HWACCEL_VAAPI, 51},
	{"vp9_vaapi", "vp9", VFM_HWACCEL_VAAPI, 255},
	{"av1_vaapi", "av1", VFM_HWACCEL_VAAPI, 255},
};

static const struct hw_encoder *find_hw_encoder(const char *name)
{
	for (size_t i = 0; i < sizeof(hw_encoders) / sizeof(hw_encoders[0]); i++)
		if (!strcmp(hw_encoders[i].name, name))
			return &hw_encoders[i];
	return NULL;
}

const char *vfm_video_out_codec(const char *name)
{
	const struct hw_encoder *hw = find_hw_encoder(name);

	return hw ? hw->codec : name;
}

static enum AVPixelFormat format_of(const AVCodec *c)
{
	if (c->id == AV_CODEC_ID_GIF)
		return AV_PIX_FMT_PAL8;
	if (c->id == AV_CODEC_ID_PNG)
		return AV_PIX_FMT_RGB24;
	if (c->id == AV_CODEC_ID_FFV1)
		return AV_PIX_FMT_BGR0; /* lossless, without a conversion to YUV */
	return AV_PIX_FMT_YUV420P;
}

static void set_quality(struct vfm_video_out *o, const AVCodec *c)
{
	const struct hw_encoder *hw = find_hw_encoder(c->name);
	int crf = o->opts.crf < 0 ? 18 : o->opts.crf;
	char text[16];

	snprintf(text, sizeof(text), "%d", crf);
	if (c->id == AV_CODEC_ID_MPEG4) {
		o->enc->flags |= AV_CODEC_FLAG_QSCALE;
		o->enc->global_quality = FF_QP2LAMBDA * (2 + crf / 4);
		return;
	}
	if (c->id == AV_CODEC_ID_PNG) {
		av_opt_set(o->enc->priv_data, "pred", "mixed", 0);
		return;
	}
	if (hw && hw->max_quality) {
		av_opt_set(o->enc->priv_data, "rc_mode", "CQP", 0);
		o->enc->global_quality = crf ? crf * hw->max_quality / 51 : 1;
		return;
	}
	if (hw) {
		av_opt_set(o->enc->priv_data, "rc", "vbr", 0);
		av_opt_set(o->enc->priv_data, "cq", text, 0);
		return;
	}
	av_opt_set(o->enc->priv_data, "crf", text, 0);
	if (!strcmp(c->name, "libx264") || !strcmp(c->name, "libx265"))
		av_opt_set(o->enc->priv_data, "preset", "veryfast", 0);
	/* The macroblock tree of x264 reads uninitialized memory: equal frames sometimes give different files.  The
	 * search for cuts and for the number of B frames takes up to a fifth of the time of x264, and saves no bytes
	 * in clips (bench/results/one-decode-*). */
	if (!strcmp(c->name, "libx264"))
		av_opt_set(o->enc->priv_data, "x264-params", "mbtree=0:scenecut=0:b-adapt=0", 0);
	if (!strcmp(c->name, "libx265"))
		av_opt_set(o->enc->priv_data, "x265-params", "log-level=none:pools=none:frame-threads=1", 0);
	if (!strcmp(c->name, "libvpx-vp9"))
		av_opt_set(o->enc->priv_data, "cpu-used", "4", 0);
}

static int enc_failed(struct vfm_video_out *o, int rc, const char *what, struct vfm_err *err)
{
	char buf[128];
	int code = vfm_av_code(rc, vfm_errno_code(AVUNERROR(rc), VFM_EINPUT));

	if (rc == AVERROR(EFBIG) || rc == AVERROR(EACCES)) /* of the output file */
		code = VFM_EENV;
	return vfm_fail(err, code, "cannot write '%s': %s: %s", o->path, what, vfm_av_strerror(rc, buf));
}

static void set_picture(struct vfm_video_out *o, const AVCodec *c)
{
	bool hd;

	o->pix_fmt = o->enc->pix_fmt = format_of(c);
	o->width = o->opts.width;
	o->height = o->opts.height;
	if (o->enc->pix_fmt == AV_PIX_FMT_YUV420P) {
		o->width += o->width & 1;
		o->height += o->height & 1;
		hd = o->opts.layout == VFM_LAYOUT_RGB ? o->height > 576 : o->opts.layout == VFM_LAYOUT_BT709;
		o->enc->colorspace = hd ? AVCOL_SPC_BT709 : AVCOL_SPC_SMPTE170M;
		o->enc->color_primaries = hd ? AVCOL_PRI_BT709 : AVCOL_PRI_SMPTE170M;
		o->enc->color_trc = hd ? AVCOL_TRC_BT709 : AVCOL_TRC_SMPTE170M;
		o->enc->color_range = AVCOL_RANGE_MPEG;
	}
	o->enc->width = o->width;
	o->enc->height = o->height;
	o->enc->sample_aspect_ratio = (AVRational){1, 1};
}

/* Makes the encoder read frames in the memory of a device; they are uploaded as NV12. */
static int put_frames_on(struct vfm_video_out *o, AVBufferRef *device)
{
	AVBufferRef *pool = av_hwframe_ctx_alloc(device);
	AVHWFramesContext *frames;
	int rc;

	if (!pool)
		return AVERROR(ENOMEM);
	frames = (AVHWFramesContext *)pool->data;
	frames->format = o->enc->pix_fmt = AV_PIX_FMT_VAAPI;
	frames->sw_format = o->pix_fmt = AV_PIX_FMT_NV12;
	frames->width = o->width;
	frames->height = o->height;
	frames->initial_pool_size = 20; /* more than an encoder holds */
	rc = av_hwframe_ctx_init(pool);
	if (rc < 0) {
		av_buffer_unref(&pool);
		return rc;
	}
	o->enc->hw_frames_ctx = pool;
	if (!o->uploaded)
		o->uploaded = av_frame_alloc();
	return o->uploaded ? 0 : AVERROR(ENOMEM);
}

/* Opens an encoder, which reads the frames of `device`, or those in host memory if it is NULL.  Returns FFmpeg's
 * code. */
static int start_video_encoder(struct vfm_video_out *o, const AVCodec *c, AVBufferRef *device)
{
	int rc;

	avcodec_free_context(&o->enc);
	o->enc = avcodec_alloc_context3(c);
	if (!o->enc)
		return AVERROR(ENOMEM);
	set_picture(o, c);
	if (o->opts.vfr) /* MP4 keeps the duration of the packet that is decoded last, which is then the last frame */
		o->enc->max_b_frames = 0;
	o->enc->time_base = o->opts.vfr ? (AVRational){1, VFR_CLOCK} : (AVRational){o->opts.fps_den, o->opts.fps_num};
	o->enc->framerate = (AVRational){o->opts.fps_num, o->opts.fps_den};
	o->enc->thread_count = o->opts.threads ? o->opts.threads : 1;
	o->enc->flags |= AV_CODEC_FLAG_BITEXACT;
	set_quality(o, c);
	if (o->fmt && o->fmt->oformat->flags & AVFMT_GLOBALHEADER)
		o->enc->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
	if (device) {
		rc = put_frames_on(o, device);
		if (rc < 0)
			return rc;
	}
	return avcodec_open2(o->enc, c, NULL);
}

/* Opens an encoder in hardware.  Returns false, after one notice, if this machine or this build of FFmpeg has none. */
static bool start_hw_encoder(struct vfm_video_out *o, const struct hw_encoder *hw)
{
	static atomic_bool said;
	AVBufferRef *device = hw->frames_on ? vfm_hw_device(hw->frames_on) : NULL;
	const AVCodec *c = hw->frames_on && !device ? NULL : avcodec_find_encoder_by_name(hw->name);

	if (c && start_video_encoder(o, c, device) >= 0)
		return true;
	av_frame_free(&o->uploaded);
	vfm_av_forget_line();
	if (!atomic_exchange(&said, true))
		vfm_info("no device for the encoder %s: software encodes %s", hw->name, hw->codec);
	return false;
}

static int open_encoder(struct vfm_video_out *o, struct vfm_err *err)
{
	const char *name = o->opts.codec;
	const struct hw_encoder *hw;
	const AVCodec *c;
	int rc;

	if (!name)
		name = o->png                             ? "png"
			: vfm_name_ends(o->path, ".gif")  ? "gif"
			: vfm_name_ends(o->path, ".webm") ? "vp9"
							  : "h264";
	o->frame = av_frame_alloc();
	o->packet = av_packet_alloc();
	if (!o->frame || !o->packet)
		return vfm_fail(err, VFM_EENV, "out of memory");
	hw = find_hw_encoder(name);
	if (!hw || !start_hw_encoder(o, hw)) {
		c = encoder_of(vfm_video_out_codec(name));
		if (!c)
			return vfm_fail(err, VFM_EUSAGE, "no encoder for codec '%s'", vfm_video_out_codec(name));
		rc = start_video_encoder(o, c, NULL);
		if (rc < 0)
			return enc_failed(o, rc, "cannot open the encoder", err);
	}
	if (o->pix_fmt == AV_PIX_FMT_PAL8)
		o->pix_fmt = AV_PIX_FMT_RGB24;
	o->frame->format = o->pix_fmt;
	o->frame->width = o->width;
	o->frame->height = o->height;
	o->frame->colorspace = o->enc->colorspace;
	o->frame->color_range = o->enc->color_range;
	if (av_frame_get_buffer(o->frame, 0) < 0)
		return vfm_fail(err, VFM_EENV, "out of memory");
	if (o->enc->pix_fmt != AV_PIX_FMT_PAL8)
		return 0;
	o->indexed = av_frame_alloc();
	if (!o->indexed)
		return vfm_fail(err, VFM_EENV, "out of memory");
	return vfm_graph_video(&o->colours, o->frame, o->enc->time_base,
		"split[a][b];[a]palettegen=stats_mode=single:reserve_transparent=0[p];[b][p]paletteuse=new=1:dither="
		"none",
		err);
}

static int open_scaler(struct vfm_video_out *o, struct vfm_err *err)
{
	bool is_rgb = o->opts.layout == VFM_LAYOUT_RGB,
	     is_709 = is_rgb ? o->enc->colorspace == AVCOL_SPC_BT709 : o->opts.layout == VFM_LAYOUT_BT709;
	const int *matrix = sws_getCoefficients(is_709 ? SWS_CS_ITU709 : SWS_CS_ITU601);
	enum AVPixelFormat given = is_rgb ? AV_PIX_FMT_RGB24 : AV_PIX_FMT_YUV420P;

	if (!is_rgb && (o->opts.width % 2 || o->opts.height % 2))
		return vfm_fail(err, VFM_EUSAGE, "Y'CbCr pictures of odd size: %dx%d", o->opts.width, o->opts.height);
	if (o->width != o->opts.width || o->height != o->opts.height)
		o->padded = vfm_malloc((size_t)o->width * (size_t)o->height * 3);
	if (o->pix_fmt == given)
		return 0;
	o->sws = sws_getContext(o->width, o->height, given, o->width, o->height, o->pix_fmt,
		SWS_BILINEAR | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INP, NULL, NULL, NULL);
	if (!o->sws)
		return vfm_fail(err, vfm_av_code(AVERROR(ENOMEM), VFM_EINPUT), "cannot convert pictures of %dx%d",
			o->width, o->height);
	sws_setColorspaceDetails(o->sws, matrix, is_rgb, matrix, 0, 0, 1 << 16, 1 << 16);
	return 0;
}

static int open_muxer(struct vfm_video_out *o, const char *muxer, struct vfm_err *err)
{
	char *url = vfm_strfmt("file:%s", o->file.tmp ? o->file.tmp : o->file.path);
	int rc = avformat_alloc_output_context2(&o->fmt, NULL, muxer, url);

	if (rc >= 0)
		rc = avio_open(&o->fmt->pb, url, AVIO_FLAG_WRITE);
	free(url);
	if (rc < 0) {
		char buf[128];

		return vfm_fail(err, VFM_EENV, "cannot write '%s': %s", o->path, vfm_av_strerror(rc, buf));
	}
	o->fmt->flags |= AVFMT_FLAG_BITEXACT;
	return 0;
}

static int start_muxer(struct vfm_video_out *o, struct vfm_err *err)
{
	AVDictionary *options = NULL;
	int rc;

	o->stream = avformat_new_stream(o->fmt, NULL);
	if (!o->stream || avcodec_parameters_from_context(o->stream->codecpar, o->enc) < 0)
		return vfm_fail(err, VFM_EENV, "out of memory");
	o->stream->time_base = o->enc->time_base;
	if (!o->opts.vfr) /* Matroska would store it as the duration of each frame */
		o->stream->avg_frame_rate = o->enc->framerate;
	o->stream->sample_aspect_ratio = o->enc->sample_aspect_ratio;
	if (o->opts.audio)
		TRY(vfm_audio_add_stream(o->opts.audio, o->fmt, err));
	if (!strcmp(o->fmt->oformat->name, "mp4") || !strcmp(o->fmt->oformat->name, "mov"))
		av_dict_set(&options, "movflags", "+faststart", 0);
	rc = avformat_write_header(o->fmt, &options);
	av_dict_free(&options);
	return rc < 0 ? enc_failed(o, rc, "header", err) : 0;
}

static int check_output_opts(struct vfm_video_out *o, struct vfm_err *err)
{
	if (o->opts.width < 1 || o->opts.height < 1 || o->opts.width > MAX_SIDE || o->opts.height > MAX_SIDE)
		return vfm_fail(err, VFM_EUSAGE, "cannot write a picture of %dx%d", o->opts.width, o->opts.height);
	if (o->opts.fps_num == 0 && o->opts.fps_den == 0) {
		o->opts.fps_num = 25;
		o->opts.fps_den = 1;
	}
	if (o->opts.fps_num < 1 || o->opts.fps_den < 1)
		return vfm_fail(
			err, VFM_EUSAGE, "a frame rate of %d/%d makes no sense", o->opts.fps_num, o->opts.fps_den);
	if (o->opts.vfr && (o->png || vfm_name_ends(o->path, ".gif")))
		return vfm_fail(err, VFM_EUSAGE, "'%s': this format has a constant frame rate", o->path);
	if (o->opts.crf > 51)
		return vfm_fail(err, VFM_EUSAGE, "crf: expected 0 to 51, got %d", o->opts.crf);
	return 0;
}

int vfm_video_out_open(
	struct vfm_video_out **out, const char *path, const struct vfm_video_out_opts *opts, struct vfm_err *err)
{
	struct vfm_video_out *o = vfm_calloc(1, sizeof(*o));
	const char *muxer;
	int rc, digits;
	size_t len;

	vfm_av_init();
	o->path = vfm_strdup(path);
	o->opts = *opts;
	o->png = vfm_name_ends(path, ".png");
	o->numbered = o->png && find_number(path, &len, &digits);
	muxer = o->png ? NULL : muxer_of(path);
	TRY_OUT(check_output_opts(o, err));
	if (!o->png && !muxer) {
		rc = vfm_fail(
			err, VFM_EUSAGE, "'%s': the name should end in .mp4, .mov, .mkv, .webm, .gif or .png", path);
		goto out;
	}
	if (!o->png) {
		TRY_OUT(vfm_atomic_open(&o->file, path, err));
		TRY_OUT(open_muxer(o, muxer, err));
	}
	TRY_OUT(open_encoder(o, err));
	TRY_OUT(open_scaler(o, err));
	if (!o->png)
		TRY_OUT(start_muxer(o, err));
	*out = o;
	return 0;
out:
	vfm_video_out_abort(o);
	return rc;
}

/* ---- frames ---- */

/* Repeats the last column and row where the codec needs even sizes. */
static const uint8_t *pad_frame(struct vfm_video_out *o, const uint8_t *rgb)
{
	size_t row = (size_t)o->opts.width * 3, wide = (size_t)o->width * 3;

	if (!o->padded)
		return rgb;
	for (int y = 0; y < o->height; y++) {
		const uint8_t *src = rgb + (size_t)(y < o->opts.height ? y : o->opts.height - 1) * row;
		uint8_t *dst = o->padded + (size_t)y * wide;

		memcpy(dst, src, row);
		if (wide > row)
			memcpy(dst + row, src + row - 3, 3);
	}
	return o->padded;
}

/* The planes of a given picture. */
static void find_given_planes(struct vfm_video_out *o, const uint8_t *picture, const uint8_t *planes[4], int strides[4])
{
	size_t pixels = (size_t)o->width * (size_t)o->height;

	if (o->opts.layout == VFM_LAYOUT_RGB) {
		planes[0] = pad_frame(o, picture);
		strides[0] = o->width * 3;
		return;
	}
	planes[0] = picture;
	planes[1] = picture + pixels;
	planes[2] = picture + pixels / 4 * 5;
	strides[0] = o->width;
	strides[1] = strides[2] = o->width / 2;
}

static void fill_frame(struct vfm_video_out *o, const uint8_t *picture)
{
	const uint8_t *planes[4] = {0};
	int strides[4] = {0};

	find_given_planes(o, picture, planes, strides);
	if (o->sws)
		sws_scale(o->sws, planes, strides, 0, o->height, o->frame->data, o->frame->linesize);
	else
		av_image_copy(o->frame->data, o->frame->linesize, planes, strides, o->pix_fmt, o->width, o->height);
}

static int write_png(struct vfm_video_out *o, struct vfm_err *err)
{
	const char *at;
	char *name;
	size_t len = 0;
	int digits = 0, rc;

	at = o->numbered ? find_number(o->path, &len, &digits) : NULL;
	name = at ? vfm_strfmt("%.*s%0*lld%s", (int)(at - o->path), o->path, digits, (long long)o->n, at + len)
		  : vfm_strdup(o->path);
	rc = vfm_write_file(name, o->packet->data, (size_t)o->packet->size, err);
	free(name);
	return rc;
}

static int64_t length_of_packet(const struct vfm_video_out *o)
{
	for (int i = 0; o->opts.vfr && i < N_LENGTHS; i++)
		if (o->lengths[i].pts == o->packet->pts && o->lengths[i].ticks)
			return o->lengths[i].ticks;
	return 1;
}

/* Writes the packets that the encoder has finished. */
static int drain(struct vfm_video_out *o, struct vfm_err *err)
{
	int rc;

	while ((rc = avcodec_receive_packet(o->enc, o->packet)) >= 0) {
		if (o->png) {
			rc = write_png(o, err);
			av_packet_unref(o->packet);
			TRY(rc);
			continue;
		}
		if (o->opts.vfr || !o->packet->duration)
			o->packet->duration = length_of_packet(o);
		av_packet_rescale_ts(o->packet, o->enc->time_base, o->stream->time_base);
		o->packet->stream_index = 0;
		rc = av_interleaved_write_frame(o->fmt, o->packet);
		if (rc < 0)
			return enc_failed(o, rc, "frame", err);
	}
	return rc == AVERROR(EAGAIN) || rc == AVERROR_EOF ? 0 : enc_failed(o, rc, "encoder", err);
}

/* Writes the frames whose colours are chosen, which are late by one. */
static int encode_indexed(struct vfm_video_out *o, AVFrame *f /* NULL: the end */, struct vfm_err *err)
{
	int rc;

	TRY(vfm_graph_send(o->colours, f, err));
	while ((rc = vfm_graph_receive(o->colours, o->indexed, err)) == 1) {
		rc = avcodec_send_frame(o->enc, o->indexed);
		av_frame_unref(o->indexed);
		if (rc < 0)
			return enc_failed(o, rc, "encoder", err);
		TRY(drain(o, err));
	}
	return rc;
}

/* Gives the filled frame to the encoder.  Returns FFmpeg's code. */
static int encode_frame(struct vfm_video_out *o)
{
	int rc;

	if (!o->uploaded)
		return avcodec_send_frame(o->enc, o->frame);
	rc = av_hwframe_get_buffer(o->enc->hw_frames_ctx, o->uploaded, 0);
	if (rc >= 0)
		rc = av_hwframe_transfer_data(o->uploaded, o->frame, 0);
	if (rc >= 0)
		rc = av_frame_copy_props(o->uploaded, o->frame);
	if (rc >= 0)
		rc = avcodec_send_frame(o->enc, o->uploaded);
	av_frame_unref(o->uploaded);
	return rc;
}

static int send_frame(struct vfm_video_out *o, const uint8_t *picture, int64_t pts, struct vfm_err *err)
{
	int rc;

	if (o->png && !o->numbered && o->n > 0)
		return vfm_fail(err, VFM_EUSAGE,
			"'%s' takes one picture; a series needs a number in the name, as in x%%04d.png", o->path);
	rc = av_frame_make_writable(o->frame);
	if (rc < 0)
		return enc_failed(o, rc, "frame", err);
	fill_frame(o, picture);
	o->frame->pts = pts;
	if (o->opts.audio)
		TRY(vfm_audio_write(o->opts.audio, (double)pts * av_q2d(o->enc->time_base), o->fmt, err));
	if (o->colours) {
		TRY(encode_indexed(o, o->frame, err));
	} else {
		rc = encode_frame(o);
		if (rc < 0)
			return enc_failed(o, rc, "encoder", err);
		TRY(drain(o, err));
	}
	o->n++;
	return 0;
}

int vfm_video_out_write(struct vfm_video_out *o, const uint8_t *picture, struct vfm_err *err)
{
	if (o->opts.vfr)
		return vfm_fail(err, VFM_EUSAGE, "'%s': a frame without a time", o->path);
	return send_frame(o, picture, o->n, err);
}

int vfm_video_out_write_at(
	struct vfm_video_out *o, const uint8_t *picture, double time_s, double length_s, struct vfm_err *err)
{
	int64_t pts = llrint(time_s * VFR_CLOCK), end = llrint((time_s + length_s) * VFR_CLOCK);

	if (!o->opts.vfr)
		return vfm_fail(err, VFM_EUSAGE, "'%s': a frame with a time in a file of constant rate", o->path);
	if (o->n > 0 && pts <= o->last_pts)
		pts = o->last_pts + 1;
	o->last_pts = pts;
	o->lengths[o->n % N_LENGTHS] = (struct frame_length){pts, end > pts ? end - pts : 1};
	return send_frame(o, picture, pts, err);
}

struct vfm_video_out_facts vfm_video_out_facts(const struct vfm_video_out *o)
{
	return (struct vfm_video_out_facts){avcodec_get_name(o->enc->codec_id), o->width, o->height};
}

/* ---- the end ---- */

void vfm_video_out_abort(struct vfm_video_out *o)
{
	if (!o)
		return;
	if (o->fmt) {
		avio_closep(&o->fmt->pb);
		avformat_free_context(o->fmt);
	}
	avcodec_free_context(&o->enc);
	av_frame_free(&o->frame);
	av_frame_free(&o->uploaded);
	vfm_graph_free(o->colours);
	av_frame_free(&o->indexed);
	av_packet_free(&o->packet);
	sws_freeContext(o->sws);
	free(o->padded);
	vfm_atomic_abort(&o->file); /* no-op if it is complete */
	free(o->path);
	free(o);
}

/* The time when the last frame ends. */
static double end_of_frames(const struct vfm_video_out *o)
{
	const struct frame_length *last = &o->lengths[(o->n - 1) % N_LENGTHS];

	return (double)(o->opts.vfr ? last->pts + last->ticks : o->n) * av_q2d(o->enc->time_base);
}

static int flush_and_close(struct vfm_video_out *o, struct vfm_err *err)
{
	int rc;

	if (o->n == 0)
		return vfm_fail(err, VFM_EINPUT, "'%s': no frames were given", o->path);
	if (o->colours)
		TRY(encode_indexed(o, NULL, err));
	avcodec_send_frame(o->enc, NULL);
	TRY(drain(o, err)); /* an encoder with threads delays frames */
	if (o->png)
		return 0; /* each file was complete when it was written */
	if (o->opts.audio)
		TRY(vfm_audio_write(o->opts.audio, end_of_frames(o), o->fmt, err));
	rc = av_write_trailer(o->fmt);
	if (rc < 0)
		return enc_failed(o, rc, "index", err);
	rc = o->fmt->pb->error;
	if (rc >= 0)
		rc = avio_closep(&o->fmt->pb);
	if (rc < 0)
		return enc_failed(o, rc, "closing", err);
	return vfm_atomic_commit(&o->file, err);
}

int vfm_video_out_close(struct vfm_video_out *o, struct vfm_err *err)
{
	int rc = flush_and_close(o, err);

	vfm_video_out_abort(o);
	return rc;
}
