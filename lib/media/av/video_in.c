/* video_in.c - opening, decoding and seeking; see video_in.h. */
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "media/av/av.h"
#include "media/av/deint.h"
#include "media/av/heif.h"
#include "media/av/hw.h"
#include "media/av/pixels.h"
#include "media/av/sdr.h"
#include "media/av/source.h"
#include "media/av/video_in.h"

#define MAX_PIXELS       ((int64_t)1 << 27)
#define LIMIT_S          3600
#define MAX_IDLE_PACKETS 4096 /* packets without a frame before the rest counts as lost */
#define MAX_READ_ERRORS  32
#define MAX_SAR          8 /* a sample aspect ratio beyond 8:1 is a fault of the file */

struct vfm_video {
	char *path;
	struct vfm_video_opts opts;
	struct vfm_video_info info;

	struct vfm_source source;
	AVStream *stream;
	AVCodecContext *dec;
	AVPacket *packet;
	AVFrame *frame, *ahead;  /* `ahead`: decoded, not yet returned */
	AVFrame *fetched;        /* between a device and the host; otherwise empty */
	AVFrame *raw;            /* between decoder and deint */
	AVFrame *second;         /* decoded to tell a video from an image, not yet taken; otherwise empty */
	struct vfm_deint *deint; /* NULL: frames are taken as they are */
	bool deint_ended;
	bool has_ahead, has_second, draining, at_end;
	bool interlaced; /* a frame so far */
	int64_t next_index;
	int64_t idle_packets, read_errors;
	int64_t first_pts, flagged; /* flagged: frames marked as damaged, packets refused */
	int64_t last_index;         /* of the frame returned last, and its time */
	int64_t shown_index;        /* of `frame` */
	int64_t last_pts;
	double last_time_s;
	struct vfm_orient orient;
	struct vfm_av_errors errors;
	struct vfm_pixels *pixels;
};

/* ---- streams ---- */

static int choose_stream(struct vfm_video *v, struct vfm_err *err)
{
	bool cover = false;

	for (unsigned i = 0; i < v->source.fmt->nb_streams; i++) {
		const AVStream *s = v->source.fmt->streams[i];

		v->info.has_audio |= s->codecpar->codec_type == AVMEDIA_TYPE_AUDIO;
		cover |= vfm_stream_is_cover(s);
	}
	v->stream = vfm_source_choose(&v->source, AVMEDIA_TYPE_VIDEO);
	if (!v->stream)
		return vfm_fail(err, VFM_EINPUT,
			cover ? "'%s': no video stream, only a cover picture" : "'%s': no video stream", v->path);
	if (v->stream->codecpar->codec_tag == MKTAG('e', 'n', 'c', 'v') ||
		av_stream_get_side_data(v->stream, AV_PKT_DATA_ENCRYPTION_INIT_INFO, NULL))
		return vfm_fail(err, VFM_EINPUT, "'%s': encrypted", v->path);
	return 0;
}

/* FFmpeg's own decoders of VP8 and VP9 leave out the alpha channel, which is a stream in the stream. */
static int find_video_decoder(struct vfm_video *v, const AVCodec **codec, struct vfm_err *err)
{
	enum AVCodecID id = v->stream->codecpar->codec_id;
	const AVDictionaryEntry *alpha = av_dict_get(v->stream->metadata, "alpha_mode", NULL, 0);

	*codec = avcodec_find_decoder(id);
	if (!alpha || strcmp(alpha->value, "1") != 0 || (id != AV_CODEC_ID_VP8 && id != AV_CODEC_ID_VP9))
		return 0;
	*codec = avcodec_find_decoder_by_name(id == AV_CODEC_ID_VP8 ? "libvpx" : "libvpx-vp9");
	if (!*codec)
		return vfm_fail(err, VFM_EINPUT,
			"'%s': transparent %s needs FFmpeg with libvpx, which this build lacks", v->path,
			avcodec_get_name(id));
	return 0;
}

