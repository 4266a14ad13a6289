/* vae_impl.h - the parts of the VAE: its configuration, its layers in order, and the frames between them.
 *
 *	vae_config.c  config.json, or the shapes of a release -> struct vae_config
 *	vae_wan.c     the names of tensors, and the constants of the releases
 *	vae_net.c     struct vae_config -> the list of layers, with the tensors that each wants
 *	vae_load.c    tensors of files -> operands of ops
 *	vae_run.c     a frame through the layers
 *	vae_session.c pixels and latents of a session
 *	vae_clip.c    whole clips, tiles
 *	vae.c         open, close, identity
 */
#ifndef VFM_ENCODER_VAE_IMPL_H
#define VFM_ENCODER_VAE_IMPL_H

#include "ckpt/weights.h"
#include "encoder/vae.h"
#include "ops/ops.h"

enum { VAE_LEVELS_MAX = 8, VAE_Z_MAX = 256, VAE_RES_MAX = 16, VAE_GROUP = 4 /* frames of a latent frame at most */ };

struct vae_config {
	bool original; /* tensors have the names of Wan's releases */
	bool residual; /* Wan 2.2: shortcuts around the blocks of a level */
	int base_dim, decoder_base_dim, z_dim, num_res_blocks;
	int levels, dim_mult[VAE_LEVELS_MAX];
	bool temporal_down[VAE_LEVELS_MAX]; /* [levels - 1] */
	int patch, in_channels, out_channels;
	float mean[VAE_Z_MAX], std[VAE_Z_MAX];
};

/* VFM_EUSAGE names the file and the key. */
int vae_config_read(struct vae_config *c, struct vfm_weights *w, struct vfm_err *err);

/* ---- names (vae_wan.c) ---- */

/* The places of layers in the network. */
enum vae_part { VAE_ENCODER, VAE_DECODER, VAE_PARTS };
struct vae_place {
	enum vae_part part;
	bool mid;
	int level, index; /* block within the level, resampling last; mid: block 0 or 1 */
};
enum vae_tensor {
	VAE_CONV_IN,
	VAE_NORM_OUT,
	VAE_CONV_OUT,
	VAE_QUANT, /* quant_conv of the encoder, post_quant_conv of the decoder */
	VAE_NORM1,
	VAE_CONV1,
	VAE_NORM2,
	VAE_CONV2,
	VAE_SHORTCUT,
	VAE_ATTN_NORM,
	VAE_ATTN_QKV,
	VAE_ATTN_PROJ,
	VAE_RESAMPLE,
	VAE_TIME_CONV,
};
#define VAE_NAME 128
/* Writes the name of a tensor, without ".weight" and ".bias" (of a norm: the whole name). */
void vae_name(char name[VAE_NAME], const struct vae_config *c, const struct vae_place *p, enum vae_tensor t);
/* Sets mean and std to those of the release with z_dim channels; false: none has so many. */
bool vae_release_scaling(struct vae_config *c);

/* ---- layers (vae_net.c) ---- */

/* What a convolution computes where its weights come from no file. */
enum vae_fixed {
	VAE_LEARNED,
	VAE_AVG_DOWN, /* AvgDown3D: means of groups of channels and pixels */
	VAE_DUP_UP,   /* DupUp3D, one frame: output (row, column, channel) of a pixel of 2 x 2 is an input channel */
};
struct vae_conv {
	const struct vfm_weight *from, *from_bias; /* [O', C, (kt,) kh, kw], [O'] */
	int64_t first;                             /* the outputs are the rows [first, first + out) of from */
	int64_t scaled;                            /* the first rows are multiplied by `scale` */
	float scale;
	enum vae_fixed fixed;
	int dup_t; /* VAE_DUP_UP: which of the frames */
	int in, out, kernel[3], stride[3], pad[4];
	struct vfm_tensor w, b; /* [out, taps, in]; [out] f32 */
};
struct vae_norm {
	const struct vfm_weight *from;
	int dim;
	struct vfm_tensor w; /* [dim] f32 */
};

enum vae_kind {
	VAE_LAYER_CONV, /* conv[0]; causal if its kernel covers 3 frames */
	VAE_LAYER_RES,  /* x' + conv[1](silu(norm[1](conv[0](silu(norm[0](x)))))); x' = conv[2](x) if that is there */
	VAE_LAYER_ATTN, /* x + conv[1](attention(conv[0](norm[0](x)))), both convolutions 1 x 1 */
	VAE_LAYER_HEAD, /* conv[0](silu(norm[0](x))) */
	VAE_LAYER_SAVE, /* keeps x for the shortcut of a level */
	VAE_LAYER_ADD,  /* x + shortcut[0](saved) */
	VAE_LAYER_DOWN, /* conv[0] with stride 2, then with `temporal` conv[1] over 3 frames, every second frame */
	VAE_LAYER_UP,   /* with `temporal` conv[1], conv[2]: two frames of one; upsampling; conv[0] */
};
struct vae_layer {
	enum vae_kind kind;
	bool temporal, has_shortcut;
	struct vae_conv conv[3], shortcut[2]; /* has_shortcut, kind UP: one for each frame; else one */
	struct vae_norm norm[2];
	int in; /* channels */
};
struct vae_net {
	struct vae_layer *layer;
	int n, out; /* out: channels of its last layer */
};

