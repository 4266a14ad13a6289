/* remux.c - reads packets of the range, checks that they may be copied, and writes them to a new file. */
#include <errno.h>
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/stats.h"
#include "io/file.h"
#include "media/av/av.h"
#include "media/av/remux.h"
#include "media/av/source.h"

#define MAX_REORDER 64          /* packets that a codec may delay frames by: HEVC's most is 16 */
#define MAX_BYTES   (1LL << 29) /* of the packets that are held */

struct remux {
	const struct vfm_remux_opts *o;
	struct vfm_source source;
	AVStream *in;
	AVPacket **packet; /* of the range, in the order of decoding; all before the first write */
	size_t n, cap;
	int64_t bytes, first_pts, last_pts; /* least and greatest time shown */
	AVPacket *next;
};

bool vfm_remux_takes(const char *codec)
{
	static const char *const codecs[] = {"h264", "hevc", "av1", "vp9", "mpeg4"};

	for (size_t i = 0; i < sizeof(codecs) / sizeof(codecs[0]); i++)
		if (!strcmp(codec, codecs[i]))
			return true;
	return false;
}

static int open_packets(struct remux *x, const char *src, struct vfm_err *err)
{
	AVFormatContext *fmt;

	TRY(vfm_source_open(&x->source, src, &(struct vfm_source_opts){.limit = x->o->limit}, err));
	fmt = x->source.fmt;
	for (unsigned i = 0; i < fmt->nb_streams; i++) {
		fmt->streams[i]->discard = AVDISCARD_ALL;
		if (fmt->streams[i]->codecpar->codec_type != AVMEDIA_TYPE_VIDEO)
			continue;
		if (x->in) /* which one the reader of frames chose is its matter */
			return 0;
		x->in = fmt->streams[i];
	}
	x->next = av_packet_alloc();
	if (!x->next)
		return vfm_fail(err, VFM_EENV, "out of memory");
	if (!x->in)
		return 0;
	x->in->discard = AVDISCARD_DEFAULT;
	if (x->o->start_pts != INT64_MIN && x->o->start > 0)
		return avformat_seek_file(fmt, x->in->index, INT64_MIN, x->o->start_pts, x->o->start_pts, 0) >= 0;
	return x->o->start == 0;
}

static bool is_plain(const AVPacket *p)
{
	return p->pts != AV_NOPTS_VALUE && p->dts != AV_NOPTS_VALUE &&
		!(p->flags & (AV_PKT_FLAG_CORRUPT | AV_PKT_FLAG_DISCARD)) &&
		!av_packet_get_side_data(p, AV_PKT_DATA_ENCRYPTION_INFO, NULL) &&
		!av_packet_get_side_data(p, AV_PKT_DATA_NEW_EXTRADATA, NULL);
}

/* Moves the packet that was read to the range. */
static int keep_packet(struct remux *x, struct vfm_err *err)
{
	AVPacket *p = av_packet_alloc();

	if (!p || av_packet_ref(p, x->next) < 0) {
		av_packet_free(&p);
		return vfm_fail(err, VFM_EENV, "out of memory");
	}
	vfm_grow(&x->packet, &x->cap, x->n + 1, sizeof(x->packet[0]));
	x->packet[x->n++] = p;
	x->bytes += p->size;
	if (x->n == 1 || p->pts > x->last_pts)
		x->last_pts = p->pts;
	return 0;
}

/* Reads up to the key frame where the range begins.  Returns 1, or 0 if there is none. */
static int find_first(struct remux *x, struct vfm_err *err)
{
	int64_t wanted = x->o->start > 0 ? x->o->start_pts : INT64_MIN;
	int rc;

	while ((rc = vfm_source_read(&x->source, x->in, x->next, err)) == 1) {
		if (!is_plain(x->next))
			return 0;
		if (wanted != INT64_MIN && x->next->pts != wanted) {
			/* a key frame later than the wanted one: that is none */
			if (x->next->flags & AV_PKT_FLAG_KEY && x->next->pts > wanted)
				return 0;
			continue;
		}
		if (!(x->next->flags & AV_PKT_FLAG_KEY))
			return 0;
		x->first_pts = x->next->pts;
		TRY(keep_packet(x, err));
		return 1;
	}
	return rc;
}

/* Returns 1 if no packet after the range is shown before its end, else 0. */
static int check_rest(struct remux *x, struct vfm_err *err)
{
	int rc = 1;

	for (int i = 0; i < MAX_REORDER && (rc = vfm_source_read(&x->source, x->in, x->next, err)) == 1; i++) {
		if (x->next->pts == AV_NOPTS_VALUE)
			return 0;
		if (x->next->pts >= x->first_pts && x->next->pts < x->last_pts)
			return 0;
	}
	return rc < 0 ? rc : 1;
}

