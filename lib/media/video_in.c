/* video_in.c - opening, decoding and seeking; see video_in.h. */
#include <errno.h>
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
#include "base/regular.h"
#include "media/av.h"
#include "media/video_in.h"

#define MAX_PIXELS       ((int64_t)1 << 27)
#define LIMIT_S          3600
#define IO_BUFFER        65536
#define MAX_IDLE_PACKETS 4096 /* packets without a frame before the rest counts as lost */
#define MAX_READ_ERRORS  32
#define MAX_SAR          8 /* a sample aspect ratio beyond 8:1 is a fault of the file */

/* Containers with their own media: no playlists, devices, or text drawn as pictures. */
#define FORMATS                                                                                                        \
	"mov,matroska,webm,avi,mpegts,mpeg,mpegvideo,m4v,h264,hevc,obu,av1,ivf,ogg,flv,live_flv,asf,mxf,yuv4mpegpipe," \
	"rm,"                                                                                                          \
	"wtv,dv,nut,vc1,h263,h261,mjpeg,apng,gif,"                                                                     \
	"jpeg_pipe,png_pipe,webp_pipe,bmp_pipe,tiff_pipe,pam_pipe,pbm_pipe,pgm_pipe,ppm_pipe,jpegxl_pipe,j2k_pipe,"    \
	"jpegls_pipe,exr_pipe,dpx_pipe,qoi_pipe,sgi_pipe,psd_pipe,"                                                    \
	"mp3,aac,wav,flac,ac3,amr,caf,aiff"

struct vfm_video {
	char *path;
	struct vfm_video_opts opts;
	struct vfm_video_info info;

	int fd, read_errno; /* read_errno: of a read that failed; 0: none */
	int64_t size, pos;
	AVIOContext *io;
	AVFormatContext *fmt;
	AVStream *stream;
	AVCodecContext *dec;
	AVPacket *packet;
	AVFrame *frame, *ahead; /* `ahead`: decoded, not yet returned */
	bool has_ahead, draining, at_end;
	bool abandoned; /* FFmpeg has no memory: it may abort when it frees a decoder with threads, so nothing is freed
			 */
	int64_t next_index;
	int64_t idle_packets, read_errors;
	int64_t first_pts, flagged; /* flagged: frames marked as damaged, packets refused */
	int64_t last_index;         /* of the frame returned last, and its time */
	double last_time_s;
	struct vfm_orient orient;
	struct vfm_av_errors errors;
	struct vfm_pixels *pixels;
};

/* ---- reading the file ---- */

static int io_read(void *arg, uint8_t *buf, int size)
{
	struct vfm_video *v = arg;
	ssize_t n;

	if (vfm_limit_is_over(&v->opts.limit))
		return AVERROR_EXIT;
	do
		n = pread(v->fd, buf, (size_t)size, v->pos);
	while (n < 0 && errno == EINTR);
	if (n < 0) {
		v->read_errno = errno;
		return AVERROR(errno);
	}
	v->pos += n;
	return n ? (int)n : AVERROR_EOF;
}

static int64_t io_seek(void *arg, int64_t offset, int whence)
{
	struct vfm_video *v = arg;

	whence &= ~AVSEEK_FORCE;
	if (whence == AVSEEK_SIZE)
		return v->size;
	if (whence == SEEK_CUR)
		offset += v->pos;
	else if (whence == SEEK_END)
		offset += v->size;
	if (offset < 0)
		return AVERROR(EINVAL);
	return v->pos = offset;
}

/* Refuses to open other files that a file names. */
static int io_no_other(AVFormatContext *s, AVIOContext **pb, const char *url, int flags, AVDictionary **options)
{
	(void)s, (void)pb, (void)url, (void)flags, (void)options;
	return AVERROR(EACCES);
}

static int is_late(void *arg)
{
	const struct vfm_video *v = arg;

	return vfm_limit_is_over(&v->opts.limit);
}

