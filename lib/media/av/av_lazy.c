/* av_lazy.c - FFmpeg's libraries, loaded at the first call.
 *
 * Linking them loads more than a hundred shared libraries, which takes 30 ms before main; a command must start in 10
 * ms, and `vfm-curate filter` needs none of them.  This file therefore defines each function that lib/media calls and
 * forwards it to the real one.  A function missing in the list below still works: the linker then links it as usual,
 * and tests/cli/version.t fails because of the slow start.
 *
 * Hidden, so that FFmpeg's own libraries never call these.
 */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* After the headers that FFmpeg's headers include: their functions must stay visible. */
#pragma GCC visibility push(hidden)
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavfilter/avfilter.h>
#include <libavfilter/buffersink.h>
#include <libavfilter/buffersrc.h>
#include <libavutil/channel_layout.h>
#include <libavutil/hwcontext.h>
#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
#pragma GCC visibility pop

#include "base/log.h"
#include "media/av/av.h"

enum { AVUTIL, AVCODEC, AVFORMAT, SWSCALE, AVFILTER, N_LIBS };

static struct {
	const char *file;
	void *handle;
} libs[N_LIBS] = {
	[AVUTIL] = {"libavutil.so." AV_STRINGIFY(LIBAVUTIL_VERSION_MAJOR), NULL},
	[AVCODEC] = {"libavcodec.so." AV_STRINGIFY(LIBAVCODEC_VERSION_MAJOR), NULL},
	[AVFORMAT] = {"libavformat.so." AV_STRINGIFY(LIBAVFORMAT_VERSION_MAJOR), NULL},
	[AVFILTER] = {"libavfilter.so." AV_STRINGIFY(LIBAVFILTER_VERSION_MAJOR), NULL},
	[SWSCALE] = {"libswscale.so." AV_STRINGIFY(LIBSWSCALE_VERSION_MAJOR), NULL},
};
static char why[256]; /* "" = all are loaded */

static void load_all(void)
{
	for (int i = 0; i < AVFILTER && !why[0]; i++) {
		libs[i].handle = dlopen(libs[i].file, RTLD_LAZY | RTLD_LOCAL);
		if (!libs[i].handle)
			snprintf(why, sizeof(why), "cannot load FFmpeg: %s", dlerror());
	}
}

/* Few videos need filters, whose libraries are many. */
static void load_filters(void)
{
	libs[AVFILTER].handle = dlopen(libs[AVFILTER].file, RTLD_LAZY | RTLD_LOCAL);
	if (!libs[AVFILTER].handle)
		snprintf(why, sizeof(why), "cannot load FFmpeg: %s", dlerror());
}

static int load_libraries(struct vfm_err *err)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load_all);
	return why[0] ? vfm_fail(err, VFM_EENV, "%s", why) : 0;
}

/* Exits if the function is not found, as the system's loader would have done before main. */
static void *find_symbol(int lib, const char *name)
{
	static pthread_once_t filters_once = PTHREAD_ONCE_INIT;
	struct vfm_err err = {0};
	void *f;

	if (lib == AVFILTER)
		pthread_once(&filters_once, load_filters);
	f = load_libraries(&err) < 0 ? NULL : dlsym(libs[lib].handle, name);

	if (!f) {
		vfm_error("%s", err.msg[0] ? err.msg : dlerror());
		_exit(-VFM_EENV);
	}
	return f;
}

