/* source.c - opens files and members through callbacks that limit time and refuse other names. */
#include <errno.h>
#include <libavformat/avformat.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/input.h"
#include "media/av/source.h"

#define IO_BUFFER 65536

/* Containers with their own media: no playlists, devices, or text drawn as pictures. */
#define FORMATS                                                                                                        \
	"mov,matroska,webm,avi,mpegts,mpeg,mpegvideo,m4v,h264,hevc,obu,av1,ivf,ogg,flv,live_flv,asf,mxf,yuv4mpegpipe," \
	"rm,wtv,gxf,swf,roq,dv,nut,vc1,h263,h261,dirac,dnxhd,mjpeg,mpjpeg,apng,gif,"                                   \
	"jpeg_pipe,png_pipe,webp_pipe,bmp_pipe,tiff_pipe,pam_pipe,pbm_pipe,pgm_pipe,ppm_pipe,jpegxl_pipe,j2k_pipe,"    \
	"jpegls_pipe,exr_pipe,dpx_pipe,qoi_pipe,sgi_pipe,psd_pipe,"                                                    \
	"mp3,aac,wav,flac,ac3,amr,caf,aiff"

static int io_read(void *arg, uint8_t *buf, int size)
{
	struct vfm_source *s = arg;
	ssize_t n;

	if (vfm_limit_is_over(s->limit))
		return AVERROR_EXIT;
	if (s->is_member && size > s->size - s->pos) /* the tar continues after it */
		size = s->pos < s->size ? (int)(s->size - s->pos) : 0;
	do
		n = size ? pread(s->fd, buf, (size_t)size, s->at + s->pos) : 0;
	while (n < 0 && errno == EINTR);
	if (n < 0) {
		s->read_errno = errno;
		return AVERROR(errno);
	}
	s->is_cut |= s->is_member && n == 0 && size > 0;
	s->pos += n;
	return n ? (int)n : AVERROR_EOF;
}

static int64_t io_seek(void *arg, int64_t offset, int whence)
{
	struct vfm_source *s = arg;

	whence &= ~AVSEEK_FORCE;
	if (whence == AVSEEK_SIZE)
		return s->size;
	if (whence == SEEK_CUR)
		offset += s->pos;
	else if (whence == SEEK_END)
		offset += s->size;
	if (offset < 0)
		return AVERROR(EINVAL);
	return s->pos = offset;
}

/* Refuses to open other files that a file names. */
static int io_no_other(AVFormatContext *fmt, AVIOContext **pb, const char *url, int flags, AVDictionary **options)
{
	(void)fmt, (void)pb, (void)url, (void)flags, (void)options;
	return AVERROR(EACCES);
}

static int is_late(void *arg)
{
	const struct vfm_source *s = arg;

	return vfm_limit_is_over(s->limit);
}

static int open_input(struct vfm_source *s, struct vfm_err *err)
{
	struct vfm_input in;
	uint8_t *buf;

	TRY(vfm_input_open(&in, s->path, err));
	s->fd = in.fd;
	if (in.size == 0)
		return vfm_fail(err, VFM_EINPUT, "'%s' is empty", s->path);
	s->is_member = vfm_member_parse(NULL, s->path);
	s->at = (int64_t)in.at;
	s->size = (int64_t)in.size;
	s->pos = 0;
	buf = av_malloc(IO_BUFFER);
	s->io = buf ? avio_alloc_context(buf, IO_BUFFER, 0, s, io_read, NULL, io_seek) : NULL;
	if (!s->io)
		return vfm_fail(err, VFM_EENV, "out of memory");
	return 0;
}

int vfm_source_check(struct vfm_source *s, struct vfm_err *err)
{
	TRY(vfm_limit_check(s->limit, s->path, err));
	if (s->is_cut)
		return vfm_fail(err, VFM_EINPUT, "'%s': the tar was truncated while it was read", s->path);
	if (!s->read_errno)
		return 0;
	errno = s->read_errno;
	return vfm_fail_errno(err, VFM_EINPUT, "cannot read '%s'", s->path);
}