static int open_input(struct vfm_video *v, struct vfm_err *err)
{
	uint64_t size = 0;
	uint8_t *buf;

	v->fd = vfm_open_regular(v->path, &size, err);
	TRY(v->fd);
	if (size == 0)
		return vfm_fail(err, VFM_EINPUT, "'%s' is empty", v->path);
	v->size = (int64_t)size;
	v->pos = 0;
	buf = av_malloc(IO_BUFFER);
	v->io = buf ? avio_alloc_context(buf, IO_BUFFER, 0, v, io_read, NULL, io_seek) : NULL;
	if (!v->io)
		return vfm_fail(err, VFM_EENV, "out of memory");
	return 0;
}

/* Fails if the limit is over or a read has failed, of which FFmpeg reports only the end of the data. */
static int check_reading(struct vfm_video *v, struct vfm_err *err)
{
	TRY(vfm_limit_check(&v->opts.limit, v->path, err));
	if (!v->read_errno)
		return 0;
	errno = v->read_errno;
	return vfm_fail_errno(err, VFM_EINPUT, "cannot read '%s'", v->path);
}

static int av_failed(struct vfm_video *v, int rc, const char *what, struct vfm_err *err)
{
	char buf[128];
	const char *line = vfm_av_last_line();

	if (!strncmp(line, "Format not on whitelist", 23))
		return vfm_fail(err, VFM_EINPUT, "'%s': %s: a format that is not supported", v->path, what);
	TRY(check_reading(v, err));
	v->abandoned = vfm_av_code(rc, 0) < 0;
	return vfm_fail(err, v->abandoned ? VFM_EENV : VFM_EINPUT, "'%s': %s: %s%s%s", v->path, what,
		vfm_av_strerror(rc, buf), *line ? ": " : "", line);
}

static int open_container(struct vfm_video *v, struct vfm_err *err)
{
	AVDictionary *options = NULL, **streams = NULL;
	unsigned n_streams;
	int rc;

	v->fmt = avformat_alloc_context();
	if (!v->fmt)
		return vfm_fail(err, VFM_EENV, "out of memory");
	v->fmt->pb = v->io;
	v->fmt->io_open = io_no_other;
	v->fmt->opaque = &v->errors;
	v->fmt->interrupt_callback = (AVIOInterruptCB){is_late, v};
	av_dict_set(&options, "format_whitelist", FORMATS, 0);
	vfm_av_forget_line();
	/* No name is given, so that the content determines the format and patterns in names have no meaning. */
	rc = avformat_open_input(&v->fmt, NULL, NULL, &options);
	av_dict_free(&options);
	if (rc < 0)
		return av_failed(v, rc, "not a video or image that can be read", err);

	n_streams = v->fmt->nb_streams;
	streams = vfm_calloc(n_streams + 1, sizeof(streams[0]));
	for (unsigned i = 0; i < n_streams; i++)
		av_dict_set_int(&streams[i], "max_pixels", v->opts.max_pixels, 0);
	rc = avformat_find_stream_info(v->fmt, n_streams ? streams : NULL);
	for (unsigned i = 0; i < n_streams; i++)
		av_dict_free(&streams[i]);
	free(streams);
	if (rc < 0)
		return av_failed(v, rc, "cannot read the streams", err);
	return 0;
}

