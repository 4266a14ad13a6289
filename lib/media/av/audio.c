/* audio.c - copies packets of sound, or decodes, cuts and encodes them, in the time of the clip. */
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/channel_layout.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/av/audio.h"
#include "media/av/av.h"
#include "media/av/graph.h"
#include "media/av/source.h"

#define PREROLL_S    0.2   /* decoding begins so long before the clip: codecs overlap their frames */
#define AAC_BIT_RATE 96000 /* of a channel */
#define MAX_CHANNELS 8

struct vfm_audio {
	struct vfm_source source;
	AVStream *in, *out;
	bool copy, started, draining, ended, has_packet;
	double start_s;
	int64_t last_pts; /* of the packet written last; INT64_MIN: none */
	AVPacket *packet; /* has_packet: waits to be written, in the time base of `out` */
	/* unless `copy` */
	AVCodecContext *dec, *enc;
	struct vfm_graph *graph; /* NULL before the first frame */
	AVFrame *frame;
	AVPacket *coded;
};

static int no_memory(struct vfm_err *err)
{
	return vfm_fail(err, VFM_EENV, "out of memory");
}

int vfm_audio_open(struct vfm_audio **out, const char *src, const struct vfm_limit *limit, struct vfm_err *err)
{
	struct vfm_audio *a = vfm_calloc(1, sizeof(*a));
	int rc;

	*out = NULL;
	a->last_pts = INT64_MIN;
	TRY_OUT(vfm_source_open(&a->source, src, &(struct vfm_source_opts){.limit = limit}, err));
	a->in = vfm_source_choose(&a->source, AVMEDIA_TYPE_AUDIO);
	if (!a->in)
		goto out;
	a->packet = av_packet_alloc();
	a->coded = av_packet_alloc();
	a->frame = av_frame_alloc();
	if (!a->packet || !a->coded || !a->frame) {
		rc = no_memory(err);
		goto out;
	}
	*out = a;
	return 0;
out:
	vfm_audio_close(a);
	return rc;
}

void vfm_audio_close(struct vfm_audio *a)
{
	if (!a)
		return;
	avcodec_free_context(&a->dec);
	avcodec_free_context(&a->enc);
	vfm_graph_free(a->graph);
	av_frame_free(&a->frame);
	av_packet_free(&a->packet);
	av_packet_free(&a->coded);
	vfm_source_close(&a->source);
	free(a);
}

/* ---- the stream of the clip ---- */

static bool can_copy(const AVOutputFormat *to, enum AVCodecID id)
{
	static const enum AVCodecID mp4[] = {
		AV_CODEC_ID_AAC, AV_CODEC_ID_MP3, AV_CODEC_ID_AC3, AV_CODEC_ID_EAC3, AV_CODEC_ID_ALAC};

	if (!strcmp(to->name, "matroska"))
		return avformat_query_codec(to, id, FF_COMPLIANCE_NORMAL) == 1;
	for (size_t i = 0; i < sizeof(mp4) / sizeof(mp4[0]); i++)
		if (mp4[i] == id)
			return true;
	return false;
}

static int open_audio_decoder(struct vfm_audio *a, struct vfm_err *err)
{
	const AVCodec *codec = avcodec_find_decoder(a->in->codecpar->codec_id);
	char name[64];

	if (!codec)
		return vfm_fail(err, VFM_EINPUT, "'%s': no decoder for audio in %s", a->source.path,
			vfm_av_codec_name(a->in->codecpar, name));
	a->dec = avcodec_alloc_context3(codec);
	if (!a->dec || avcodec_parameters_to_context(a->dec, a->in->codecpar) < 0)
		return no_memory(err);
	a->dec->pkt_timebase = a->in->time_base;
	if (avcodec_open2(a->dec, codec, NULL) < 0)
		return vfm_fail(err, VFM_EINPUT, "'%s': cannot decode the audio", a->source.path);
	return 0;
}

/* AAC takes a few sample rates; the filters convert others to 48 kHz. */
static int aac_rate(const AVCodec *codec, int rate)
{
	for (const int *r = codec->supported_samplerates; r && *r; r++)
		if (*r == rate)
			return rate;
	return 48000;
}