static int open_decoder(struct vfm_video *v, struct vfm_err *err)
{
	AVCodecParameters *par = v->stream->codecpar;
	const AVCodec *codec;
	char name[64];
	int rc;

	TRY(find_video_decoder(v, &codec, err));
	if (!codec)
		return vfm_fail(err, VFM_EINPUT, "'%s': no decoder for %s", v->path, vfm_av_codec_name(par, name));
	/* The size in a header may be false; the decoder finds the true one in the stream. */
	if ((int64_t)par->width * par->height > v->opts.max_pixels)
		par->width = par->height = 0;
	v->dec = avcodec_alloc_context3(codec);
	if (!v->dec || avcodec_parameters_to_context(v->dec, par) < 0)
		return vfm_fail(err, VFM_EENV, "out of memory");
	v->dec->opaque = &v->errors;
	v->dec->pkt_timebase = v->stream->time_base;
	v->dec->thread_count = v->opts.threads;
	v->dec->max_pixels = v->opts.max_pixels;
	if (v->opts.draft) {
		v->dec->skip_loop_filter = AVDISCARD_ALL;
		v->dec->export_side_data |= AV_CODEC_EXPORT_DATA_FILM_GRAIN; /* that is, do not apply it */
	}
	vfm_hw_attach(v->dec, v->opts.hwaccel);
	vfm_av_forget_line();
	rc = avcodec_open2(v->dec, codec, NULL);
	if (rc == AVERROR(EAGAIN))
		v->source.abandoned = true;
	if (v->source.abandoned)
		return vfm_fail(err, VFM_EENV, "'%s': cannot start the threads of the decoder", v->path);
	if (rc < 0)
		return vfm_source_failed(&v->source, rc, "cannot decode", err);
	return 0;
}

/* ---- facts ---- */

static bool rate_is_sane(AVRational r)
{
	return r.num > 0 && r.den > 0 && av_q2d(r) >= 0.1 && av_q2d(r) <= 1000;
}

static AVRational stream_rate(const AVStream *s)
{
	AVRational avg = s->avg_frame_rate, base = s->r_frame_rate;

	/* Where both agree, the base rate is the exact number; otherwise the rate varies. */
	if (rate_is_sane(base) && (!rate_is_sane(avg) || fabs(av_q2d(avg) / av_q2d(base) - 1) < 0.01))
		return base;
	return rate_is_sane(avg) ? avg : (AVRational){25, 1};
}

/* Returns whether FFmpeg took the file for a picture, or for pictures of one format in a row, as a pipe has them. */
static bool is_row_of_pictures(const struct vfm_video *v)
{
	const char *name = v->source.fmt->iformat->name;
	size_t n = strlen(name);

	return n > 5 && !strcmp(name + n - 5, "_pipe");
}

/* Returns whether the file is an image.  A row of pictures is one until end_image() finds a second frame. */
static bool is_image(const struct vfm_video *v)
{
	const AVDictionaryEntry *brand = av_dict_get(v->source.fmt->metadata, "major_brand", NULL, 0);

	if (is_row_of_pictures(v))
		return true;
	if (brand &&
		(!strncmp(brand->value, "avif", 4) || !strncmp(brand->value, "mif1", 4) ||
			!strncmp(brand->value, "heic", 4)))
		return v->stream->nb_frames <= 1;
	return false;
}

/* The size with square pixels, before rotation. */
static void square_size(struct vfm_video *v, AVFrame *f, int *w, int *h)
{
	AVRational sar = av_guess_sample_aspect_ratio(v->source.fmt, v->stream, f);
	double shape = sar.num > 0 && sar.den > 0 ? av_q2d(sar) : 1;

	*w = f->width;
	*h = f->height;
	if (shape > MAX_SAR || shape < 1.0 / MAX_SAR || fabs(shape - 1) < 0.01)
		return;
	if (shape > 1)
		*w = (int)lrint(*w * shape);
	else
		*h = (int)lrint(*h / shape);
}

static void shown_size(struct vfm_video *v, AVFrame *f, int *w, int *h)
{
	int t;

	square_size(v, f, w, h);
	if (!v->orient.a) {
		t = *w;
		*w = *h;
		*h = t;
	}
}

static void find_orientation(struct vfm_video *v, const AVFrame *f)
{
	const AVFrameSideData *sd = av_frame_get_side_data(f, AV_FRAME_DATA_DISPLAYMATRIX);
	size_t size = 0;
	const uint8_t *data = sd ? sd->data : av_stream_get_side_data(v->stream, AV_PKT_DATA_DISPLAYMATRIX, &size);

	if (sd)
		size = sd->size;
	v->orient = vfm_orient_of(data && size >= 36 ? (const int32_t *)(const void *)data : NULL);
	if (!data && v->info.image && !strncmp(v->source.fmt->iformat->name, "mov", 3))
		v->orient = vfm_heif_orient_of_file(v->source.fd, v->source.at, v->source.size);
}

