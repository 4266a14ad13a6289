/* av.c - FFmpeg's log and errors. */
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/error.h>
#include <libavutil/log.h>
#include <libavutil/mem.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "media/av/av.h"

#define MAX_ALLOC ((size_t)1 << 30) /* of one allocation of FFmpeg */
#define SPARE     ((size_t)1 << 26) /* less free memory than this is a failure of the machine */
#define LAST      ((size_t)1 << 20) /* … and with less than this, FFmpeg cannot even free a decoder */

static _Thread_local char last_line[256];
static _Thread_local struct {
	void (*fn)(void *arg, const char *line);
	void *arg;
} listener;
static bool talk; /* VFM_LIBAV_LOG is set */

static struct vfm_av_errors *errors_of(void *avcl)
{
	const AVClass *cls = avcl ? *(AVClass **)avcl : NULL;

	if (cls && cls == avcodec_get_class())
		return ((AVCodecContext *)avcl)->opaque;
	if (cls && cls == avformat_get_class())
		return ((AVFormatContext *)avcl)->opaque;
	return NULL;
}

/* Returns whether a message below the level of errors means that data was lost: the H.264 decoder conceals frames that
 * are missing, and the demuxer of MPEG-TS looks for the next packet. */
static bool tells_damage(const char *fmt)
{
	static const char *const begins[] = {"Frame num gap", "Packet had TEI flag set", "changing packet size to"};

	for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++)
		if (!strncmp(fmt, begins[i], strlen(begins[i])))
			return true;
	return false;
}

static void keep_line(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));

static void keep_line(const char *fmt, va_list ap)
{
	size_t n;

	vsnprintf(last_line, sizeof(last_line), fmt, ap);
	n = strlen(last_line);
	while (n && (last_line[n - 1] == '\n' || last_line[n - 1] == '.'))
		last_line[--n] = 0;
}

static void tell_listener(const char *fmt, va_list ap)
{
	char line[512];
	va_list copy;

	va_copy(copy, ap);
	vsnprintf(line, sizeof(line), fmt, copy);
	va_end(copy);
	listener.fn(listener.arg, line);
}

static void on_log(void *avcl, int level, const char *fmt, va_list ap)
{
	struct vfm_av_errors *errors;

	if (listener.fn)
		tell_listener(fmt, ap);
	if (level > AV_LOG_ERROR && !tells_damage(fmt)) {
		if (!strncmp(fmt, "HTTP error", 10)) /* a warning, and the only one that has the status */
			keep_line(fmt, ap);
		return;
	}
	keep_line(fmt, ap);
	errors = errors_of(avcl);
	if (errors)
		atomic_fetch_add(&errors->lines, 1);
	if (talk)
		vfm_info("libav: %s", last_line);
}

static void init_once(void)
{
	talk = getenv("VFM_LIBAV_LOG") != NULL;
	av_log_set_callback(on_log);
	av_max_alloc(MAX_ALLOC);
}

void vfm_av_init(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, init_once);
}

const char *vfm_av_strerror(int rc, char buf[128])
{
	if (av_strerror(rc, buf, 128) < 0)
		snprintf(buf, 128, "error %d", rc);
	return buf;
}

const char *vfm_av_codec_name(const AVCodecParameters *par, char buf[64])
{
	char fourcc[AV_FOURCC_MAX_STRING_SIZE];

	if (par->codec_id != AV_CODEC_ID_NONE)
		return avcodec_get_name(par->codec_id);
	if (!par->codec_tag)
		return "a codec without a name";
	snprintf(buf, 64, "fourcc '%s'", av_fourcc_make_string(fourcc, par->codec_tag));
	return buf;
}

static bool is_memory_short(size_t spare)
{
	void *volatile p = malloc(spare); /* volatile: compilers remove a pair of malloc and free */
	bool is_short = !p;

	free(p);
	return is_short;
}

bool vfm_av_starved(void)
{
	return is_memory_short(LAST);
}

int vfm_av_code(int rc, int otherwise)
{
	/* Encoders and decoders of other projects report each failure as external. */
	if (rc == AVERROR(ENOMEM) || rc == AVERROR_EXTERNAL)
		return is_memory_short(SPARE) ? VFM_EENV : otherwise;
	return rc == AVERROR(EMFILE) || rc == AVERROR(ENFILE) ? VFM_EENV : otherwise;
}

const char *vfm_av_last_line(void)
{
	return last_line;
}

void vfm_av_forget_line(void)
{
	last_line[0] = 0;
}

void vfm_av_listen(void (*fn)(void *arg, const char *line), void *arg)
{
	listener.fn = fn;
	listener.arg = arg;
}