static int open_audio_encoder(struct vfm_audio *a, const AVFormatContext *muxer, struct vfm_err *err)
{
	const AVCodec *codec = avcodec_find_encoder(AV_CODEC_ID_AAC);
	int channels = a->in->codecpar->ch_layout.nb_channels;

	if (!codec)
		return vfm_fail(err, VFM_EUSAGE, "no encoder for AAC");
	if (channels < 1 || channels > MAX_CHANNELS || channels == 7)
		channels = 2;
	a->enc = avcodec_alloc_context3(codec);
	if (!a->enc)
		return no_memory(err);
	av_channel_layout_default(&a->enc->ch_layout, channels);
	a->enc->sample_fmt = AV_SAMPLE_FMT_FLTP;
	a->enc->sample_rate = aac_rate(codec, a->in->codecpar->sample_rate);
	a->enc->time_base = (AVRational){1, a->enc->sample_rate};
	a->enc->bit_rate = (int64_t)AAC_BIT_RATE * channels;
	a->enc->flags |= AV_CODEC_FLAG_BITEXACT;
	if (muxer->oformat->flags & AVFMT_GLOBALHEADER)
		a->enc->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
	if (avcodec_open2(a->enc, codec, NULL) < 0)
		return vfm_fail(err, VFM_EINPUT, "'%s': cannot encode its audio as AAC: %s", a->source.path,
			vfm_av_last_line());
	return 0;
}

int vfm_audio_add_stream(struct vfm_audio *a, AVFormatContext *muxer, struct vfm_err *err)
{
	int rc;

	a->copy = can_copy(muxer->oformat, a->in->codecpar->codec_id);
	a->out = avformat_new_stream(muxer, NULL);
	if (!a->out)
		return no_memory(err);
	if (!a->copy) {
		TRY(open_audio_decoder(a, err));
		TRY(open_audio_encoder(a, muxer, err));
	}
	rc = a->copy ? avcodec_parameters_copy(a->out->codecpar, a->in->codecpar)
		     : avcodec_parameters_from_context(a->out->codecpar, a->enc);
	if (rc < 0)
		return no_memory(err);
	a->out->codecpar->codec_tag = 0;
	a->out->time_base = a->copy ? a->in->time_base : a->enc->time_base;
	return 0;
}

/* ---- packets ---- */

int vfm_audio_start(struct vfm_audio *a, double start_s, struct vfm_err *err)
{
	int64_t at = (int64_t)floor((start_s - PREROLL_S) / av_q2d(a->in->time_base));

	a->start_s = start_s;
	a->started = true;
	/* Where seeking fails, reading begins at the start of the file. */
	(void)!avformat_seek_file(a->source.fmt, a->in->index, INT64_MIN, at, at, 0);
	return vfm_source_check(&a->source, err);
}

/* Reads a packet of audio.  Returns 1, or 0 at the end. */
static int read_audio(struct vfm_audio *a, AVPacket *p, struct vfm_err *err)
{
	int rc;

	do
		rc = vfm_source_read(&a->source, a->in, p, err);
	while (rc == 1 && p->pts == AV_NOPTS_VALUE);
	return rc;
}

/* A time of the source as a timestamp of the clip, in ticks of `tb`. */
static int64_t clip_time(const struct vfm_audio *a, int64_t pts, AVRational from, AVRational tb)
{
	return llrint(((double)pts * av_q2d(from) - a->start_s) / av_q2d(tb));
}

static int copy_packet(struct vfm_audio *a, struct vfm_err *err)
{
	int rc;

	while ((rc = read_audio(a, a->packet, err)) == 1) {
		int64_t pts = clip_time(a, a->packet->pts, a->in->time_base, a->out->time_base);

		if (pts < 0)
			continue;
		a->packet->duration = av_rescale_q(a->packet->duration, a->in->time_base, a->out->time_base);
		a->packet->pts = a->packet->dts = pts;
		return 1;
	}
	return rc;
}