static void set_colors(struct vfm_video *v, const AVFrame *f)
{
	struct vfm_video_info *i = &v->info;
	const char *transfer = av_color_transfer_name(f->color_trc);
	const char *primaries = av_color_primaries_name(f->color_primaries);

	if (transfer && f->color_trc != AVCOL_TRC_UNSPECIFIED)
		snprintf(i->color_transfer, sizeof(i->color_transfer), "%s", transfer);
	if (primaries && f->color_primaries != AVCOL_PRI_UNSPECIFIED)
		snprintf(i->color_primaries, sizeof(i->color_primaries), "%s", primaries);
	i->wide = vfm_sdr_is_due(f);
	i->nearest = vfm_pixels_layout(f, !v->opts.keep_hdr);
}

static void gather_info(struct vfm_video *v)
{
	struct vfm_video_info *i = &v->info;
	AVFrame *f = v->ahead;
	AVRational rate = stream_rate(v->stream), sar = av_guess_sample_aspect_ratio(v->source.fmt, v->stream, f);
	const AVPixFmtDescriptor *desc = av_pix_fmt_desc_get(f->format);

	snprintf(i->container, sizeof(i->container), "%.*s", (int)strcspn(v->source.fmt->iformat->name, ","),
		v->source.fmt->iformat->name);
	i->stream_id = v->stream->id;
	snprintf(i->codec, sizeof(i->codec), "%s", avcodec_get_name(v->stream->codecpar->codec_id));
	snprintf(i->pix_fmt, sizeof(i->pix_fmt), "%s", desc ? desc->name : "?");
	find_orientation(v, f);
	i->rotation = vfm_orient_degrees(v->orient, &i->mirrored);
	i->coded_width = f->width;
	i->coded_height = f->height;
	shown_size(v, f, &i->width, &i->height);
	i->sar_num = sar.num > 0 && sar.den > 0 ? sar.num : 1;
	i->sar_den = sar.num > 0 && sar.den > 0 ? sar.den : 1;
	set_colors(v, f);
	i->interlaced = v->interlaced || v->stream->codecpar->field_order > AV_FIELD_PROGRESSIVE;
	i->fps_num = i->image ? 0 : rate.num;
	i->fps_den = i->image ? 1 : rate.den;
	i->frames = i->image ? 1 : v->stream->nb_frames > 0 ? v->stream->nb_frames : -1;
	i->tick_s = av_q2d(v->stream->time_base);
	i->duration_s = i->stream_s = -1;
	if (!i->image && v->stream->duration > 0)
		i->duration_s = i->stream_s = (double)v->stream->duration * i->tick_s;
	else if (!i->image && v->source.fmt->duration > 0)
		i->duration_s = (double)v->source.fmt->duration / AV_TIME_BASE;
}

/* ---- decoding ---- */

static int64_t pts_of(const AVFrame *f)
{
	/* Not best_effort_timestamp, which depends on where decoding began. */
	int64_t pts = f->pts != AV_NOPTS_VALUE ? f->pts : f->pkt_dts;

	return pts == AV_NOPTS_VALUE ? INT64_MIN : pts;
}

/* Returns whether the demuxer has read all, by the code of its last read.  These have none for the end of a file. */
static bool demuxer_has_ended(const struct vfm_video *v, int rc)
{
	static const char *const names[] = {"gxf", "mpjpeg", "roq"};
	bool unclear = false;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unclear |= !strcmp(v->source.fmt->iformat->name, names[i]);
	return rc == AVERROR_EOF || (unclear && avio_feof(v->source.fmt->pb));
}