static int choose_stream(struct vfm_video *v, struct vfm_err *err)
{
	bool cover = false, has_default = false, is_default;

	for (unsigned i = 0; i < v->fmt->nb_streams; i++) {
		AVStream *s = v->fmt->streams[i];

		s->discard = AVDISCARD_ALL;
		if (s->codecpar->codec_type == AVMEDIA_TYPE_AUDIO)
			v->info.has_audio = true;
		if (s->codecpar->codec_type != AVMEDIA_TYPE_VIDEO)
			continue;
		if (s->disposition & (AV_DISPOSITION_ATTACHED_PIC | AV_DISPOSITION_TIMED_THUMBNAILS)) {
			cover = true;
			continue;
		}
		is_default = s->disposition & AV_DISPOSITION_DEFAULT;
		/* like players: the first default stream, or else the first */
		if (!v->stream || (is_default && !has_default)) {
			has_default = is_default;
			v->stream = s;
		}
	}
	if (!v->stream)
		return vfm_fail(err, VFM_EINPUT,
			cover ? "'%s': no video stream, only a cover picture" : "'%s': no video stream", v->path);
	v->stream->discard = AVDISCARD_DEFAULT;
	if (v->stream->codecpar->codec_tag == MKTAG('e', 'n', 'c', 'v') ||
		av_stream_get_side_data(v->stream, AV_PKT_DATA_ENCRYPTION_INIT_INFO, NULL))
		return vfm_fail(err, VFM_EINPUT, "'%s': encrypted", v->path);
	return 0;
}

