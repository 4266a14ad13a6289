/* hw.c - opens the devices once per process, attaches them to decoders, and fetches frames to host memory. */
#include <libavcodec/avcodec.h>
#include <libavutil/hwcontext.h>
#include <libavutil/pixdesc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/log.h"
#include "media/av/av.h"
#include "media/av/hw.h"

static const struct {
	enum vfm_hwaccel accel;
	enum AVHWDeviceType type;
	const char *name;
} kinds[] = {
	{VFM_HWACCEL_CUDA, AV_HWDEVICE_TYPE_CUDA, "cuda"},
	{VFM_HWACCEL_VAAPI, AV_HWDEVICE_TYPE_VAAPI, "vaapi"},
};

enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static AVBufferRef *devices[N_KINDS]; /* NULL: the machine has none */

static void open_devices(void)
{
	for (int i = 0; i < N_KINDS; i++)
		if (av_hwdevice_ctx_create(&devices[i], kinds[i].type, NULL, NULL, 0) < 0)
			devices[i] = NULL;
	vfm_av_forget_line();
}

/* The format of frames in the device's memory, or AV_PIX_FMT_NONE if the decoder does not use it. */
static enum AVPixelFormat device_format(const AVCodec *codec, enum AVHWDeviceType type)
{
	const AVCodecHWConfig *config;

	for (int i = 0; (config = avcodec_get_hw_config(codec, i)); i++)
		if (config->methods & AV_CODEC_HW_CONFIG_METHOD_HW_DEVICE_CTX && config->device_type == type)
			return config->pix_fmt;
	return AV_PIX_FMT_NONE;
}

/* Chooses the device's format if the decoder offers it, and else, as for profiles that the hardware lacks, the first
 * one of software. */
static enum AVPixelFormat choose_format(AVCodecContext *dec, const enum AVPixelFormat *offered)
{
	const AVPixFmtDescriptor *desc;

	for (const enum AVPixelFormat *f = offered; *f != AV_PIX_FMT_NONE; f++) {
		for (int i = 0; i < N_KINDS; i++)
			if (devices[i] && dec->hw_device_ctx && dec->hw_device_ctx->data == devices[i]->data &&
				*f == device_format(dec->codec, kinds[i].type))
				return *f;
	}
	for (; *offered != AV_PIX_FMT_NONE; offered++) {
		desc = av_pix_fmt_desc_get(*offered);
		if (desc && !(desc->flags & AV_PIX_FMT_FLAG_HWACCEL))
			return *offered;
	}
	return AV_PIX_FMT_NONE;
}

static void open_devices_once(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, open_devices);
}

AVBufferRef *vfm_hw_device(enum vfm_hwaccel accel)
{
	open_devices_once();
	for (int i = 0; i < N_KINDS; i++)
		if (kinds[i].accel == accel)
			return devices[i];
	return NULL;
}

static void notice_once(enum vfm_hwaccel accel)
{
	static atomic_bool said;
	const char *name = "cuda or vaapi";

	for (int i = 0; i < N_KINDS; i++)
		if (kinds[i].accel == accel)
			name = kinds[i].name;
	if (!atomic_exchange(&said, true))
		vfm_info("no device for --hwaccel %s: software decodes", name);
}

void vfm_hw_attach(AVCodecContext *dec, enum vfm_hwaccel accel)
{
	bool have_device = false;

	if (accel == VFM_HWACCEL_NONE)
		return;
	open_devices_once();
	for (int i = 0; i < N_KINDS; i++) {
		if (!devices[i] || (accel != VFM_HWACCEL_AUTO && accel != kinds[i].accel))
			continue;
		have_device = true;
		if (device_format(dec->codec, kinds[i].type) == AV_PIX_FMT_NONE)
			continue;
		dec->hw_device_ctx = av_buffer_ref(devices[i]);
		dec->get_format = choose_format;
		return;
	}
	if (!have_device)
		notice_once(accel);
}

int vfm_hw_fetch(AVFrame *f, AVFrame *spare, struct vfm_err *err)
{
	int rc;

	if (!f->hw_frames_ctx)
		return 0;
	rc = av_hwframe_transfer_data(spare, f, 0);
	if (rc >= 0)
		rc = av_frame_copy_props(spare, f);
	if (rc < 0) {
		char buf[128];

		av_frame_unref(spare);
		return vfm_fail(err, VFM_EENV, "cannot read a frame from the device: %s", vfm_av_strerror(rc, buf));
	}
	av_frame_unref(f);
	av_frame_move_ref(f, spare);
	return 0;
}