static int send_packet(struct vfm_video *v, struct vfm_err *err)
{
	int rc = av_read_frame(v->source.fmt, v->packet);

	if (rc == AVERROR(EAGAIN) && ++v->read_errors < MAX_READ_ERRORS)
		return 0;
	if (rc < 0) {
		TRY(vfm_source_check(&v->source, err));
		if (vfm_av_code(rc, 0) < 0)
			return vfm_source_failed(&v->source, rc, "cannot read", err);
		if (!demuxer_has_ended(v, rc))
			v->flagged++;
		v->draining = true;
		avcodec_send_packet(v->dec, NULL);
		return 0;
	}
	if (v->packet->stream_index != v->stream->index) {
		av_packet_unref(v->packet);
		return 0;
	}
	if (av_packet_get_side_data(v->packet, AV_PKT_DATA_ENCRYPTION_INFO, NULL)) {
		av_packet_unref(v->packet);
		return vfm_fail(err, VFM_EINPUT, "'%s': encrypted", v->path);
	}
	if (v->packet->flags & AV_PKT_FLAG_CORRUPT)
		v->flagged++;
	rc = avcodec_send_packet(v->dec, v->packet);
	av_packet_unref(v->packet);
	if (rc < 0 && vfm_av_code(rc, 0) < 0)
		return vfm_source_failed(&v->source, rc, "cannot decode", err);
	if (rc < 0 && rc != AVERROR(EAGAIN) && rc != AVERROR_EOF)
		v->flagged++;
	if (++v->idle_packets > MAX_IDLE_PACKETS) {
		v->flagged++;
		v->draining = true;
		avcodec_send_packet(v->dec, NULL);
	}
	return 0;
}

/* Receives the next frame of the decoder.  Returns 1, or 0 at the end. */
static int receive_frame(struct vfm_video *v, AVFrame *f, struct vfm_err *err)
{
	int rc, refused = 0;

	for (;;) {
		TRY(vfm_source_check(&v->source, err));
		rc = avcodec_receive_frame(v->dec, f);
		if (rc >= 0) {
			if (f->width < 1 || f->height < 1 || (int64_t)f->width * f->height > v->opts.max_pixels) {
				v->flagged++;
				av_frame_unref(f);
				continue;
			}
			if (vfm_hw_fetch(f, v->fetched, err) < 0)
				return vfm_err_context(err, "'%s'", v->path);
			v->idle_packets = 0;
			v->interlaced |= f->interlaced_frame;
			if (f->flags & AV_FRAME_FLAG_CORRUPT || f->decode_error_flags)
				v->flagged++;
			return 1;
		}
		if (rc == AVERROR_EOF || (v->draining && (rc == AVERROR(EAGAIN) || ++refused > MAX_READ_ERRORS)))
			return 0;
		if (rc == AVERROR(ENOMEM)) {
			if (vfm_av_code(rc, 0) < 0)
				return vfm_source_failed(&v->source, rc, "cannot decode", err);
			v->flagged++;
			if (++refused > MAX_READ_ERRORS)
				return vfm_fail(err, VFM_EINPUT, "'%s': a frame is too big for memory", v->path);
		} else if (rc != AVERROR(EAGAIN)) {
			v->flagged++;
		}
		TRY(send_packet(v, err));
	}
}

#define MAX_SEGMENTS 1024 /* before the coded picture; a profile or an extended XMP takes many */

enum { SOI = 0xd8, SOS = 0xda, APP2 = 0xe2 };

/* Returns whether the bytes [start, start + size) of an open file are a JPEG with an index of pictures (Multi-Picture
 * Format, CIPA DC-007): a preview, a gain map, the other eye.  False if they are anything else. */
static bool jpeg_has_index(int fd, int64_t start, int64_t size)
{
	uint8_t head[8]; /* a marker, the length of its segment and of this field, the first bytes of its content */
	int64_t at = 2;

	if (size < 2 || pread(fd, head, 2, start) != 2 || head[0] != 0xff || head[1] != SOI)
		return false;
	for (int i = 0; i < MAX_SEGMENTS && size - at >= (int64_t)sizeof(head); i++) {
		if (pread(fd, head, sizeof(head), start + at) != (ssize_t)sizeof(head) || head[0] != 0xff)
			return false;
		if (head[1] == 0xff) { /* a fill byte */
			at++;
			continue;
		}
		if (head[1] == SOS)
			return false;
		if (head[1] == APP2 && !memcmp(head + 4, "MPF", 4))
			return true;
		at += 2 + (head[2] << 8 | head[3]);
	}
	return false;
}