#define THE(lib, name)                                                                                                 \
	static void *found;                                                                                            \
	void *p = __atomic_load_n(&found, __ATOMIC_ACQUIRE);                                                           \
	if (!p)                                                                                                        \
		__atomic_store_n(&found, p = find_symbol(lib, #name), __ATOMIC_RELEASE);
#define FN(type, lib, name, params, args)                                                                              \
	type name params                                                                                               \
	{                                                                                                              \
		THE(lib, name)                                                                                         \
		return ((__typeof__(&name))p)args;                                                                     \
	}
#define VOID(lib, name, params, args)                                                                                  \
	void name params                                                                                               \
	{                                                                                                              \
		THE(lib, name)                                                                                         \
		((__typeof__(&name))p) args;                                                                           \
	}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* libavutil */
FN(int, AVUTIL, av_channel_layout_describe, (const AVChannelLayout *l, char *buf, size_t size), (l, buf, size))
FN(int, AVUTIL, av_channel_layout_copy, (AVChannelLayout * dst, const AVChannelLayout *src), (dst, src))
FN(AVBufferRef *, AVUTIL, av_buffer_ref, (const AVBufferRef *buf), (buf))
VOID(AVUTIL, av_buffer_unref, (AVBufferRef * *buf), (buf))
VOID(AVUTIL, av_channel_layout_default, (AVChannelLayout * l, int n), (l, n))
VOID(AVUTIL, av_channel_layout_uninit, (AVChannelLayout * l), (l))
FN(const char *, AVUTIL, av_color_primaries_name, (enum AVColorPrimaries primaries), (primaries))
FN(const char *, AVUTIL, av_color_transfer_name, (enum AVColorTransferCharacteristic transfer), (transfer))
FN(AVRational, AVUTIL, av_d2q, (double d, int max), (d, max))
VOID(AVUTIL, av_dict_free, (AVDictionary * *m), (m))
FN(AVDictionaryEntry *, AVUTIL, av_dict_get,
	(const AVDictionary *m, const char *key, const AVDictionaryEntry *prev, int flags), (m, key, prev, flags))
FN(int, AVUTIL, av_dict_set, (AVDictionary * *pm, const char *key, const char *value, int flags),
	(pm, key, value, flags))
FN(int, AVUTIL, av_dict_set_int, (AVDictionary * *pm, const char *key, int64_t value, int flags),
	(pm, key, value, flags))
FN(char *, AVUTIL, av_fourcc_make_string, (char *buf, uint32_t fourcc), (buf, fourcc))
FN(AVFrame *, AVUTIL, av_frame_alloc, (void), ())
FN(int, AVUTIL, av_frame_apply_cropping, (AVFrame * frame, int flags), (frame, flags))
FN(int, AVUTIL, av_frame_copy_props, (AVFrame * dst, const AVFrame *src), (dst, src))
VOID(AVUTIL, av_frame_free, (AVFrame * *frame), (frame))
FN(int, AVUTIL, av_frame_get_buffer, (AVFrame * frame, int align), (frame, align))
FN(AVFrameSideData *, AVUTIL, av_frame_get_side_data, (const AVFrame *frame, enum AVFrameSideDataType type),
	(frame, type))
FN(int, AVUTIL, av_frame_make_writable, (AVFrame * frame), (frame))
VOID(AVUTIL, av_frame_move_ref, (AVFrame * dst, AVFrame *src), (dst, src))
FN(AVFrame *, AVUTIL, av_frame_clone, (const AVFrame *src), (src))
VOID(AVUTIL, av_image_copy,
	(uint8_t * to[4], int to_strides[4], const uint8_t *from[4], const int strides[4], enum AVPixelFormat f, int w,
		int h),
	(to, to_strides, from, strides, f, w, h))
FN(int, AVUTIL, av_frame_ref, (AVFrame * dst, const AVFrame *src), (dst, src))
VOID(AVUTIL, av_frame_unref, (AVFrame * frame), (frame))
VOID(AVUTIL, av_free, (void *ptr), (ptr))
VOID(AVUTIL, av_freep, (void *ptr), (ptr))
FN(const char *, AVUTIL, av_get_pix_fmt_name, (enum AVPixelFormat pix_fmt), (pix_fmt))
FN(int, AVUTIL, av_hwdevice_ctx_create,
	(AVBufferRef * *ctx, enum AVHWDeviceType type, const char *device, AVDictionary *opts, int flags),
	(ctx, type, device, opts, flags))
FN(AVBufferRef *, AVUTIL, av_hwframe_ctx_alloc, (AVBufferRef * device), (device))
FN(int, AVUTIL, av_hwframe_ctx_init, (AVBufferRef * frames), (frames))
FN(int, AVUTIL, av_hwframe_get_buffer, (AVBufferRef * frames, AVFrame *frame, int flags), (frames, frame, flags))
FN(int, AVUTIL, av_hwframe_transfer_data, (AVFrame * dst, const AVFrame *src, int flags), (dst, src, flags))
VOID(AVUTIL, av_log_set_callback, (void (*callback)(void *, int, const char *, va_list)), (callback))
FN(void *, AVUTIL, av_malloc, (size_t size), (size))
VOID(AVUTIL, av_max_alloc, (size_t max), (max))
FN(int, AVUTIL, av_opt_set, (void *obj, const char *name, const char *val, int search_flags),
	(obj, name, val, search_flags))
FN(const AVPixFmtDescriptor *, AVUTIL, av_pix_fmt_desc_get, (enum AVPixelFormat pix_fmt), (pix_fmt))
FN(int64_t, AVUTIL, av_rescale_q, (int64_t a, AVRational bq, AVRational cq), (a, bq, cq))
FN(char *, AVUTIL, av_strdup, (const char *s), (s))
FN(int, AVUTIL, av_strerror, (int errnum, char *errbuf, size_t errbuf_size), (errnum, errbuf, errbuf_size))

/* libavcodec */
FN(AVPacket *, AVCODEC, av_packet_alloc, (void), ())
VOID(AVCODEC, av_packet_free, (AVPacket * *pkt), (pkt))
FN(uint8_t *, AVCODEC, av_packet_get_side_data, (const AVPacket *pkt, enum AVPacketSideDataType type, size_t *size),
	(pkt, type, size))
FN(int, AVCODEC, av_packet_ref, (AVPacket * dst, const AVPacket *src), (dst, src))
VOID(AVCODEC, av_packet_rescale_ts, (AVPacket * pkt, AVRational tb_src, AVRational tb_dst), (pkt, tb_src, tb_dst))
VOID(AVCODEC, av_packet_unref, (AVPacket * pkt), (pkt))
FN(AVCodecContext *, AVCODEC, avcodec_alloc_context3, (const AVCodec *codec), (codec))
FN(const AVCodec *, AVCODEC, avcodec_find_decoder, (enum AVCodecID id), (id))
FN(const AVCodec *, AVCODEC, avcodec_find_decoder_by_name, (const char *name), (name))
FN(const AVCodec *, AVCODEC, avcodec_find_encoder, (enum AVCodecID id), (id))
FN(const AVCodec *, AVCODEC, avcodec_find_encoder_by_name, (const char *name), (name))
VOID(AVCODEC, avcodec_flush_buffers, (AVCodecContext * avctx), (avctx))
VOID(AVCODEC, avcodec_free_context, (AVCodecContext * *avctx), (avctx))
FN(const AVClass *, AVCODEC, avcodec_get_class, (void), ())
FN(const AVCodecHWConfig *, AVCODEC, avcodec_get_hw_config, (const AVCodec *codec, int index), (codec, index))
FN(const char *, AVCODEC, avcodec_get_name, (enum AVCodecID id), (id))
FN(int, AVCODEC, avcodec_open2, (AVCodecContext * avctx, const AVCodec *codec, AVDictionary **options),
	(avctx, codec, options))
FN(int, AVCODEC, avcodec_parameters_copy, (AVCodecParameters * dst, const AVCodecParameters *src), (dst, src))
FN(int, AVCODEC, avcodec_parameters_from_context, (AVCodecParameters * par, const AVCodecContext *codec), (par, codec))
FN(int, AVCODEC, avcodec_parameters_to_context, (AVCodecContext * codec, const AVCodecParameters *par), (codec, par))
FN(int, AVCODEC, avcodec_receive_frame, (AVCodecContext * avctx, AVFrame *frame), (avctx, frame))
FN(int, AVCODEC, avcodec_receive_packet, (AVCodecContext * avctx, AVPacket *avpkt), (avctx, avpkt))
FN(int, AVCODEC, avcodec_send_frame, (AVCodecContext * avctx, const AVFrame *frame), (avctx, frame))
FN(int, AVCODEC, avcodec_send_packet, (AVCodecContext * avctx, const AVPacket *avpkt), (avctx, avpkt))

/* libavformat */
FN(AVRational, AVFORMAT, av_guess_sample_aspect_ratio, (AVFormatContext * format, AVStream *stream, AVFrame *frame),
	(format, stream, frame))
FN(int, AVFORMAT, av_interleaved_write_frame, (AVFormatContext * s, AVPacket *pkt), (s, pkt))
FN(int, AVFORMAT, av_read_frame, (AVFormatContext * s, AVPacket *pkt), (s, pkt))
FN(uint8_t *, AVFORMAT, av_stream_get_side_data, (const AVStream *stream, enum AVPacketSideDataType type, size_t *size),
	(stream, type, size))
FN(int, AVFORMAT, av_write_trailer, (AVFormatContext * s), (s))
FN(AVFormatContext *, AVFORMAT, avformat_alloc_context, (void), ())
FN(int, AVFORMAT, avformat_alloc_output_context2,
	(AVFormatContext * *ctx, const AVOutputFormat *oformat, const char *format_name, const char *filename),
	(ctx, oformat, format_name, filename))
VOID(AVFORMAT, avformat_close_input, (AVFormatContext * *s), (s))
FN(int, AVFORMAT, avformat_find_stream_info, (AVFormatContext * ic, AVDictionary **options), (ic, options))
VOID(AVFORMAT, avformat_free_context, (AVFormatContext * s), (s))
FN(const AVClass *, AVFORMAT, avformat_get_class, (void), ())
FN(AVStream *, AVFORMAT, avformat_new_stream, (AVFormatContext * s, const AVCodec *c), (s, c))
FN(int, AVFORMAT, avformat_query_codec, (const AVOutputFormat *ofmt, enum AVCodecID codec_id, int std_compliance),
	(ofmt, codec_id, std_compliance))
FN(const AVIndexEntry *, AVFORMAT, avformat_index_get_entry_from_timestamp,
	(AVStream * st, int64_t wanted_timestamp, int flags), (st, wanted_timestamp, flags))
FN(int, AVFORMAT, avformat_open_input,
	(AVFormatContext * *ps, const char *url, const AVInputFormat *fmt, AVDictionary **options),
	(ps, url, fmt, options))
FN(int, AVFORMAT, avformat_seek_file,
	(AVFormatContext * s, int stream_index, int64_t min_ts, int64_t ts, int64_t max_ts, int flags),
	(s, stream_index, min_ts, ts, max_ts, flags))
FN(int, AVFORMAT, avformat_write_header, (AVFormatContext * s, AVDictionary **options), (s, options))
FN(AVIOContext *, AVFORMAT, avio_alloc_context,
	(unsigned char *buffer, int buffer_size, int write_flag, void *opaque,
		int (*read_packet)(void *opaque, uint8_t *buf, int buf_size),
		int (*write_packet)(void *opaque, uint8_t *buf, int buf_size),
		int64_t (*seek)(void *opaque, int64_t offset, int whence)),
	(buffer, buffer_size, write_flag, opaque, read_packet, write_packet, seek))
FN(int, AVFORMAT, avio_closep, (AVIOContext * *s), (s))
VOID(AVFORMAT, avio_context_free, (AVIOContext * *s), (s))
FN(int, AVFORMAT, avio_feof, (AVIOContext * s), (s))
FN(int, AVFORMAT, avio_open, (AVIOContext * *s, const char *url, int flags), (s, url, flags))
FN(int, AVFORMAT, avio_open2,
	(AVIOContext * *s, const char *url, int flags, const AVIOInterruptCB *int_cb, AVDictionary **options),
	(s, url, flags, int_cb, options))
FN(int, AVFORMAT, avio_read_partial, (AVIOContext * s, unsigned char *buf, int size), (s, buf, size))
FN(int64_t, AVFORMAT, avio_size, (AVIOContext * s), (s))

/* libswscale */
VOID(SWSCALE, sws_freeContext, (struct SwsContext * swsContext), (swsContext))
FN(const int *, SWSCALE, sws_getCoefficients, (int colorspace), (colorspace))
FN(struct SwsContext *, SWSCALE, sws_getContext,
	(int srcW, int srcH, enum AVPixelFormat srcFormat, int dstW, int dstH, enum AVPixelFormat dstFormat, int flags,
		SwsFilter *srcFilter, SwsFilter *dstFilter, const double *param),
	(srcW, srcH, srcFormat, dstW, dstH, dstFormat, flags, srcFilter, dstFilter, param))
FN(int, SWSCALE, sws_scale,
	(struct SwsContext * c, const uint8_t *const srcSlice[], const int srcStride[], int srcSliceY, int srcSliceH,
		uint8_t *const dst[], const int dstStride[]),
	(c, srcSlice, srcStride, srcSliceY, srcSliceH, dst, dstStride))
FN(int, SWSCALE, sws_setColorspaceDetails,
	(struct SwsContext * c, const int inv_table[4], int srcRange, const int table[4], int dstRange, int brightness,
		int contrast, int saturation),
	(c, inv_table, srcRange, table, dstRange, brightness, contrast, saturation))

/* libavfilter */
FN(int, AVFILTER, av_buffersink_get_frame, (AVFilterContext * ctx, AVFrame *frame), (ctx, frame))
FN(AVRational, AVFILTER, av_buffersink_get_time_base, (const AVFilterContext *ctx), (ctx))
FN(int, AVFILTER, av_buffersrc_add_frame_flags, (AVFilterContext * src, AVFrame *frame, int flags), (src, frame, flags))
FN(const AVFilter *, AVFILTER, avfilter_get_by_name, (const char *name), (name))
FN(AVFilterGraph *, AVFILTER, avfilter_graph_alloc, (void), ())
FN(int, AVFILTER, avfilter_graph_config, (AVFilterGraph * g, void *log), (g, log))
FN(int, AVFILTER, avfilter_graph_create_filter,
	(AVFilterContext * *ctx, const AVFilter *filter, const char *name, const char *args, void *opaque,
		AVFilterGraph *g),
	(ctx, filter, name, args, opaque, g))
VOID(AVFILTER, avfilter_graph_free, (AVFilterGraph * *g), (g))
FN(int, AVFILTER, avfilter_graph_parse_ptr,
	(AVFilterGraph * g, const char *filters, AVFilterInOut **inputs, AVFilterInOut **outputs, void *log),
	(g, filters, inputs, outputs, log))
FN(AVFilterInOut *, AVFILTER, avfilter_inout_alloc, (void), ())
VOID(AVFILTER, avfilter_inout_free, (AVFilterInOut * *inout), (inout))