static int open_decoder(struct vfm_video *v, struct vfm_err *err)
{
	AVCodecParameters *par = v->stream->codecpar;
	const AVCodec *codec = avcodec_find_decoder(par->codec_id);
	int rc;

	if (!codec)
		return vfm_fail(err, VFM_EINPUT, "'%s': no decoder for %s", v->path, avcodec_get_name(par->codec_id));
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
	if (v->opts.draft)
		v->dec->skip_loop_filter = AVDISCARD_ALL;
	vfm_av_forget_line();
	rc = avcodec_open2(v->dec, codec, NULL);
	if (rc == AVERROR(EAGAIN))
		v->abandoned = true;
	if (v->abandoned)
		return vfm_fail(err, VFM_EENV, "'%s': cannot start the threads of the decoder", v->path);
	if (rc < 0)
		return av_failed(v, rc, "cannot decode", err);
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

static bool is_image(const struct vfm_video *v)
{
	const char *name = v->fmt->iformat->name;
	size_t n = strlen(name);
	const AVDictionaryEntry *brand = av_dict_get(v->fmt->metadata, "major_brand", NULL, 0);

	if (n > 5 && !strcmp(name + n - 5, "_pipe"))
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
	AVRational sar = av_guess_sample_aspect_ratio(v->fmt, v->stream, f);
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
}

static void gather_info(struct vfm_video *v)
{
	struct vfm_video_info *i = &v->info;
	AVFrame *f = v->ahead;
	AVRational rate = stream_rate(v->stream), sar = av_guess_sample_aspect_ratio(v->fmt, v->stream, f);
	const AVPixFmtDescriptor *desc = av_pix_fmt_desc_get(f->format);

	i->image = is_image(v);
	snprintf(i->container, sizeof(i->container), "%.*s", (int)strcspn(v->fmt->iformat->name, ","),
		v->fmt->iformat->name);
	snprintf(i->codec, sizeof(i->codec), "%s", avcodec_get_name(v->stream->codecpar->codec_id));
	snprintf(i->pix_fmt, sizeof(i->pix_fmt), "%s", desc ? desc->name : "?");
	find_orientation(v, f);
	i->rotation = vfm_orient_degrees(v->orient, &i->mirrored);
	i->coded_width = f->width;
	i->coded_height = f->height;
	shown_size(v, f, &i->width, &i->height);
	i->sar_num = sar.num > 0 && sar.den > 0 ? sar.num : 1;
	i->sar_den = sar.num > 0 && sar.den > 0 ? sar.den : 1;
	i->has_alpha = desc && desc->flags & AV_PIX_FMT_FLAG_ALPHA;
	i->fps_num = i->image ? 0 : rate.num;
	i->fps_den = i->image ? 1 : rate.den;
	i->frames = i->image ? 1 : v->stream->nb_frames > 0 ? v->stream->nb_frames : -1;
	i->tick_s = av_q2d(v->stream->time_base);
	i->duration_s = i->stream_s = -1;
	if (!i->image && v->stream->duration > 0)
		i->duration_s = i->stream_s = (double)v->stream->duration * i->tick_s;
	else if (!i->image && v->fmt->duration > 0)
		i->duration_s = (double)v->fmt->duration / AV_TIME_BASE;
}

/* ---- decoding ---- */

static int64_t pts_of(const AVFrame *f)
{
	/* Not best_effort_timestamp, which depends on where decoding began. */
	int64_t pts = f->pts != AV_NOPTS_VALUE ? f->pts : f->pkt_dts;

	return pts == AV_NOPTS_VALUE ? INT64_MIN : pts;
}

static int send_packet(struct vfm_video *v, struct vfm_err *err)
{
	int rc = av_read_frame(v->fmt, v->packet);

	if (rc == AVERROR(EAGAIN) && ++v->read_errors < MAX_READ_ERRORS)
		return 0;
	if (rc < 0) {
		TRY(check_reading(v, err));
		if (vfm_av_code(rc, 0) < 0)
			return av_failed(v, rc, "cannot read", err);
		if (rc != AVERROR_EOF)
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
		return av_failed(v, rc, "cannot decode", err);
	if (rc < 0 && rc != AVERROR(EAGAIN) && rc != AVERROR_EOF)
		v->flagged++;
	if (++v->idle_packets > MAX_IDLE_PACKETS) {
		v->flagged++;
		v->draining = true;
		avcodec_send_packet(v->dec, NULL);
	}
	return 0;
}

/* Decodes one frame into `f`.  Returns 1, or 0 at the end. */
static int decode(struct vfm_video *v, AVFrame *f, struct vfm_err *err)
{
	int rc, refused = 0;

	if (v->at_end)
		return 0;
	for (;;) {
		TRY(check_reading(v, err));
		rc = avcodec_receive_frame(v->dec, f);
		if (rc >= 0) {
			if (f->width < 1 || f->height < 1 || (int64_t)f->width * f->height > v->opts.max_pixels) {
				v->flagged++;
				av_frame_unref(f);
				continue;
			}
			v->idle_packets = 0;
			if (f->flags & AV_FRAME_FLAG_CORRUPT || f->decode_error_flags)
				v->flagged++;
			v->at_end = v->info.image;
			return 1;
		}
		if (rc == AVERROR_EOF || (v->draining && (rc == AVERROR(EAGAIN) || ++refused > MAX_READ_ERRORS))) {
			v->at_end = true;
			return 0;
		}
		if (rc == AVERROR(ENOMEM)) {
			if (vfm_av_code(rc, 0) < 0)
				return av_failed(v, rc, "cannot decode", err);
			v->flagged++;
			if (++refused > MAX_READ_ERRORS)
				return vfm_fail(err, VFM_EINPUT, "'%s': a frame is too big for memory", v->path);
		} else if (rc != AVERROR(EAGAIN)) {
			v->flagged++;
		}
		TRY(send_packet(v, err));
	}
}

static void close_all(struct vfm_video *v)
{
	avcodec_free_context(&v->dec);
	avformat_close_input(&v->fmt);
	if (v->io)
		av_freep(&v->io->buffer);
	avio_context_free(&v->io);
	av_packet_free(&v->packet);
	av_frame_free(&v->frame);
	av_frame_free(&v->ahead);
	if (v->fd >= 0)
		close(v->fd);
	v->fd = -1;
	v->stream = NULL;
	v->has_ahead = v->draining = v->at_end = false;
	v->next_index = v->idle_packets = v->read_errors = v->flagged = 0;
	v->read_errno = 0;
	atomic_store(&v->errors.lines, 0);
}

static int open_streams(struct vfm_video *v, struct vfm_err *err)
{
	int rc;

	TRY(open_input(v, err));
	TRY(open_container(v, err));
	TRY(choose_stream(v, err));
	TRY(open_decoder(v, err));
	v->packet = av_packet_alloc();
	v->frame = av_frame_alloc();
	v->ahead = av_frame_alloc();
	if (!v->packet || !v->frame || !v->ahead)
		return vfm_fail(err, VFM_EENV, "out of memory");
	v->info.image = is_image(v);
	rc = decode(v, v->ahead, err);
	TRY(rc);
	if (rc == 0) {
		const char *line = vfm_av_last_line();

		/* Decoders also drop frames because there is no memory. */
		v->abandoned = vfm_av_code(AVERROR(ENOMEM), 0) < 0;
		return vfm_fail(err, v->abandoned ? VFM_EENV : VFM_EINPUT, "'%s': no frame can be decoded%s%s", v->path,
			*line ? ": " : "", line);
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
	v->fd = -1;
	v->path = vfm_strdup(path);
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

void vfm_video_close(struct vfm_video *v)
{
	if (!v || v->abandoned || vfm_av_starved())
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
		rc = decode(v, v->frame, err);
	v->has_ahead = false;
	if (rc <= 0)
		return rc;
	*f = (struct vfm_frame){.index = v->next_index++, .pts = pts_of(v->frame)};
	f->damaged = v->frame->flags & AV_FRAME_FLAG_CORRUPT || v->frame->decode_error_flags;
	shown_size(v, v->frame, &f->width, &f->height);
	if (f->pts != INT64_MIN && v->first_pts != INT64_MIN)
		f->time_s = ((double)f->pts - (double)v->first_pts) * av_q2d(v->stream->time_base);
	else if (f->index > 0 && v->last_index == f->index - 1)
		f->time_s = v->last_time_s + 1 / rate;
	else
		f->time_s = (double)f->index / rate;
	v->last_index = f->index;
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
			rc = decode(v, v->frame, err);
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

/* Seeks to a key frame at or before `from` and decodes up to `pts`.  Returns 1, or 0 if that does not reach it. */
static int seek_by_pts(struct vfm_video *v, int64_t from, int64_t pts, struct vfm_err *err)
{
	bool key_seen = false;
	int rc;

	if (avformat_seek_file(v->fmt, v->stream->index, INT64_MIN, from, from, 0) < 0)
		return 0;
	avcodec_flush_buffers(v->dec);
	av_frame_unref(v->ahead);
	v->has_ahead = v->draining = v->at_end = false;
	v->idle_packets = 0;
	while ((rc = decode(v, v->ahead, err)) == 1) {
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
	if (pts != INT64_MIN && v->first_pts != INT64_MIN && index > 0) {
		rc = seek_by_pts(v, pts, pts, err);
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

/* ---- pixels ---- */

static int convert(
	struct vfm_video *v, int width, int height, enum vfm_fit fit, bool luma, uint8_t *dst, struct vfm_err *err)
{
	struct vfm_pixels_job job = {
		.frame = v->frame,
		.orient = v->orient,
		.width = width,
		.height = height,
		.cover = fit == VFM_FIT_COVER,
		.luma = luma,
		.dst = dst,
	};

	if (!v->frame->buf[0])
		return vfm_fail(err, VFM_EUSAGE, "no frame was decoded yet");
	if (!v->pixels)
		v->pixels = vfm_pixels_new();
	shown_size(v, v->frame, &job.shown_w, &job.shown_h);
	if (vfm_pixels_run(v->pixels, &job, err) < 0)
		return vfm_err_context(err, "'%s'", v->path);
	return 0;
}

int vfm_video_rgb(struct vfm_video *v, int width, int height, enum vfm_fit fit, uint8_t *rgb, struct vfm_err *err)
{
	return convert(v, width, height, fit, false, rgb, err);
}

int vfm_video_luma(struct vfm_video *v, int width, int height, enum vfm_fit fit, uint8_t *luma, struct vfm_err *err)
{
	return convert(v, width, height, fit, true, luma, err);
}