/* Ends the reading of an image after its first picture, unless more follow that make it a video:
 *   - pictures of one shape in a row are a video, such as the JPEGs of a network camera
 *   - if the first picture has an index, the others are parts of the image
 *   - a second picture of another shape is a preview
 * Bytes that are no picture do not count as errors. */
static int end_image(struct vfm_video *v, const AVFrame *first, struct vfm_err *err)
{
	int64_t lines = atomic_load(&v->errors.lines), flagged = v->flagged;
	int rc = 0;

	if (is_row_of_pictures(v) && !jpeg_has_index(v->source.fd, v->source.at, v->source.size))
		rc = receive_frame(v, v->second, err);
	TRY(rc);
	v->has_second = rc == 1 && v->second->width == first->width && v->second->height == first->height &&
		v->second->format == first->format;
	if (v->has_second) {
		v->info.image = false;
		return 0;
	}
	av_frame_unref(v->second);
	atomic_store(&v->errors.lines, lines);
	v->flagged = flagged;
	v->at_end = true;
	return 0;
}

/* Decodes one frame into `f`.  Returns 1, or 0 at the end. */
static int decode(struct vfm_video *v, AVFrame *f, struct vfm_err *err)
{
	int rc;

	if (v->has_second) {
		av_frame_move_ref(f, v->second);
		v->has_second = false;
		return 1;
	}
	if (v->at_end)
		return 0;
	rc = receive_frame(v, f, err);
	TRY(rc);
	if (rc == 0)
		v->at_end = true;
	else if (v->info.image)
		TRY(end_image(v, f, err));
	return rc;
}

/* As decode, with progressive frames. */
static int decode_progressive(struct vfm_video *v, AVFrame *f, struct vfm_err *err)
{
	int rc;

	if (!v->deint)
		return decode(v, f, err);
	while ((rc = vfm_deint_receive(v->deint, f, err)) == 0 && !v->deint_ended) {
		rc = decode(v, v->raw, err);
		TRY(rc);
		v->deint_ended = rc == 0;
		rc = vfm_deint_send(v->deint, rc ? v->raw : NULL, err);
		if (rc < 0)
			break;
	}
	return rc < 0 ? vfm_err_context(err, "'%s'", v->path) : rc;
}

static void close_all(struct vfm_video *v)
{
	vfm_deint_free(v->deint);
	v->deint = NULL;
	v->deint_ended = false;
	av_frame_free(&v->raw);
	av_frame_free(&v->second);
	av_frame_free(&v->fetched);
	avcodec_free_context(&v->dec);
	vfm_source_close(&v->source);
	av_packet_free(&v->packet);
	av_frame_free(&v->frame);
	av_frame_free(&v->ahead);
	v->stream = NULL;
	v->has_ahead = v->has_second = v->draining = v->at_end = false;
	v->next_index = v->idle_packets = v->read_errors = v->flagged = 0;
	atomic_store(&v->errors.lines, 0);
}

static int open_streams(struct vfm_video *v, struct vfm_err *err)
{
	int rc;

	TRY(vfm_source_open(
		&v->source, v->path, &(struct vfm_source_opts){&v->opts.limit, v->opts.max_pixels, &v->errors}, err));
	TRY(choose_stream(v, err));
	TRY(open_decoder(v, err));
	v->packet = av_packet_alloc();
	v->frame = av_frame_alloc();
	v->ahead = av_frame_alloc();
	v->raw = av_frame_alloc();
	v->second = av_frame_alloc();
	v->fetched = av_frame_alloc();
	if (!v->packet || !v->frame || !v->ahead || !v->raw || !v->second || !v->fetched)
		return vfm_fail(err, VFM_EENV, "out of memory");
	if (v->opts.deinterlace == VFM_DEINTERLACE_ALL ||
		(v->opts.deinterlace == VFM_DEINTERLACE_AUTO && !v->opts.draft))
		v->deint = vfm_deint_new(v->opts.deinterlace == VFM_DEINTERLACE_ALL);
	v->info.image = is_image(v);
	rc = decode_progressive(v, v->ahead, err);
	TRY(rc);
	if (rc == 0) {
		const char *line = vfm_av_last_line();

		/* Decoders also drop frames because there is no memory. */
		v->source.abandoned = vfm_av_code(AVERROR(ENOMEM), 0) < 0;
		return vfm_fail(err, v->source.abandoned ? VFM_EENV : VFM_EINPUT, "'%s': no frame can be decoded%s%s",
			v->path, *line ? ": " : "", line);
	}
	v->has_ahead = true;
	v->first_pts = pts_of(v->ahead);
	return 0;
}