/* Lists the layers of a part and asks w for their tensors. */
void vae_net_plan(struct vae_net *net, const struct vae_config *c, enum vae_part part, struct vfm_weights *w);
void vae_net_free(struct vae_net *net); /* host memory */

/* ---- weights (vae_load.c) ---- */

/* Moves the tensors of a planned net to the device.  *mem: one block, which the caller frees with vfm_dev_free. */
int vae_net_load(struct vae_net *net, struct vfm_stream *s, enum vfm_dtype dtype, void **mem, size_t *bytes,
	struct vfm_err *err);

/* ---- running (vae_run.c) ---- */

struct vae_frame {           /* a buffer of a session; counted references */
	struct vfm_tensor t; /* [1,H,W,C] */
	size_t bytes;
	int refs;
	struct vae_frame *next; /* of the free ones */
};
struct vae_past { /* the frames before the current one, oldest first */
	struct vae_frame *f[2];
	int n;
};
struct vae_layer_state {
	struct vae_past past[2];
	struct vae_frame *saved[2]; /* SAVE: inputs of the level that its end has not read yet, oldest first */
	int n_saved;
	int64_t frames; /* inputs so far */
	void *index;    /* UP: of DupUp3D, on the device */
	size_t index_bytes;
};
struct vae_run {
	struct vfm_stream *s;
	enum vfm_dtype dtype;
	const struct vae_net *net;
	struct vae_layer_state *state; /* [net->n] */
	struct vae_frame *free;        /* buffers without an owner */
	/* Receives each frame of the last layer, [1,H,W,C]; borrowed. */
	int (*emit)(void *ctx, const struct vae_frame *y, struct vfm_err *err);
	void *ctx;
};
void vae_run_init(struct vae_run *r, struct vfm_stream *s, enum vfm_dtype dtype, const struct vae_net *net);
void vae_run_release(struct vae_run *r);
/* Returns a buffer [1,h,w,c] with one reference; vae_frame_drop gives it back. */
int vae_frame_new(struct vae_run *r, int64_t h, int64_t w, int64_t c, struct vae_frame **f, struct vfm_err *err);
void vae_frame_drop(struct vae_run *r, struct vae_frame *f);
/* Runs the layers on x, whose reference it takes. */
int vae_run_push(struct vae_run *r, struct vae_frame *x, struct vfm_err *err);

/* ---- sessions and clips (vae.c, vae_session.c, vae_clip.c) ---- */

struct vfm_vae {
	struct vfm_stream *s;
	enum vfm_dtype dtype;
	struct vfm_vae_tile tile;
	struct vae_config c;
	struct vae_net net[VAE_PARTS]; /* without layers if it is not loaded */
	void *mem[VAE_PARTS];
	size_t bytes[VAE_PARTS];
	struct vfm_geometry geometry;
	struct vfm_maker maker;
	int64_t ratio; /* between the sizes of the inputs of the nets (patches, latents) */
};

/* Where the frames of a clip go: rgb u8 and f32, or the latents as f32; either may be NULL. */
struct vae_out {
	uint8_t *rgb; /* [T, h p, w p, 3] */
	float *f32;   /* the same, or [T, C, h, w] */
	int64_t h, w; /* patches or latents of the whole frame */
};
/* A rectangle of the whole frame. */
struct vae_window {
	int64_t y, x, h, w;
};

struct vfm_vae_session {
	struct vfm_vae *v;
	enum vae_part part;
	int64_t h, w;   /* inputs of the net: patches or latents */
	int64_t frames; /* inputs so far */
	int64_t emitted;
	bool failed;
	struct vae_run run;
	float *host; /* [n]: a frame of the input or of the output */
	void *raw;   /* [n], in the dtype of the run */
	size_t n;
	struct vae_out out; /* of the current push, */
	int64_t stored;     /* which begins with this output */
	float *tile;        /* not NULL: [T, h', w', C], receives the outputs as they are */
};
int vae_session_begin(
	struct vfm_vae_session **s, struct vfm_vae *v, enum vae_part part, int64_t h, int64_t w, struct vfm_err *err);
/* The next input: a window of a picture, whose rows have `width` pixels, NULL for a grey one; or of latents [C, area],
 * whose rows have `width`. */
int vae_session_pixels(struct vfm_vae_session *s, const uint8_t *rgb, int64_t width, struct vfm_err *err);
int vae_session_latents(struct vfm_vae_session *s, const float *z, int64_t width, int64_t area, struct vfm_err *err);
/* Stores part of frame t, `raw` [., raw_w, C] from the corner of the window on, to the window `at` of the whole. */
void vae_store(const struct vfm_vae *v, enum vae_part part, const struct vae_out *o, int64_t t, const float *raw,
	int64_t raw_w, const struct vae_window *at);

#endif
