/* jpeg.c - converts RGB to Y'CbCr of BT.601, full range (JFIF), and encodes it with FFmpeg's mjpeg. */
#include "media/av/jpeg.h"

#include <libavcodec/avcodec.h>
#include <libavutil/frame.h>

#include "media/av/av.h"

enum { QUALITY = 4 /* quantizer, 2 the best; no visible blocks at the size of a thumbnail */ };

static uint8_t clamp_sample(double x)
{
	return (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x + 0.5);
}

/* Cb and Cr are those of the mean of 2 x 2 pixels; the last column and row repeat if a side is odd. */
static void fill_jpeg_chroma(AVFrame *f, const uint8_t *rgb, int width, int height)
{
	for (int y = 0; y < (height + 1) / 2; y++)
		for (int x = 0; x < (width + 1) / 2; x++) {
			double sum[3] = {0};

			for (int i = 0; i < 4; i++) {
				int px = 2 * x + i % 2, py = 2 * y + i / 2;
				const uint8_t *p;

				px = px < width ? px : width - 1;
				py = py < height ? py : height - 1;
				p = rgb + ((size_t)py * (size_t)width + (size_t)px) * 3;
				for (int c = 0; c < 3; c++)
					sum[c] += p[c] / 4.0;
			}
			f->data[1][y * f->linesize[1] + x] =
				clamp_sample(128 - 0.168736 * sum[0] - 0.331264 * sum[1] + 0.5 * sum[2]);
			f->data[2][y * f->linesize[2] + x] =
				clamp_sample(128 + 0.5 * sum[0] - 0.418688 * sum[1] - 0.081312 * sum[2]);
		}
}

static int make_jpeg_frame(AVFrame **frame, const uint8_t *rgb, int width, int height)
{
	AVFrame *f = *frame = av_frame_alloc();
	int rc;

	if (!f)
		return AVERROR(ENOMEM);
	f->width = width;
	f->height = height;
	f->format = AV_PIX_FMT_YUVJ420P;
	f->quality = QUALITY * FF_QP2LAMBDA;
	rc = av_frame_get_buffer(f, 0);
	if (rc < 0)
		return rc;
	for (int y = 0; y < height; y++)
		for (int x = 0; x < width; x++, rgb += 3)
			f->data[0][y * f->linesize[0] + x] =
				clamp_sample(0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]);
	fill_jpeg_chroma(f, rgb - (size_t)width * (size_t)height * 3, width, height);
	return 0;
}

static int open_jpeg_encoder(AVCodecContext **enc, int width, int height)
{
	const AVCodec *codec = avcodec_find_encoder(AV_CODEC_ID_MJPEG);
	AVCodecContext *c = *enc = codec ? avcodec_alloc_context3(codec) : NULL;

	if (!c)
		return codec ? AVERROR(ENOMEM) : AVERROR_ENCODER_NOT_FOUND;
	c->width = width;
	c->height = height;
	c->pix_fmt = AV_PIX_FMT_YUVJ420P;
	c->time_base = (AVRational){1, 25};
	c->thread_count = 1;
	c->flags |= AV_CODEC_FLAG_QSCALE | AV_CODEC_FLAG_BITEXACT;
	c->global_quality = QUALITY * FF_QP2LAMBDA;
	return avcodec_open2(c, codec, NULL);
}

int vfm_jpeg_encode(struct vfm_buf *out, const uint8_t *rgb, int width, int height, struct vfm_err *err)
{
	AVCodecContext *enc = NULL;
	AVPacket *packet = NULL;
	AVFrame *frame = NULL;
	char text[128];
	int rc;

	vfm_av_init();
	TRY_OUT(open_jpeg_encoder(&enc, width, height));
	TRY_OUT(make_jpeg_frame(&frame, rgb, width, height));
	packet = av_packet_alloc();
	TRY_OUT(packet ? 0 : AVERROR(ENOMEM));
	TRY_OUT(avcodec_send_frame(enc, frame));
	TRY_OUT(avcodec_receive_packet(enc, packet));
	vfm_buf_add(out, packet->data, (size_t)packet->size);
out:
	if (rc < 0)
		rc = vfm_fail(err, vfm_av_code(rc, VFM_EENV), "cannot encode a picture of %dx%d: %s", width, height,
			vfm_av_strerror(rc, text));
	av_packet_free(&packet);
	av_frame_free(&frame);
	avcodec_free_context(&enc);
	return rc;
}