int vfm_video_open(struct vfm_video **out, const char *path, const struct vfm_video_opts *opts, struct vfm_err *err)
{
	struct vfm_video *v = vfm_calloc(1, sizeof(*v));
	int rc;

	vfm_av_init();
	v->path = vfm_strdup(path);
	v->last_pts = INT64_MIN;
	if (opts)
		v->opts = *opts;
	if (!v->opts.threads)
		v->opts.threads = 1;
	if (!v->opts.max_pixels)
		v->opts.max_pixels = MAX_PIXELS;
	if (v->opts.limit.until <= 0)
		v->opts.limit = vfm_limit_start(LIMIT_S);
	rc = open_streams(v, err);
	if (rc < 0) {
		vfm_video_close(v);
		return rc;
	}
	gather_info(v);
	*out = v;
	return 0;
}

void vfm_video_extend_limit(struct vfm_video *v, double seconds)
{
	v->opts.limit.until += seconds;
}

void vfm_video_set_limit(struct vfm_video *v, struct vfm_limit limit)
{
	v->opts.limit = limit;
}

int64_t vfm_video_at(const struct vfm_video *v)
{
	return v->next_index;
}

int64_t vfm_video_shown(const struct vfm_video *v)
{
	return v->shown_index;
}

bool vfm_video_ended(const struct vfm_video *v)
{
	return v->at_end && !v->has_ahead && !v->has_second;
}

void vfm_video_close(struct vfm_video *v)
{
	if (!v || v->source.abandoned || vfm_av_starved())
		return;
	close_all(v);
	vfm_pixels_free(v->pixels);
	free(v->path);
	free(v);
}

const struct vfm_video_info *vfm_video_info(const struct vfm_video *v)
{
	return &v->info;
}

int64_t vfm_video_errors(const struct vfm_video *v)
{
	int64_t lines = atomic_load(&((struct vfm_video *)(uintptr_t)v)->errors.lines);

	/* The decoder logs most of what it flags.  Without a log, the flags are counted. */
	return lines ? lines : v->flagged;
}

int vfm_video_next(struct vfm_video *v, struct vfm_frame *f, struct vfm_err *err)
{
	double rate = v->info.fps_num ? (double)v->info.fps_num / v->info.fps_den : 25;
	int rc = 1;

	av_frame_unref(v->frame);
	if (v->has_ahead)
		av_frame_move_ref(v->frame, v->ahead);
	else
		rc = decode_progressive(v, v->frame, err);
	v->has_ahead = false;
	if (rc <= 0)
		return rc;
	*f = (struct vfm_frame){.index = v->next_index++, .pts = pts_of(v->frame)};
	f->interlaced = v->frame->interlaced_frame;
	f->damaged = v->frame->flags & AV_FRAME_FLAG_CORRUPT || v->frame->decode_error_flags;
	shown_size(v, v->frame, &f->width, &f->height);
	if (f->pts != INT64_MIN && v->first_pts != INT64_MIN)
		f->time_s = ((double)f->pts - (double)v->first_pts) * av_q2d(v->stream->time_base);
	else if (f->index > 0 && v->last_index == f->index - 1)
		f->time_s = v->last_time_s + 1 / rate;
	else
		f->time_s = (double)f->index / rate;
	v->last_index = v->shown_index = f->index;
	v->last_pts = f->pts;
	v->last_time_s = f->time_s;
	return 1;
}

int vfm_video_check_end(const struct vfm_video *v, int64_t end, struct vfm_err *err)
{
	if (end < 0 || v->next_index >= end)
		return 0;
	return vfm_fail(err, VFM_EINPUT, "'%s': the file ended at frame %lld, before end_frame %lld", v->path,
		(long long)v->next_index, (long long)end);
}

/* ---- seeking ---- */

static int restart(struct vfm_video *v, struct vfm_err *err)
{
	close_all(v);
	return open_streams(v, err);
}

