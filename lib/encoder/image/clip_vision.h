/* clip_vision.h - the vision tower of CLIP (Radford et al., arXiv 2103.00020, section 2.4: a ViT with a norm in front
 * of its blocks), whose hidden states Wan 2.1 reads for image to video.
 *
 *	vfm_clip_vision_open(&v, stream, "Wan2.1-I2V-14B-480P", err);
 *	rows = vfm_clip_vision_id(v)->rows;
 *	vfm_clip_vision_encode(v, rgb, height, width, x, err);
 *	vfm_clip_vision_close(v);
 *
 * A picture becomes the hidden states of its tokens before the last block: the class token, then the patches row by
 * row.  Computes in f32, one picture at a time.  A picture has the same bits regardless of the others.
 *
 * Weights are a folder of transformers (CLIPVisionModel, CLIPVisionModelWithProjection or a whole CLIPModel), alone or
 * in image_encoder/ of a pipeline, or the .pth of Wan's release.  The former scales and crops pictures as
 * preprocessor_config.json says, with the bicubic filter of Pillow.  The latter stretches them to a square with
 * interpolate(mode="bicubic") of PyTorch, as Wan's program does.
 *
 * Calls are local and belong to the host thread of the stream.
 */
#ifndef VFM_ENCODER_IMAGE_CLIP_VISION_H
#define VFM_ENCODER_IMAGE_CLIP_VISION_H

#include <stdint.h>

#include "base/err.h"
#include "data/record/encoder_id.h"
#include "device/dev/dev.h"

struct vfm_clip_vision;

/* Reads the configuration and checks all tensors of the files, which must not change until vfm_clip_vision_close.  The
 * first vfm_clip_vision_encode moves the weights to the device.  path is a folder or file of weights, or the folder of
 * a whole release.  The stream must outlive *v.  VFM_EUSAGE lists the tensors that do not fit, or names the file and
 * the key of the configuration; VFM_EENV: out of memory. */
int vfm_clip_vision_open(struct vfm_clip_vision **v, struct vfm_stream *s, const char *path, struct vfm_err *err);
/* Frees all device memory; the next vfm_clip_vision_encode reads the weights again.  No-op for NULL. */
void vfm_clip_vision_unload(struct vfm_clip_vision *v);
void vfm_clip_vision_close(struct vfm_clip_vision *v); /* accepts NULL */

/* Returns the identity, with the rows of one picture and their width.  Its sha256 covers the weights, and the options
 * of model and preprocessing. */
const struct vfm_encoder_id *vfm_clip_vision_id(const struct vfm_clip_vision *v);

/* Encodes the picture rgb [height, width, 3], of any size up to 65536, to x [rows, dim]. */
int vfm_clip_vision_encode(
	struct vfm_clip_vision *v, const uint8_t *rgb, int height, int width, float *x, struct vfm_err *err);

#endif