int vfm_source_failed(struct vfm_source *s, int rc, const char *what, struct vfm_err *err)
{
	char buf[128];
	const char *line = vfm_av_last_line();

	if (!strncmp(line, "Format not on whitelist", 23))
		return vfm_fail(err, VFM_EINPUT, "'%s': %s: unsupported format", s->path, what);
	TRY(vfm_source_check(s, err));
	s->abandoned = vfm_av_code(rc, 0) < 0;
	return vfm_fail(err, s->abandoned ? VFM_EENV : VFM_EINPUT, "'%s': %s: %s%s%s", s->path, what,
		vfm_av_strerror(rc, buf), *line ? ": " : "", line);
}

static int open_container(struct vfm_source *s, int64_t max_pixels, struct vfm_err *err)
{
	AVDictionary *options = NULL, **streams = NULL;
	unsigned n_streams;
	int rc;

	s->fmt = avformat_alloc_context();
	if (!s->fmt)
		return vfm_fail(err, VFM_EENV, "out of memory");
	s->fmt->pb = s->io;
	s->fmt->io_open = io_no_other;
	s->fmt->opaque = s->errors;
	s->fmt->interrupt_callback = (AVIOInterruptCB){is_late, s};
	av_dict_set(&options, "format_whitelist", FORMATS, 0);
	vfm_av_forget_line();
	/* No name is given, so that the content determines the format and patterns in names have no meaning. */
	rc = avformat_open_input(&s->fmt, NULL, NULL, &options);
	av_dict_free(&options);
	if (rc < 0)
		return vfm_source_failed(s, rc, "not a video or image that can be read", err);

	n_streams = s->fmt->nb_streams;
	streams = vfm_calloc(n_streams + 1, sizeof(streams[0]));
	for (unsigned i = 0; i < n_streams; i++)
		av_dict_set_int(&streams[i], "max_pixels", max_pixels, 0);
	rc = avformat_find_stream_info(s->fmt, n_streams ? streams : NULL);
	for (unsigned i = 0; i < n_streams; i++)
		av_dict_free(&streams[i]);
	free(streams);
	if (rc < 0)
		return vfm_source_failed(s, rc, "cannot read the streams", err);
	return 0;
}

int vfm_source_open(struct vfm_source *s, const char *path, const struct vfm_source_opts *opts, struct vfm_err *err)
{
	vfm_av_init();
	*s = (struct vfm_source){.path = path, .limit = opts->limit, .errors = opts->errors, .fd = -1, .is_open = true};
	TRY(open_input(s, err));
	return open_container(s, opts->max_pixels, err);
}

bool vfm_stream_is_cover(const AVStream *s)
{
	return s->disposition & (AV_DISPOSITION_ATTACHED_PIC | AV_DISPOSITION_TIMED_THUMBNAILS);
}

AVStream *vfm_source_choose(struct vfm_source *s, enum AVMediaType type)
{
	AVStream *best = NULL;

	for (unsigned i = 0; i < s->fmt->nb_streams; i++) {
		AVStream *of = s->fmt->streams[i];

		of->discard = AVDISCARD_ALL;
		if (of->codecpar->codec_type != type || vfm_stream_is_cover(of))
			continue;
		if (!best || (of->disposition & ~best->disposition & AV_DISPOSITION_DEFAULT))
			best = of;
	}
	if (best)
		best->discard = AVDISCARD_DEFAULT;
	return best;
}

int vfm_source_read(struct vfm_source *s, const AVStream *of, AVPacket *p, struct vfm_err *err)
{
	do {
		av_packet_unref(p);
		if (av_read_frame(s->fmt, p) < 0)
			return vfm_source_check(s, err);
	} while (p->stream_index != of->index);
	return 1;
}

void vfm_source_close(struct vfm_source *s)
{
	if (!s->is_open)
		return;
	avformat_close_input(&s->fmt);
	if (s->io)
		av_freep(&s->io->buffer);
	avio_context_free(&s->io);
	if (s->fd >= 0)
		close(s->fd);
	*s = (struct vfm_source){0};
}