static int skip_to(struct vfm_video *v, int64_t index, struct vfm_err *err)
{
	while (v->next_index < index) {
		int rc = 1;

		if (v->has_ahead) {
			av_frame_unref(v->ahead);
			v->has_ahead = false;
		} else {
			rc = decode_progressive(v, v->frame, err);
			av_frame_unref(v->frame);
		}
		TRY(rc);
		if (rc == 0)
			return vfm_fail(
				err, VFM_EINPUT, "'%s': frame %lld is beyond the end", v->path, (long long)index);
		v->next_index++;
	}
	return 0;
}

/* Returns whether a seek to `pts` would lead to a key frame that was decoded already: then decoding on is faster. */
static bool is_key_behind(const struct vfm_video *v, int64_t pts)
{
	const AVIndexEntry *e = avformat_index_get_entry_from_timestamp(v->stream, pts, AVSEEK_FLAG_BACKWARD);

	return e && v->last_pts != INT64_MIN && e->timestamp <= v->last_pts;
}

/* Seeks to a key frame at or before `from` and decodes up to `pts`.  Returns 1, or 0 if that does not reach it. */
static int seek_by_pts(struct vfm_video *v, int64_t from, int64_t pts, struct vfm_err *err)
{
	bool key_seen = false;
	int rc;

	if (avformat_seek_file(v->source.fmt, v->stream->index, INT64_MIN, from, from, 0) < 0)
		return 0;
	avcodec_flush_buffers(v->dec);
	if (v->deint)
		vfm_deint_reset(v->deint);
	v->deint_ended = false;
	av_frame_unref(v->ahead);
	av_frame_unref(v->second);
	v->has_ahead = v->has_second = v->draining = v->at_end = false;
	v->idle_packets = 0;
	while ((rc = decode_progressive(v, v->ahead, err)) == 1) {
		int64_t at = pts_of(v->ahead);

		/* A frame before the first key frame may lack its reference frames. */
		if (v->ahead->key_frame)
			key_seen = true;
		if (at == pts && key_seen) {
			v->has_ahead = true;
			return 1;
		}
		av_frame_unref(v->ahead);
		if (at == INT64_MIN || at >= pts)
			return 0;
	}
	return rc;
}

int vfm_video_seek(struct vfm_video *v, int64_t index, int64_t pts, struct vfm_err *err)
{
	AVRational tb = v->stream->time_base;
	int64_t second = tb.num > 0 ? (int64_t)(2.0 * tb.den / tb.num) : 0;
	int rc;

	if (index >= v->next_index && index - v->next_index <= 8)
		return skip_to(v, index, err);
	if (index > v->next_index && pts != INT64_MIN && is_key_behind(v, pts))
		return skip_to(v, index, err);
	if (pts != INT64_MIN && v->first_pts != INT64_MIN && index > 0) {
		/* Deinterlacing reads the frame before, which must not depend on where decoding began. */
		rc = seek_by_pts(v, v->deint && v->interlaced ? pts - second / 4 : pts, pts, err);
		if (rc == 0 && pts > INT64_MIN / 2 + second)
			rc = seek_by_pts(v, pts - second, pts, err);
		TRY(rc);
		if (rc == 1) {
			v->next_index = index;
			return 0;
		}
		TRY(restart(v, err));
	} else if (index < v->next_index) {
		TRY(restart(v, err));
	}
	return skip_to(v, index, err);
}

/* ---- kept frames ---- */

struct vfm_kept_frame {
	AVFrame *frame;   /* NULL: only the picture is kept */
	uint8_t *picture; /* NULL: the frame is kept */
	size_t bytes;
	struct vfm_frame facts;
};

struct vfm_kept_frame *vfm_video_keep(const struct vfm_video *v, const struct vfm_frame *f)
{
	struct vfm_kept_frame *k = vfm_calloc(1, sizeof(*k));

	k->facts = *f;
	k->frame = av_frame_clone(v->frame);
	if (!k->frame) {
		free(k);
		return NULL;
	}
	k->bytes = sizeof(*k) + sizeof(*k->frame);
	for (int i = 0; i < AV_NUM_DATA_POINTERS && k->frame->buf[i]; i++)
		k->bytes += k->frame->buf[i]->size;
	return k;
}

int vfm_video_show(struct vfm_video *v, const struct vfm_kept_frame *k, struct vfm_frame *f, struct vfm_err *err)
{
	av_frame_unref(v->frame);
	if (av_frame_ref(v->frame, k->frame) < 0)
		return vfm_fail(err, VFM_EENV, "out of memory");
	*f = k->facts;
	v->shown_index = f->index;
	return 0;
}

