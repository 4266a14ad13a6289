/* clip_vision_impl.h - shared by the files of clip_vision.h. */
#ifndef VFM_ENCODER_IMAGE_CLIP_VISION_IMPL_H
#define VFM_ENCODER_IMAGE_CLIP_VISION_IMPL_H

#include "ckpt/weights.h"
#include "device/ops/ops.h"
#include "encoder/image/clip_vision.h"
#include "spec/model/dtype.h"

/* ---- pictures (clip_vision_picture.c) ---- */

/* How a picture becomes pixels [3, side, side]. */
struct vision_picture {
	bool pillow; /* resize in 8 bits as Pillow does, which smooths; else as interpolate of PyTorch, in f32 */
	int side;
	/* Scale the shorter side to this and crop the middle; 0: stretch to side x side, as without `pillow` */
	int shortest;
	double rescale; /* of a value from 0 to 255; then (x - mean) / std */
	float mean[3], std[3];
};
enum { VISION_PICTURE_MAX = 65536, VISION_SIDE_MAX = 4096 }; /* pixels of a side: of a picture, of the result */

int vision_picture_pixels(
	const struct vision_picture *p, const uint8_t *rgb, int height, int width, float *pixels, struct vfm_err *err);

/* ---- the model ---- */

struct vision_dims {
	int64_t image, patch, grid; /* pixels, pixels, patches of a side */
	int64_t rows, dim, heads, ffn, layers;
	float eps;
	bool quick; /* GELU as x sigmoid(1.702 x) (Hendrycks & Gimpel, arXiv 1606.08415); else exact */
};

/* The layers of a block that have weights. */
enum vision_layer_id { VISION_NORM1, VISION_QKV, VISION_OUT, VISION_NORM2, VISION_UP, VISION_DOWN, VISION_LAYERS };
enum { VISION_STACK = 3 };

struct vision_layer {
	/* of the file: the rows of up to 3 tensors follow each other; the rest is NULL */
	const struct vfm_weight *weight_from[VISION_STACK], *bias_from[VISION_STACK];
	struct vfm_tensor weight, bias; /* [out, in] or, of a norm, [dim]; [out] */
};
struct vision_block {
	struct vision_layer layer[VISION_LAYERS];
};

struct vfm_clip_vision {
	struct vfm_stream *s;
	struct vision_dims d;
	struct vision_picture picture;
	struct vfm_encoder_id id;
	struct vfm_weights *weights;

	const struct vfm_weight *patch_from, *class_from, *position_from;
	struct vfm_tensor patch; /* [dim, 3 patch^2] */
	struct vfm_tensor embed; /* [rows, dim]: the positions; the first row includes the class */
	struct vision_layer norm;
	struct vision_block *block; /* [layers]; the last one is only checked */

	struct vfm_tensor x, h;        /* [rows, dim]: the residual stream; input of a product */
	struct vfm_tensor qkv, a, lse; /* [rows, 3 dim]; [rows, dim]; [rows, heads] */
	struct vfm_tensor ff;          /* [rows, ffn] */
	struct vfm_tensor patches;     /* [grid^2, 3 patch^2] */
	struct vfm_tensor dev_cu;      /* [2] i32 */
	int32_t cu[2];
	char *mem; /* of all tensors; NULL: not loaded */
	size_t bytes;
	float *pixels, *cut; /* host, of pixel_bytes: [3, image, image]; as patches */
	size_t pixel_bytes;
};

/* Opens the files, sets d, picture and the sources of all tensors, and checks them (clip_vision_open.c). */
int vision_open_files(struct vfm_clip_vision *v, const char *path, struct vfm_err *err);
/* Sets *p from the preprocessor_config.json of transformers at `path` (clip_vision_config.c).  VFM_EUSAGE names the
 * key. */
int vision_picture_read(struct vision_picture *p, int64_t image, const char *path, struct vfm_err *err);
/* Sets *d from the config.json of transformers; path is for messages. */
int vision_dims_read(struct vision_dims *d, const json_t *config, const char *path, struct vfm_err *err);
/* The preprocessing of Wan's program. */
struct vision_picture vision_picture_of_wan(int side);
/* Places weights and activations on the device, unless they are there (clip_vision_load.c). */
int vision_load(struct vfm_clip_vision *v, struct vfm_err *err);
void vision_unload(struct vfm_clip_vision *v);

#endif