static int make_audio_graph(struct vfm_audio *a, struct vfm_err *err)
{
	char layout[64], chain[256];

	if (av_channel_layout_describe(&a->enc->ch_layout, layout, sizeof(layout)) < 0)
		return no_memory(err);
	snprintf(chain, sizeof(chain),
		"atrim=start=%.6f,aformat=sample_fmts=fltp:sample_rates=%d:channel_layouts=%s,"
		"asetnsamples=n=%d:p=0",
		a->start_s, a->enc->sample_rate, layout, a->enc->frame_size);
	return vfm_graph_audio(&a->graph, a->frame, a->in->time_base, chain, err);
}

/* Decodes a packet into the filters, which cut and convert.  At the end, drains them. */
static int feed_filters(struct vfm_audio *a, struct vfm_err *err)
{
	int rc = read_audio(a, a->coded, err);

	TRY(rc);
	a->draining = rc == 0;
	/* Packets that do not decode are left out, and leave a gap. */
	(void)!avcodec_send_packet(a->dec, a->draining ? NULL : a->coded);
	while (avcodec_receive_frame(a->dec, a->frame) >= 0) {
		if (a->frame->pts == AV_NOPTS_VALUE)
			continue;
		if (!a->graph)
			TRY(make_audio_graph(a, err));
		TRY(vfm_graph_send(a->graph, a->frame, err));
		av_frame_unref(a->frame);
	}
	return a->draining && a->graph ? vfm_graph_send(a->graph, NULL, err) : 0;
}

/* Gives the encoder its next frame, or its end. */
static int feed_encoder(struct vfm_audio *a, struct vfm_err *err)
{
	int rc;

	while ((rc = a->graph ? vfm_graph_receive(a->graph, a->frame, err) : 0) == 0 && !a->draining)
		TRY(feed_filters(a, err));
	TRY(rc);
	if (rc == 0) {
		(void)!avcodec_send_frame(a->enc, NULL);
		return 0;
	}
	a->frame->pts = clip_time(a, a->frame->pts, vfm_graph_time_base(a->graph), a->enc->time_base);
	rc = avcodec_send_frame(a->enc, a->frame);
	av_frame_unref(a->frame);
	return rc < 0 ? vfm_fail(err, vfm_av_code(rc, VFM_EINPUT), "'%s': cannot encode its audio", a->source.path) : 0;
}

static int encode_packet(struct vfm_audio *a, struct vfm_err *err)
{
	int rc;

	while ((rc = avcodec_receive_packet(a->enc, a->packet)) == AVERROR(EAGAIN))
		TRY(feed_encoder(a, err));
	if (rc == AVERROR_EOF)
		return 0;
	if (rc < 0)
		return vfm_fail(err, vfm_av_code(rc, VFM_EINPUT), "'%s': cannot encode its audio", a->source.path);
	av_packet_rescale_ts(a->packet, a->enc->time_base, a->out->time_base);
	return 1;
}

/* Makes the next packet wait to be written; sets `ended` if there is none. */
static int need_packet(struct vfm_audio *a, struct vfm_err *err)
{
	int rc = 0;

	while (!a->has_packet && !a->ended) {
		rc = a->copy ? copy_packet(a, err) : encode_packet(a, err);
		TRY(rc);
		a->ended = rc == 0;
		/* a repeated timestamp, which no muxer takes, is left out */
		a->has_packet = rc == 1 && a->packet->pts > a->last_pts;
	}
	return 0;
}

int vfm_audio_write(struct vfm_audio *a, double until_s, AVFormatContext *muxer, struct vfm_err *err)
{
	char buf[128];
	int rc;

	while (a->started) {
		TRY(need_packet(a, err));
		if (a->ended || (double)a->packet->pts * av_q2d(a->out->time_base) >= until_s)
			return 0;
		a->last_pts = a->packet->pts;
		a->packet->stream_index = a->out->index;
		a->packet->pos = -1;
		a->has_packet = false;
		rc = av_interleaved_write_frame(muxer, a->packet);
		if (rc < 0)
			return vfm_fail(err, vfm_av_code(rc, vfm_errno_code(AVUNERROR(rc), VFM_EINPUT)),
				"'%s': cannot write its audio: %s", a->source.path, vfm_av_strerror(rc, buf));
	}
	return 0;
}

bool vfm_audio_is_written(const struct vfm_audio *a)
{
	return a->last_pts != INT64_MIN;
}