/* Holds the packets of the range.  Returns 1, or 0 if it cannot be copied. */
static int read_range(struct remux *x, struct vfm_err *err)
{
	int64_t want = x->o->end < 0 ? INT64_MAX : x->o->end - x->o->start;
	int rc = find_first(x, err);

	if (rc != 1)
		return rc;
	while ((int64_t)x->n < want && (rc = vfm_source_read(&x->source, x->in, x->next, err)) == 1) {
		if (!is_plain(x->next) || x->bytes > MAX_BYTES)
			return 0;
		if (x->next->pts < x->first_pts) {
			if (x->o->start == 0) /* they are frames of the range */
				return 0;
			continue;
		}
		TRY(keep_packet(x, err));
	}
	if (rc < 0)
		return rc;
	if (x->o->end >= 0 && (int64_t)x->n < want)
		return 0; /* decoding reports it */
	return x->o->end < 0 ? 1 : check_rest(x, err);
}

/* The times of the range in the order of display. */
static struct vfm_times range_times(const struct remux *x)
{
	struct vfm_times times = {.tick_s = av_q2d(x->in->time_base)};
	int64_t *pts = vfm_calloc(x->n, sizeof(*pts));

	for (size_t i = 0; i < x->n; i++)
		pts[i] = x->packet[i]->pts - x->first_pts;
	vfm_sort_i64(pts, x->n);
	for (size_t i = 0; i < x->n; i++)
		vfm_times_add(&times, (double)pts[i] * times.tick_s);
	free(pts);
	return times;
}

static int mux_failed(int rc, const char *path, struct vfm_err *err)
{
	char buf[128];

	return vfm_fail(err, vfm_av_code(rc, vfm_errno_code(AVUNERROR(rc), VFM_EINPUT)), "cannot write '%s': %s", path,
		vfm_av_strerror(rc, buf));
}

static int write_packets(struct remux *x, AVFormatContext *to, struct vfm_remux_result *r)
{
	AVStream *out = to->streams[0];
	AVRational tb = x->in->time_base;
	int rc = 0;

	for (size_t i = 0; i < x->n && rc >= 0; i++) {
		AVPacket *p = x->packet[i];
		int64_t end = p->pts - x->first_pts + p->duration;

		if ((double)end * av_q2d(tb) > r->duration_s)
			r->duration_s = (double)end * av_q2d(tb);
		p->pts -= x->first_pts;
		p->dts -= x->first_pts;
		p->pos = -1;
		p->stream_index = 0;
		av_packet_rescale_ts(p, tb, out->time_base);
		rc = av_interleaved_write_frame(to, p);
	}
	r->frames = (int64_t)x->n;
	return rc;
}

/* Returns 1, or 0 if the muxer refuses the stream. */
static int write_copy(struct remux *x, const struct vfm_atomic *file, struct vfm_remux_result *r, struct vfm_err *err)
{
	char *url = vfm_strfmt("file:%s", file->tmp ? file->tmp : file->path);
	AVDictionary *options = NULL;
	AVFormatContext *to = NULL;
	AVStream *out;
	int rc = avformat_alloc_output_context2(&to, NULL, "mp4", url), refused = 0;

	if (rc >= 0)
		rc = avio_open(&to->pb, url, AVIO_FLAG_WRITE);
	free(url);
	if (rc >= 0) {
		to->flags |= AVFMT_FLAG_BITEXACT;
		out = avformat_new_stream(to, NULL);
		rc = out ? avcodec_parameters_copy(out->codecpar, x->in->codecpar) : AVERROR(ENOMEM);
	}
	if (rc >= 0) {
		out->codecpar->codec_tag = 0;
		out->time_base = x->in->time_base;
		av_dict_set(&options, "movflags", "+faststart", 0);
		rc = avformat_write_header(to, &options);
		av_dict_free(&options);
		refused = rc == AVERROR(EINVAL) || rc == AVERROR_INVALIDDATA;
		if (rc >= 0)
			rc = write_packets(x, to, r);
		if (rc >= 0)
			rc = av_write_trailer(to);
		if (rc >= 0)
			rc = avio_closep(&to->pb);
	}
	if (to)
		avio_closep(&to->pb);
	avformat_free_context(to);
	return refused ? 0 : rc < 0 ? mux_failed(rc, file->path, err) : 1;
}

static int publish_copy(struct remux *x, const char *path, struct vfm_remux_result *r, struct vfm_err *err)
{
	struct vfm_atomic file;
	int rc;

	TRY(vfm_atomic_open(&file, path, err));
	rc = write_copy(x, &file, r, err);
	if (rc == 1)
		TRY(vfm_atomic_commit(&file, err));
	else
		vfm_atomic_abort(&file);
	return rc;
}

int vfm_remux(const char *src, const char *out, const struct vfm_remux_opts *o, struct vfm_remux_result *r,
	struct vfm_err *err)
{
	struct remux x = {.o = o};
	int rc = open_packets(&x, src, err);

	*r = (struct vfm_remux_result){0};
	if (rc == 1)
		rc = read_range(&x, err);
	if (rc == 1) {
		r->start_s = (double)x.first_pts * av_q2d(x.in->time_base);
		r->times = range_times(&x);
		rc = publish_copy(&x, out, r, err);
	}
	for (size_t i = 0; i < x.n; i++)
		av_packet_free(&x.packet[i]);
	free(x.packet);
	av_packet_free(&x.next);
	vfm_source_close(&x.source);
	return rc;
}
