/* sdr.h - converts pictures of high dynamic range (PQ, HLG) or of wide gamut (BT.2020) to BT.709.
 *
 * PQ is SMPTE ST 2084, HLG is ARIB STD-B67.  Light is scaled so that the reference white of 203 cd/m2 (ITU-R BT.2408)
 * is the white of SDR, and mapped from BT.2020 to BT.709.  The Mobius curve keeps light below 0.3 of white and
 * compresses the rest, up to the peak of the video (MaxCLL, else the mastering display, else 1000 cd/m2).  FFmpeg's
 * filters zscale (zimg) and tonemap compute it.  The result is display-referred (BT.1886).
 */
#ifndef VFM_MEDIA_AV_SDR_H
#define VFM_MEDIA_AV_SDR_H

#include <libavutil/frame.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct vfm_sdr; /* keeps a chain of filters; one thread at a time */

bool vfm_sdr_is_due(const AVFrame *f); /* according to the frame's labels */
void vfm_sdr_free(struct vfm_sdr *s);  /* no-op for NULL */

/* Converts `rgb`, a frame of AV_PIX_FMT_GBRP16 with the values of `source` (scaled, full range), to [height, width, 3]
 * bytes, or with `luma` to [height, width].  Set *s to NULL before the first call. */
int vfm_sdr_run(struct vfm_sdr **s, const AVFrame *source, AVFrame *rgb, bool luma, uint8_t *dst, size_t stride,
	struct vfm_err *err);

#endif