struct vfm_kept_frame *vfm_video_keep_picture(
	struct vfm_video *v, const struct vfm_frame *f, int width, int height, enum vfm_fit fit, enum vfm_layout layout)
{
	struct vfm_kept_frame *k = vfm_calloc(1, sizeof(*k));
	size_t bytes = vfm_layout_bytes(layout, width, height);
	struct vfm_err err;

	k->facts = *f;
	k->bytes = sizeof(*k) + bytes;
	k->picture = malloc(bytes);
	if (k->picture && vfm_video_picture(v, width, height, fit, layout, k->picture, &err) == 0)
		return k;
	vfm_kept_frame_free(k);
	return NULL;
}

const uint8_t *vfm_kept_picture(const struct vfm_kept_frame *k, struct vfm_frame *f)
{
	*f = k->facts;
	return k->picture;
}

size_t vfm_kept_frame_bytes(const struct vfm_kept_frame *k)
{
	return k->bytes;
}

void vfm_kept_frame_free(struct vfm_kept_frame *k)
{
	if (!k)
		return;
	av_frame_free(&k->frame);
	free(k->picture);
	free(k);
}

/* ---- pixels ---- */

/* The job of converting the frame that was decoded last; without a size. */
static int start_job(struct vfm_video *v, struct vfm_pixels_job *job, struct vfm_err *err)
{
	*job = (struct vfm_pixels_job){.frame = v->frame, .orient = v->orient, .sdr = !v->opts.keep_hdr};
	if (!v->frame->buf[0])
		return vfm_fail(err, VFM_EUSAGE, "no frame was decoded yet");
	if (!v->pixels)
		v->pixels = vfm_pixels_new();
	shown_size(v, v->frame, &job->shown_w, &job->shown_h);
	return 0;
}

static int convert(struct vfm_video *v, int width, int height, enum vfm_fit fit, bool luma, enum vfm_layout layout,
	uint8_t *dst, struct vfm_err *err)
{
	struct vfm_pixels_job job;

	TRY(start_job(v, &job, err));
	job.width = width;
	job.height = height;
	job.cover = fit == VFM_FIT_COVER;
	job.luma = luma;
	job.layout = layout;
	job.dst = dst;
	if (vfm_pixels_run(v->pixels, &job, err) < 0)
		return vfm_err_context(err, "'%s'", v->path);
	return 0;
}

int vfm_video_thumb(struct vfm_video *v, struct vfm_thumb *t, struct vfm_err *err)
{
	struct vfm_pixels_job job;

	TRY(start_job(v, &job, err));
	if (vfm_pixels_thumb(v->pixels, &job, t, err) < 0)
		return vfm_err_context(err, "'%s'", v->path);
	return 0;
}

int vfm_video_rgb(struct vfm_video *v, int width, int height, enum vfm_fit fit, uint8_t *rgb, struct vfm_err *err)
{
	return convert(v, width, height, fit, false, VFM_LAYOUT_RGB, rgb, err);
}

int vfm_video_picture(struct vfm_video *v, int width, int height, enum vfm_fit fit, enum vfm_layout layout,
	uint8_t *picture, struct vfm_err *err)
{
	return convert(v, width, height, fit, false, layout, picture, err);
}

int vfm_video_luma(struct vfm_video *v, int width, int height, enum vfm_fit fit, uint8_t *luma, struct vfm_err *err)
{
	return convert(v, width, height, fit, true, VFM_LAYOUT_RGB, luma, err);
}

void vfm_video_coded_size(const struct vfm_video *v, int *width, int *height)
{
	*width = v->frame->width;
	*height = v->frame->height;
}

int vfm_video_coded_rows(struct vfm_video *v, const int *rows, int n, uint8_t *dst, struct vfm_err *err)
{
	if (!v->frame->buf[0])
		return vfm_fail(err, VFM_EUSAGE, "no frame was decoded yet");
	if (!v->pixels)
		v->pixels = vfm_pixels_new();
	if (vfm_pixels_rows(v->pixels, v->frame, rows, n, dst, err) < 0)
		return vfm_err_context(err, "'%s'", v->path);
	return 0;
}
