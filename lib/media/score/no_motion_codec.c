/* no_motion_codec.c - motion_codec.c of a build without FFmpeg (make WITHOUT=ffmpeg). */
#include "media/score/motion_impl.h"

void vfm_codec_field_add(struct codec_field *c, int rows, const struct vfm_video *v, const struct vfm_frame *f)
{
	(void)c, (void)rows, (void)v, (void)f;
}
